"""What creating a weight asks of the allocator: Keras' initializers run op by op, outside any graph.

A random initializer holds three copies at once: `tf.random.stateless_uniform` and `stateless_normal` return
``raw * scale + offset`` and keep the raw values in a local until they return (stateless_random_ops.py). The recipes are
recorded builds: an allocation by name (with its bytes, unless it is as large as the weight), ``-name`` for its release.
"""

from __future__ import annotations

import math
from typing import Any

from memviz.units import tensor_bytes

WEIGHT = "weight"  # in a recipe: the storage of the variable itself
NUMBER = "number"  # the same of a Python number, such as a learning rate: on the CPU its memory is numpy's

_DRAWN = (
    "list 8", "cast 16", "-list", "rest 16", "seed 8", "-rest", "-cast", "algorithm 8", "key 8", "counter 16", "raw",
    "range 4", "scaled", "-range", WEIGHT, "-scaled", "-algorithm", "-key", "-counter", "-raw", "-seed",
)  # fmt: skip
_FILLED = ("shape 8", WEIGHT, "-shape")
_TIMES_ONES = ("shape 8", "ones", "-shape", WEIGHT, "-ones")  # Keras' constant_initializers.py: value * ones
_RECIPES = dict.fromkeys(
    ("RandomUniform", "RandomNormal", "TruncatedNormal", "VarianceScaling", "GlorotUniform", "GlorotNormal",
     "HeUniform", "HeNormal", "LecunUniform", "LecunNormal"), _DRAWN,
) | dict.fromkeys(("Zeros", "Ones"), _FILLED) | {"Constant": _TIMES_ONES}  # fmt: skip

_ORTHOGONAL = ("Orthogonal", "OrthogonalInitializer")


def recipe(initializer: Any, shape: tuple[int, ...], dtype: str) -> tuple[str, ...]:
    """The allocations and releases, in order, for a weight of this shape; one without a recipe is given its value.

    Raises ValueError for a weight that the initializer cannot make.
    """
    name = type(initializer).__name__
    if initializer is None and not shape and dtype == "float32":  # others are cast, and then TensorFlow's
        return (NUMBER,)
    if name in ("Zeros", "Ones") and not shape:
        return (WEIGHT,)  # the shape of a scalar has no elements
    return _orthogonal(shape, dtype) if name in _ORTHOGONAL else _RECIPES.get(name, (WEIGHT,))


def is_modelled(initializer: Any) -> bool:
    """Whether all that the initializer does is known here."""
    return initializer is None or type(initializer).__name__ in {*_RECIPES, *_ORTHOGONAL}


def _orthogonal(shape: tuple[int, ...], dtype: str) -> tuple[str, ...]:
    """Keras' random_initializers.py: the Q of a random matrix, its columns' signs made uniform; turned where wider."""
    if dtype == "bfloat16":
        raise ValueError(
            "An orthogonal initializer, as of an LSTM or GRU, makes no bfloat16 weights: TensorFlow has no QR "
            "decomposition of bfloat16. Use dtype_policy='mixed_bfloat16', or another recurrent_initializer."
        )
    rows, columns = math.prod(shape[:-1]), shape[-1]
    square, line = (tensor_bytes((min(rows, columns),) * n, dtype) for n in (2, 1))
    last, turned = ("turned", ("turned", "-signed")) if rows < columns else ("signed", ())
    return (
        *("normal" if step == WEIGHT else step for step in _DRAWN), "q", f"r {square}", f"diagonal {line}",
        f"sign {line}", "signed", "-sign", "-q", *turned, WEIGHT, "-normal", f"-{last}", "-r", "-diagonal",
    )  # fmt: skip
