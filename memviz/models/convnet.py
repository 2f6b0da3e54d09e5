"""The explorer's network as plain data: convolution blocks, a head, dense layers, an output.

`ConvNet.plan` knows every layer's shapes and parameter count without Keras, and `ConvNet.build` makes the Keras
layers from that same plan, one to one; a test holds the two equal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from memviz.setup import DTYPE_POLICIES, unknown_name, whole_number
from memviz.units import shape_text

if TYPE_CHECKING:
    import keras

ACTIVATIONS = ("relu", "leaky_relu", "elu", "gelu", "silu", "tanh", "sigmoid", "softmax", "linear")
PADDINGS = ("valid", "same")
POOLINGS = (None, "max", "average")
HEADS = ("flatten", "global_average", "global_max")

_COUNTS = ("filters", "kernel", "strides", "pool_size", "outputs")
_CHOICES: dict[str, tuple[str | None, ...]] = {
    "padding": PADDINGS, "pooling": POOLINGS, "head": HEADS, "dtype_policy": (None, *DTYPE_POLICIES),
    "activation": ACTIVATIONS, "dense_activation": ACTIVATIONS, "output_activation": ACTIVATIONS,
}  # fmt: skip
_KERAS_CLASSES = {
    "max": "MaxPooling2D", "average": "AveragePooling2D",
    "flatten": "Flatten", "global_average": "GlobalAveragePooling2D", "global_max": "GlobalMaxPooling2D",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ConvBlock:
    """One convolution and what follows it: Conv2D, optional BatchNormalization, activation, pooling, dropout.

    filters: output channels. kernel, strides, pool_size: in pixels, the same for height and width.
    dropout: the share of values set to zero, from 0 (no layer) to below 1.
    """

    filters: int
    kernel: int = 3
    strides: int = 1
    padding: str = "valid"
    activation: str = "relu"
    batch_norm: bool = False
    pooling: str | None = None
    pool_size: int = 2
    dropout: float = 0.0

    def __post_init__(self) -> None:
        _check(self)
        if not isinstance(self.dropout, int | float) or not 0 <= self.dropout < 1:
            raise ValueError(f"dropout={self.dropout!r} is not possible; it is a share from 0 to below 1.")


@dataclass(frozen=True)
class LayerPlan:
    """One Keras layer to be, or of a model: its name, class, arguments, shapes of one example, and weights by shape.

    input_shape, output_shape: empty where there are several, or none is known before a batch comes.
    """

    name: str
    keras_class: str
    arguments: dict[str, Any]
    output_shape: tuple[int, ...]
    parameter_shapes: tuple[tuple[int, ...], ...] = ()  # trainable
    buffer_shapes: tuple[tuple[int, ...], ...] = ()  # not trainable
    input_shape: tuple[int, ...] = ()

    @property
    def parameters(self) -> int:
        """Trainable values, in elements."""
        return sum(math.prod(shape) for shape in self.parameter_shapes)

    @property
    def formula(self) -> str:
        """How the largest weight comes about, for people: ``6,019,376 x 128`` (empty without weights)."""
        largest = max(self.parameter_shapes, key=math.prod, default=())
        return shape_text(largest)


@dataclass(frozen=True, kw_only=True)
class ConvNet:
    """A convolutional network as data. Immutable; use `dataclasses.replace` to change it.

    input_shape: (height, width, channels) of one example. dense: units of each hidden dense layer. outputs: units of
    the last layer. dtype_policy: a Keras policy's name, None for Keras' default.

    Raises ValueError where a value is not possible or a kernel or pool is larger than what it is applied to.
    """

    input_shape: tuple[int, int, int]
    blocks: tuple[ConvBlock, ...] = ()
    head: str = "flatten"
    dense: tuple[int, ...] = (128,)
    dense_activation: str = "relu"
    outputs: int = 1
    output_activation: str = "sigmoid"
    dtype_policy: str | None = None
    name: str = "convnet"

    def __post_init__(self) -> None:
        for name in ("input_shape", "blocks", "dense"):
            if not isinstance(getattr(self, name), tuple | list):
                raise TypeError(f"{name} is a tuple, not {getattr(self, name)!r}.")
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if len(self.input_shape) != 3:
            raise ValueError(f"input_shape={self.input_shape!r} is not possible; it is (height, width, channels).")
        for name, value in zip(("height", "width", "channels"), self.input_shape, strict=True):
            whole_number(f"input {name}", value)
        for block in self.blocks:
            if not isinstance(block, ConvBlock):
                raise TypeError(f"blocks holds ConvBlock(filters=...) only, not {block!r}.")
        for units in self.dense:
            whole_number("dense units", units)
        _check(self)
        _ = self.plan  # a kernel that does not fit is refused here

    @cached_property
    def plan(self) -> tuple[LayerPlan, ...]:
        """Every layer after the input, in order."""
        layers: list[LayerPlan] = []
        shape: tuple[int, ...] = self.input_shape
        for number, block in enumerate(self.blocks, start=1):
            layers += _plan_block(block, number, shape)
            shape = layers[-1].output_shape
        flat = self.head == "flatten"
        features = math.prod(shape) if flat else shape[-1]
        layers.append(LayerPlan("flatten" if flat else "global_pool", _KERAS_CLASSES[self.head], {}, (features,)))
        hidden = [(f"dense{number}", units, self.dense_activation) for number, units in enumerate(self.dense, start=1)]
        for name, units, activation in (*hidden, ("output", self.outputs, self.output_activation)):
            arguments = {"units": units, "activation": activation}
            layers.append(LayerPlan(name, "Dense", arguments, (units,), ((features, units), (units,))))
            features = units
        shapes = [self.input_shape, *(layer.output_shape for layer in layers)]
        return tuple(replace(layer, input_shape=shape) for layer, shape in zip(layers, shapes, strict=False))

    @property
    def parameters(self) -> int:
        """Trainable values, in elements."""
        return sum(layer.parameters for layer in self.plan)

    def build(self) -> keras.Model:
        """The Keras model (not compiled). Its weights are allocated unless built abstractly."""
        import keras

        policy = {} if self.dtype_policy is None else {"dtype": self.dtype_policy}
        model_input = keras.Input(self.input_shape, name="image")
        x = model_input
        for layer in self.plan:
            x = getattr(keras.layers, layer.keras_class)(name=layer.name, **layer.arguments, **policy)(x)
        return keras.Model(model_input, x, name=self.name)


def _plan_block(block: ConvBlock, number: int, shape: tuple[int, ...]) -> list[LayerPlan]:
    """The layers of one block applied to ``shape`` (height, width, channels)."""
    size = _slide(f"conv{number}", shape[:2], block.kernel, block.strides, block.padding)
    out = (*size, block.filters)
    kernel = (block.kernel, block.kernel, shape[2], block.filters)
    # With batch norm the activation comes after it, as in every published network; the bias would be lost in the norm.
    convolution = {
        "filters": block.filters, "kernel_size": block.kernel, "strides": block.strides, "padding": block.padding,
        "activation": None if block.batch_norm else block.activation, "use_bias": not block.batch_norm,
    }  # fmt: skip
    weights = (kernel,) if block.batch_norm else (kernel, (block.filters,))
    layers = [LayerPlan(f"conv{number}", "Conv2D", convolution, out, weights)]
    if block.batch_norm:
        pair = ((block.filters,), (block.filters,))
        layers.append(LayerPlan(f"norm{number}", "BatchNormalization", {}, out, pair, pair))
        layers.append(LayerPlan(f"activation{number}", "Activation", {"activation": block.activation}, out))
    if block.pooling:
        out = (*_slide(f"pool{number}", size, block.pool_size, block.pool_size, "valid"), block.filters)
        arguments = {"pool_size": block.pool_size}
        layers.append(LayerPlan(f"pool{number}", _KERAS_CLASSES[block.pooling], arguments, out))
    if block.dropout:
        layers.append(LayerPlan(f"dropout{number}", "Dropout", {"rate": block.dropout}, out, (), ((2,),)))
    return layers


def _slide(layer: str, size: tuple[int, ...], window: int, stride: int, padding: str) -> tuple[int, ...]:
    """Output (height, width) of a window sliding over ``size`` (height, width).

    Source: keras.io, Conv2D: ceil(size / stride) for "same", floor((size - window) / stride) + 1 for "valid".
    """
    if padding == "same":
        return tuple(-(-n // stride) for n in size)
    for side, n in zip(("height", "width"), size, strict=True):
        if window > n:
            raise ValueError(
                f"{layer}: a window of {window} does not fit into a {side} of {n}; use a window of at most {n}, "
                'padding="same", or less pooling before it.'
            )
    return tuple((n - window) // stride + 1 for n in size)


def _check(record: ConvBlock | ConvNet) -> None:
    for name, value in vars(record).items():
        if name in _COUNTS:
            whole_number(name, value)
        if name in _CHOICES and value not in _CHOICES[name]:
            raise ValueError(unknown_name(name, value, map(str, _CHOICES[name])))
