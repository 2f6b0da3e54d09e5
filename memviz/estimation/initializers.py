"""What creating a weight asks of the allocator: Keras' initializers run op by op, outside any graph.

A random initializer holds three copies at once: `tf.random.stateless_uniform` and `stateless_normal` return
``raw * scale + offset`` and keep the raw values in a local until they return (stateless_random_ops.py). The recipes are
recorded builds: an allocation by name (with its bytes, unless it is as large as the weight), ``-name`` for its release.
"""

from __future__ import annotations

from typing import Any

WEIGHT = "weight"  # in a recipe: the storage of the variable itself

_DRAWN = (
    "seed 8", "algorithm 8", "key 8", "counter 16", "raw", "range 4", "scaled", "-range", WEIGHT, "-scaled",
    "-algorithm", "-key", "-counter", "-raw", "-seed",
)  # fmt: skip
_FILLED = ("shape 8", WEIGHT, "-shape")
_RECIPES = dict.fromkeys(
    ("RandomUniform", "RandomNormal", "TruncatedNormal", "VarianceScaling", "GlorotUniform", "GlorotNormal",
     "HeUniform", "HeNormal", "LecunUniform", "LecunNormal"), _DRAWN,
) | dict.fromkeys(("Zeros", "Ones", "Constant"), _FILLED)  # fmt: skip


def recipe(initializer: Any) -> tuple[str, ...]:
    """The allocations and releases, in order; None: the variable was given a value."""
    return _RECIPES.get(type(initializer).__name__, (WEIGHT,))


def is_modelled(initializer: Any) -> bool:
    """Whether all that the initializer does is known here."""
    return initializer is None or type(initializer).__name__ in _RECIPES
