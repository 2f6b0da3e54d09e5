"""Random networks and trainings, as plain data that hypothesis draws and `build` makes a model of."""

import keras
from hypothesis import strategies as st
from keras import layers

ACTIVATIONS = st.sampled_from([None, "relu", "gelu", "swish", "tanh", "elu", "leaky_relu", "softplus"])
PADDING = st.sampled_from(["same", "valid"])
FILTERS = st.integers(1, 48)


def drawn(name, **arguments):
    return st.tuples(st.just(name), st.fixed_dictionaries(arguments))


ANYWHERE = [
    drawn("BatchNormalization", center=st.booleans()),
    drawn("LayerNormalization"),
    drawn("Dropout", rate=st.sampled_from([0.1, 0.5])),
    drawn("GaussianNoise", stddev=st.just(0.1)),
    drawn("Activation", activation=ACTIVATIONS.filter(bool)),
]
KERNEL = {"kernel_size": st.integers(1, 4), "padding": PADDING, "activation": ACTIVATIONS}
ON_IMAGES = [
    drawn("Conv2D", filters=FILTERS, strides=st.integers(1, 2), use_bias=st.booleans(), **KERNEL),
    drawn("SeparableConv2D", filters=FILTERS, **KERNEL),
    drawn("DepthwiseConv2D", **KERNEL),
    drawn("Conv2DTranspose", filters=FILTERS, strides=st.integers(1, 2), **KERNEL),
    drawn("MaxPooling2D", pool_size=st.integers(1, 3)),
    drawn("AveragePooling2D", pool_size=st.integers(1, 3)),
    drawn("SpatialDropout2D", rate=st.just(0.3)),
    drawn("UpSampling2D", size=st.just(2)),
    drawn("ZeroPadding2D", padding=st.integers(1, 3)),
    drawn("PReLU"),
]
ON_SEQUENCES = [
    drawn("Conv1D", filters=FILTERS, **KERNEL),
    drawn("MaxPooling1D", pool_size=st.integers(1, 3)),
    drawn("Dense", units=FILTERS, activation=ACTIVATIONS),
    drawn("LSTM", units=FILTERS, return_sequences=st.just(True)),
    drawn("GRU", units=FILTERS, return_sequences=st.just(True)),
    drawn("MultiHeadAttention", num_heads=st.integers(1, 3), key_dim=st.integers(1, 8)),
]
ON_TABLES = [drawn("Dense", units=st.integers(1, 300), activation=ACTIVATIONS), drawn("UnitNormalization")]
SIDE, LENGTH = st.integers(6, 40), st.integers(4, 40)
KINDS = {
    "image": (st.tuples(SIDE, SIDE, st.integers(1, 4)), ON_IMAGES),
    "sequence": (st.tuples(LENGTH, st.integers(1, 16)), ON_SEQUENCES),
    "tokens": (st.tuples(LENGTH), ON_SEQUENCES),
    "table": (st.tuples(st.integers(1, 500)), ON_TABLES),
}
OPTIMIZERS = [
    drawn("SGD", momentum=st.sampled_from([0.0, 0.9]), nesterov=st.booleans()),
    drawn("Adam", amsgrad=st.booleans(), use_ema=st.booleans(), weight_decay=st.sampled_from([None, 0.01])),
    drawn("Adam", gradient_accumulation_steps=st.integers(2, 4)),
    drawn("Adam", global_clipnorm=st.just(1.0)),
    drawn("RMSprop", centered=st.booleans(), momentum=st.sampled_from([0.0, 0.9])),
    *(drawn(name) for name in ("AdamW", "Adagrad", "Adadelta", "Adamax", "Nadam", "Ftrl", "Lion", "Adafactor", "Muon")),
]
POLICIES = [None, None, None, "float64", "mixed_float16", "mixed_bfloat16", "bfloat16"]


@st.composite
def trainings(draw):
    """(what `build` takes, options of `memviz.estimate`)."""
    kind = draw(st.sampled_from(sorted(KINDS)))
    shape, choices = KINDS[kind]
    stack = draw(st.lists(st.one_of(*choices, *ANYWHERE), min_size=0, max_size=6))
    head = draw(st.sampled_from(["flatten", "average", "max"]))
    end = draw(st.sampled_from(["softmax", "sigmoid", None]))
    frozen = draw(st.sets(st.integers(0, 6), max_size=2))
    network = (kind, draw(shape), tuple(stack), head, draw(st.integers(0, 64)), end, tuple(frozen))
    name, arguments = draw(st.one_of(*OPTIMIZERS))
    options = {"batch_size": draw(st.integers(1, 40)), "dtype_policy": draw(st.sampled_from(POLICIES))}
    return network, (name, arguments), options


def build(kind, shape, stack, head, units, end, frozen):
    """The model; ValueError, from Keras, where the layers do not fit together."""
    x = start = keras.Input(shape, dtype="int32" if kind == "tokens" else None)
    if kind == "tokens":
        x = layers.Embedding(500, 16)(x)
    for number, (name, arguments) in enumerate(stack):
        layer = getattr(layers, name)(**arguments)
        layer.trainable = number not in frozen
        x = layer(x, x) if name == "MultiHeadAttention" else layer(x)
    if kind != "table":
        x = layers.Flatten()(x) if head == "flatten" else _pooled(x, head)
    if units:
        x = layers.Dense(units, "relu")(x)
    return keras.Model(start, layers.Dense(3, end)(x))


def _pooled(x, head):
    kind = "Average" if head == "average" else "Max"
    return getattr(layers, f"Global{kind}Pooling{len(x.shape) - 2}D")()(x)
