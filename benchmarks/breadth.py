"""More rows of the accuracy benchmark: what else Keras trains, beside the convolutional and dense networks of the zoo.

Optimizers and policies are tried on one small network. A third is validation, as in the zoo.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras import layers, optimizers
from zoo import Row

SMALL = "small CNN"


def small() -> keras.Model:
    return keras.Sequential([
        keras.Input((32, 32, 3)), layers.Conv2D(16, 3, activation="relu"), layers.BatchNormalization(),
        layers.MaxPooling2D(), layers.Conv2D(32, 3, activation="relu"), layers.Flatten(), layers.Dense(64, "relu"),
        layers.Dense(10, "softmax"),
    ])  # fmt: skip


def sequence(*stack: Any) -> keras.Model:
    return keras.Sequential([keras.Input((40, 24)), *stack, layers.Dense(5, "softmax")])


def text(*stack: Any, mask: bool = False) -> keras.Model:
    """A vocabulary of 20,000 words, whose gradient is sparse."""
    embedding = layers.Embedding(20_000, 64, mask_zero=mask)
    return keras.Sequential([keras.Input((80,), dtype="int32"), embedding, *stack, layers.Dense(1, "sigmoid")])


def transformer() -> keras.Model:
    start = keras.Input((64,), dtype="int32")
    x = layers.Embedding(8_000, 64)(start)
    for _ in range(2):
        x = layers.LayerNormalization()(x + layers.MultiHeadAttention(4, 16, dropout=0.1)(x, x))
        x = layers.LayerNormalization()(x + layers.Dense(64)(layers.Dense(128, "gelu")(x)))
    return keras.Model(start, layers.Dense(4, "softmax")(layers.GlobalAveragePooling1D()(x)))


def two_ends() -> keras.Model:
    image, table = keras.Input((16, 16, 3), name="image"), keras.Input((20,), name="table")
    x = layers.Flatten()(layers.Conv2D(8, 3)(image))
    x = layers.Concatenate()([x, layers.Dense(16)(table)])
    ends = {"kind": layers.Dense(3, "softmax", name="kind")(x), "size": layers.Dense(1, name="size")(x)}
    model = keras.Model({"image": image, "table": table}, ends)
    model.compile("adam", {"kind": "sparse_categorical_crossentropy", "size": "mse"})
    return model


def measured_by() -> keras.Model:
    """Compiled with metrics, one of which holds a table of thresholds by examples."""
    model = small()
    one_hot = ["categorical_accuracy", keras.metrics.AUC(), keras.metrics.TopKCategoricalAccuracy(3)]
    model.compile("adam", "categorical_crossentropy", metrics=one_hot, weighted_metrics=[keras.metrics.F1Score()])
    return model


def siamese() -> keras.Model:
    """One network, called twice."""
    shared = keras.Sequential([
        keras.Input((28, 28, 1)), layers.Conv2D(16, 3, activation="relu"), layers.Flatten(), layers.Dense(32)
    ])  # fmt: skip
    one, two = keras.Input((28, 28, 1)), keras.Input((28, 28, 1))
    return keras.Model([one, two], layers.Dense(1, "sigmoid")(layers.Subtract()([shared(one), shared(two)])))


def nested() -> keras.Model:
    inner = [keras.Input((30, 30, 8)), layers.Conv2D(16, 3, activation="relu"), layers.MaxPooling2D()]
    start = keras.Input((32, 32, 3))
    x = keras.Sequential(inner)(layers.Conv2D(8, 3)(start))
    return keras.Model(start, layers.Dense(5, "softmax")(layers.Flatten()(x)))


def frozen() -> keras.Model:
    base = keras.applications.MobileNetV2(weights=None, include_top=False, input_shape=(96, 96, 3))
    base.trainable = False
    head = [layers.GlobalAveragePooling2D(), layers.Dense(5, "softmax")]
    return keras.Sequential([keras.Input((96, 96, 3)), base, *head])


class Penalized(keras.Model):
    """A step of its own: a penalty on the outputs."""

    def train_step(self, data: Any) -> dict[str, Any]:
        """Without metrics."""
        features, labels = data
        with tf.GradientTape() as tape:
            outputs = self(features, training=True)
            loss = self.compute_loss(x=features, y=labels, y_pred=outputs) + 0.1 * tf.reduce_mean(tf.square(outputs))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


def own_step() -> keras.Model:
    start = keras.Input((32, 32, 3))
    x = layers.Flatten()(layers.Conv2D(16, 3, activation="relu")(start))
    return Penalized(start, layers.Dense(4, "softmax")(x))


def noisy() -> keras.Model:
    return keras.Sequential([
        keras.Input((32, 32, 3)), layers.GaussianNoise(0.1), layers.Conv2D(16, 3, activation="relu"),
        layers.SpatialDropout2D(0.2), layers.Conv2D(16, 3, activation="relu"), layers.GaussianDropout(0.2),
        layers.Flatten(), layers.AlphaDropout(0.1), layers.Dense(5, "softmax"),
    ])  # fmt: skip


def norms() -> keras.Model:
    return keras.Sequential([
        keras.Input((32, 32, 16)), layers.GroupNormalization(4), layers.Conv2D(16, 3, activation="swish"),
        layers.LayerNormalization(), layers.DepthwiseConv2D(3), layers.UnitNormalization(), layers.Flatten(),
        layers.Dense(5, "softmax"),
    ])  # fmt: skip


def video() -> keras.Model:
    return keras.Sequential([
        keras.Input((6, 32, 32, 3)), layers.TimeDistributed(layers.Conv2D(8, 3, activation="relu")),
        layers.TimeDistributed(layers.Flatten()), layers.GlobalAveragePooling1D(), layers.Dense(4, "softmax"),
    ])  # fmt: skip


def signal() -> keras.Model:
    return keras.Sequential([
        keras.Input((512, 8)), layers.Conv1D(32, 5, activation="relu"), layers.MaxPooling1D(2),
        layers.Conv1D(64, 5, activation="relu"), layers.GlobalMaxPooling1D(), layers.Dense(4, "softmax"),
    ])  # fmt: skip


def patches() -> keras.Model:
    start = keras.Input((32, 32, 3))
    x = layers.Reshape((64, 32))(layers.Conv2D(32, 4, strides=4)(start))
    return keras.Model(start, layers.Dense(4, "softmax")(layers.Flatten()(layers.Attention()([x, x]))))


def frames() -> keras.Model:
    stack = [keras.Input((5, 20, 20, 3)), layers.ConvLSTM2D(8, 3), layers.Flatten(), layers.Dense(3, "softmax")]
    return keras.Sequential(stack)


def stateful() -> keras.Model:
    start = keras.Input(batch_shape=(16, 40, 24))
    return keras.Sequential([start, layers.LSTM(32, stateful=True), layers.Dense(5, "softmax")])


# Made anew for each estimate and trial: an optimizer has variables.
OPTIMIZERS = {
    "SGD momentum": lambda: optimizers.SGD(momentum=0.9),
    "SGD Nesterov": lambda: optimizers.SGD(momentum=0.9, nesterov=True),
    "SGD weight decay": lambda: optimizers.SGD(weight_decay=0.01),
    "RMSprop centered": lambda: optimizers.RMSprop(centered=True, momentum=0.9),
    "AMSGrad": lambda: optimizers.Adam(amsgrad=True),
    "AdamW": optimizers.AdamW,
    "Adamax": optimizers.Adamax,
    "Nadam": optimizers.Nadam,
    "Ftrl": optimizers.Ftrl,
    "Lion": optimizers.Lion,
    "Lamb": lambda: "lamb",
    "Adafactor": optimizers.Adafactor,
    "Muon": optimizers.Muon,
    "ScheduleFreeAdamW": optimizers.ScheduleFreeAdamW,
    "EMA": lambda: optimizers.Adam(use_ema=True),
    "EMA overwritten": lambda: optimizers.Adam(use_ema=True, ema_overwrite_frequency=3),
    "accumulated gradients": lambda: optimizers.Adam(gradient_accumulation_steps=4),
    "global clipnorm": lambda: optimizers.Adam(global_clipnorm=1.0),
    "clipnorm": lambda: optimizers.Adam(clipnorm=1.0),
    "clipvalue": lambda: optimizers.Adam(clipvalue=1.0),
    "cosine decay": lambda: optimizers.Adam(optimizers.schedules.CosineDecay(0.01, 1_000, warmup_steps=10)),
    "loss scaling": lambda: optimizers.LossScaleOptimizer(optimizers.Adam()),
}
POLICIES = "float64", "float16", "bfloat16", "mixed_float16", "mixed_bfloat16"
NETWORKS: dict[str, tuple[Any, int]] = {
    "LSTM": (lambda: sequence(layers.LSTM(64)), 32),
    "GRU": (lambda: sequence(layers.GRU(64)), 32),
    "SimpleRNN": (lambda: sequence(layers.SimpleRNN(64)), 32),
    "bidirectional LSTM": (lambda: sequence(layers.Bidirectional(layers.LSTM(64))), 32),
    "two LSTMs": (lambda: sequence(layers.LSTM(32, return_sequences=True, dropout=0.2), layers.LSTM(32)), 32),
    "stateful LSTM": (stateful, 16),
    "ConvLSTM": (frames, 8),
    "text LSTM": (lambda: text(layers.LSTM(64)), 32),
    "masked text GRU": (lambda: text(layers.GRU(32), mask=True), 32),
    "text": (lambda: text(layers.GlobalAveragePooling1D()), 32),
    "transformer": (transformer, 32),
    "two ends": (two_ends, 32),
    "siamese": (siamese, 32),
    "nested": (nested, 32),
    "frozen MobileNetV2": (frozen, 16),
    "own train_step": (own_step, 32),
    "noise and dropout": (noisy, 32),
    "norms": (norms, 32),
    "video": (video, 16),
    "signal": (signal, 64),
    "attention": (patches, 32),
}

_ROWS = [
    *(Row(f"{SMALL}, {name}", small, 32, make) for name, make in OPTIMIZERS.items()),
    *(Row(SMALL, small, 32, dtype_policy=policy) for policy in POLICIES),
    *(Row(name, build, batch_size) for name, (build, batch_size) in NETWORKS.items()),
    Row("text", NETWORKS["text"][0], 32, "sgd"),
    Row(f"{SMALL}, metrics", measured_by, 256),
    Row(f"{SMALL}, sample weights", small, 32, sample_weight=True),
    Row("two ends, sample weights", two_ends, 32, sample_weight=True),
]
BREADTH = tuple(row.as_validation() if number % 3 == 2 else row for number, row in enumerate(_ROWS))
