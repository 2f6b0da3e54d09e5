"""Changes of a network that need less memory, made in a copy of any Functional or Sequential model."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import keras

from memviz.models.network import global_policy, in_a_line

# Layers that belong to the block of the convolution before them.
_OF_A_BLOCK = (keras.layers.BatchNormalization, keras.layers.Activation, keras.layers.ReLU, keras.layers.LeakyReLU)
_CONVOLUTION = re.compile(r"(Separable|Depthwise)?Conv[123]D")


def edited(model: keras.Model, edits: Iterable[str]) -> keras.Model:
    """A new model, with some layers swapped for others; the one given stays as it is. edits: names of `EDITS`.

    Raises ValueError where a model is neither Functional nor Sequential, or has nothing that the edit would change.
    """
    for name in edits:
        try:
            swaps = EDITS[name](model)
            if not swaps:
                raise ValueError(f"nothing in {model.name!r} is changed by it")
            with global_policy(model.dtype_policy.name):
                model = keras.models.clone_model(model, clone_function=partial(_copied, swaps=swaps))
        except Exception as error:
            raise ValueError(f"The edit {name!r} is not possible: {in_a_line(error)}") from error
    return model


def _copied(layer: Any, swaps: Mapping[str, Callable[[], Any]]) -> Any:
    return swaps[layer.name]() if layer.name in swaps else layer.__class__.from_config(layer.get_config())


def _average_heads(model: keras.Model) -> dict[str, Callable[[], Any]]:
    """Global average pooling in place of every Flatten of an image, sequence or volume."""
    flattened = [each for each in model.layers if isinstance(each, keras.layers.Flatten) and len(each.input.shape) > 2]
    classes = {each.name: f"GlobalAveragePooling{len(each.input.shape) - 2}D" for each in flattened}
    return {name: partial(getattr(keras.layers, kind), name=name) for name, kind in classes.items()}


def _strided_first(model: keras.Model) -> dict[str, Callable[[], Any]]:
    """A stride of 2 in the first convolution that has none."""
    first = next((each for each in _convolutions(model) if set(each.strides) == {1}), None)
    return {} if first is None else {first.name: lambda: _with(first, strides=[2] * len(first.strides))}


def _halved_dense(model: keras.Model) -> dict[str, Callable[[], Any]]:
    """Half the units in the Dense layer with the most parameters that is no output."""
    outputs = {tensor._keras_history.operation.name for tensor in keras.tree.flatten(model.outputs)}
    dense = [each for each in model.layers if isinstance(each, keras.layers.Dense) and each.name not in outputs]
    largest = max((each for each in dense if each.units > 1), key=lambda each: each.count_params(), default=None)
    return {} if largest is None else {largest.name: lambda: _with(largest, units=largest.units // 2)}


def _pooled_first(model: keras.Model) -> dict[str, Callable[[], Any]]:
    """Max pooling by 2 after the first convolution that has no pooling."""
    first = next((each for each in _convolutions(model) if not _is_pooled(each)), None)
    if first is None:
        return {}
    pooling = getattr(keras.layers, f"MaxPooling{len(first.output.shape) - 2}D")
    return {first.name: lambda: keras.Sequential([_with(first), pooling()], name=f"{first.name}_pooled")}


EDITS = {
    "global_average": _average_heads,
    "stride": _strided_first,
    "half_dense": _halved_dense,
    "pool_first": _pooled_first,
}


def _convolutions(model: keras.Model) -> list[Any]:
    return [each for each in model.layers if _CONVOLUTION.fullmatch(type(each).__name__)]


def _is_pooled(layer: Any) -> bool:
    """Whether what reads a convolution's block is a pooling, and nothing else."""
    readers = [node.operation for node in layer._outbound_nodes]
    while len(readers) == 1 and isinstance(readers[0], _OF_A_BLOCK):
        readers = [node.operation for node in readers[0]._outbound_nodes]
    return bool(readers) and all("Pooling" in type(each).__name__ for each in readers)


def _with(layer: Any, **changed: Any) -> Any:
    return layer.__class__.from_config(layer.get_config() | changed)
