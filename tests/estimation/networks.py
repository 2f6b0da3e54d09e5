"""Networks whose graphs and estimates are compared with what TensorFlow really runs."""

import keras

from memviz import ConvBlock, ConvNet, presets

NORMED = ConvNet(
    name="normed",
    input_shape=(32, 32, 3),
    blocks=(
        ConvBlock(filters=8, padding="same", batch_norm=True, pooling="max"),
        ConvBlock(filters=16, batch_norm=True, pooling="average", dropout=0.2),
    ),
    dense=(32,),
    outputs=10,
    output_activation="softmax",
)


def mlp():
    layers = keras.layers
    return keras.Sequential([keras.Input((64,)), layers.Dense(96, "relu"), layers.Dense(96, "tanh"), layers.Dense(3)])


def residual():
    layers = keras.layers
    x = start = keras.Input((16, 16, 4))
    for _ in range(2):
        y = layers.Conv2D(4, 3, padding="same", activation="relu")(x)
        x = layers.Add()([x, y])
    y = layers.Concatenate()([layers.GlobalAveragePooling2D()(x), layers.GlobalMaxPooling2D()(x)])
    return keras.Model(start, layers.Dense(1, "sigmoid")(y))


ALL = {"digits": presets.digits, "normed": NORMED, "mlp": mlp, "residual": residual}
