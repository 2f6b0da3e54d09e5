"""Ten small trainings without a leak, of thirty steps per epoch with a batch of 8: model, features, labels."""

import keras
import numpy as np
from keras import layers

EXAMPLES = 240
IMAGES = np.linspace(0, 1, EXAMPLES * 8 * 8, dtype=np.float32).reshape(-1, 8, 8, 1)
ROWS = IMAGES.reshape(EXAMPLES, 64)
CLASSES = np.arange(EXAMPLES) % 4


def _trained(stack, features=IMAGES, optimizer="adam"):
    model = keras.Sequential(
        [keras.Input(features.shape[1:], dtype=features.dtype), *stack, layers.Dense(4, "softmax")]
    )
    model.compile(optimizer, "sparse_categorical_crossentropy")
    return model, features, CLASSES


ALL = {
    "dense": lambda: _trained([layers.Dense(256, "relu"), layers.Dense(64)], ROWS),
    "sgd": lambda: _trained([layers.Dense(64)], ROWS, "sgd"),
    "conv": lambda: _trained([layers.Conv2D(8, 3), layers.Flatten()]),
    "normed": lambda: _trained([layers.Conv2D(8, 3), layers.BatchNormalization(), layers.Flatten()]),
    "dropout": lambda: _trained([layers.Dropout(0.5), layers.Dense(32)], ROWS),
    "pooled": lambda: _trained([layers.Conv2D(16, 3), layers.GlobalAveragePooling2D()], optimizer="rmsprop"),
    "recurrent": lambda: _trained([layers.LSTM(16)], ROWS.reshape(-1, 8, 8)),
    "attention": lambda: _trained([Attends(), layers.GlobalAveragePooling1D()], ROWS.reshape(-1, 8, 8)),
    "embedding": lambda: _trained(
        [layers.Embedding(100, 16), layers.GlobalAveragePooling1D()], (ROWS[:, :16] * 99).astype(np.int32)
    ),
    "accumulating": lambda: _trained(
        [layers.Dense(64)], ROWS, keras.optimizers.Adam(gradient_accumulation_steps=4, use_ema=True)
    ),
}


class Attends(layers.Layer):
    def build(self, shape):
        self.attention = layers.MultiHeadAttention(2, 8)
        self.attention.build(shape, shape)

    def call(self, x):
        return self.attention(x, x)
