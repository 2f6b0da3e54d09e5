"""Networks whose trials are recorded: the kinds of layers that allocate in their own way, each small."""

import keras

from memviz import ConvBlock, ConvNet, presets

NORMED = ConvNet(
    name="normed", input_shape=(32, 32, 3), dense=(32,), outputs=10, output_activation="softmax",
    blocks=(
        ConvBlock(filters=8, padding="same", batch_norm=True, pooling="max"),
        ConvBlock(filters=16, batch_norm=True, pooling="average", dropout=0.2),
    ),
)  # fmt: skip


def residual():
    layers = keras.layers
    x = start = keras.Input((24, 24, 4))
    for filters in (12, 20):
        y = layers.Conv2D(filters, 3, padding="same")(x)
        y = layers.Activation("relu")(layers.BatchNormalization()(y))
        y = layers.Conv2D(filters, 3, padding="same")(y)
        x = layers.Activation("relu")(layers.Add()([layers.Conv2D(filters, 1)(x), y]))
    return keras.Model(start, layers.Dense(5, "softmax")(layers.GlobalAveragePooling2D()(x)))


def unet():
    layers = keras.layers
    x = start = keras.Input((40, 40, 3))
    skips = []
    for filters in (12, 20):
        x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
        skips.append(x)
        x = layers.MaxPooling2D()(x)
    x = layers.Conv2D(28, 3, padding="same", activation="relu")(x)
    for filters, skip in zip((20, 12), reversed(skips), strict=True):
        x = layers.Concatenate()([layers.Conv2DTranspose(filters, 2, strides=2)(x), skip])
        x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
    return keras.Model(start, layers.Conv2D(1, 1, activation="sigmoid")(x))


def transformer():
    layers = keras.layers
    start = keras.Input((48,), dtype="int32")
    x = layers.Embedding(20_000, 72)(start)
    for _ in range(2):
        x = layers.LayerNormalization()(layers.Add()([x, layers.MultiHeadAttention(4, 18)(x, x)]))
        x = layers.LayerNormalization()(layers.Add()([x, layers.Dense(72)(layers.Dense(200, "gelu")(x))]))
    return keras.Model(start, layers.Dense(1, "sigmoid")(layers.GlobalAveragePooling1D()(x)))


# Chains in which no two layers have a weight or an output of the same size, so that a wrong layer shows.


def vgg():
    layers = keras.layers
    blocks = [
        layer for filters in (11, 23) for layer in (layers.Conv2D(filters, 3, activation="relu"), layers.MaxPooling2D())
    ]
    top = [layers.Flatten(), layers.Dense(301, "relu"), layers.Dense(203, "tanh"), layers.Dense(7, "softmax")]
    return keras.Sequential([keras.Input((39, 39, 3)), *blocks, *top])


def lstm():
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((20,), dtype="int32"),
            layers.Embedding(3001, 90),
            layers.LSTM(110, return_sequences=True),
            layers.GRU(70),
            layers.Dense(5, "softmax"),
        ]
    )


def embedding():
    layers = keras.layers
    start = keras.Input((30,), dtype="int32")
    x = layers.Embedding(50_021, 48)(start)
    return keras.Model(start, layers.Dense(3, "softmax")(layers.Dense(41)(layers.Flatten()(x))))


def nested():
    """Two models within a model, one of them within the other; their names look like each other's."""
    layers = keras.layers
    inmost = keras.Sequential([keras.Input((251,)), layers.Dense(353, "tanh", name="dense_1_1")], name="dense")
    inner_in = keras.Input((211,))
    x = inmost(layers.Dense(251, name="dense_1")(inner_in))
    inner = keras.Model(inner_in, layers.Dense(307, "relu", name="dense_1_2")(x), name="dense_1_1_1")
    start = keras.Input((101,))
    shared = layers.Dense(211, "sigmoid", name="shared")
    x = inner(shared(shared(layers.Dense(211, name="dense_2")(start))))
    return keras.Model(start, layers.Dense(3, name="out")(x))


CHAINS = {"vgg": vgg, "lstm": lstm, "embedding": embedding, "nested": nested}
ALL = {
    "digits": presets.digits, "normed": NORMED, "residual": residual, "unet": unet, "transformer": transformer,
    **CHAINS,
}  # fmt: skip


def grouped():
    return keras.Sequential([
        keras.Input((32, 32, 4)), keras.layers.Conv2D(16, 3, groups=4), keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(1),
    ])  # fmt: skip


def namesakes():
    """Two layers of one name, in two nested models, and one named as a row beside the keras.layers."""
    inner = keras.Sequential([keras.Input((8,)), keras.layers.Dense(300, name="d")], name="first")
    other = keras.Sequential([keras.Input((300,)), keras.layers.Dense(200, name="d")], name="second")
    return keras.Sequential([keras.Input((8,)), inner, other, keras.layers.Dense(1, name="loss")])
