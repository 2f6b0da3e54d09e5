"""What creating a weight asks of the allocator: Keras' initializers run op by op, outside any graph.

A random initializer holds three copies at once: `tf.random.stateless_uniform` and `stateless_normal` return
``raw * scale + offset`` and keep the raw values in a local until they return (stateless_random_ops.py). A recorded
build shows StatelessRandomUniformV2, Mul, AddV2, each of the weight's size, then two releases.
"""

from __future__ import annotations

from typing import Any

# Keras initializers that draw from a distribution through one of these functions.
_DRAWING = (
    "RandomUniform", "RandomNormal", "TruncatedNormal", "VarianceScaling", "GlorotUniform", "GlorotNormal",
    "HeUniform", "HeNormal", "LecunUniform", "LecunNormal",
)  # fmt: skip
_FILLING = ("Zeros", "Ones", "Constant")


def copies_while_made(initializer: Any) -> int:
    """How many copies of the weight exist at once while it is made, the weight itself included."""
    return 3 if type(initializer).__name__ in _DRAWING else 1


def is_modelled(initializer: Any) -> bool:
    """Whether what the initializer does in between is known here (None: the weight was given a value)."""
    return initializer is None or type(initializer).__name__ in _DRAWING + _FILLING
