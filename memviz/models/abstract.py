"""Building a network and its optimizer without memory: weights as handles with shape and dtype and no storage.

This is the one adapter to the private names of Keras and TensorFlow that building needs.
Checked with Keras 3.15 and TensorFlow 2.21; `tests/models/test_abstract.py` says which name moved.
"""

from __future__ import annotations

import copy
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_ABSTRACT: ContextVar[bool] = ContextVar("memviz_abstract_weights", default=False)
_patch_lock = threading.Lock()
_patch_users = 0
_original_initialize: Any = None


@contextmanager
def abstract_weights() -> Iterator[None]:
    """Every Keras variable made inside this context, by this thread, gets a handle but no storage.

    On leaving, Python's random state and Keras' global state (name counters, dtype policy, seed generator) are what
    they were before. Other threads that build models meanwhile get real weights.
    """
    with _keras_state_kept():
        _install_patch()
        token = _ABSTRACT.set(True)
        try:
            yield
        finally:
            _ABSTRACT.reset(token)
            _remove_patch()


def is_abstract(variable: Any) -> bool:
    """Whether a Keras variable was made without storage."""
    return getattr(variable, "_memviz_abstract", False)


def _variable_class() -> Any:
    from keras.src.backend.tensorflow.core import Variable

    return Variable


def _install_patch() -> None:
    global _patch_users, _original_initialize
    with _patch_lock:
        if _patch_users == 0:
            cls = _variable_class()
            _original_initialize = cls._initialize
            cls._initialize = _initialize
        _patch_users += 1


def _remove_patch() -> None:
    global _patch_users
    with _patch_lock:
        _patch_users -= 1
        if _patch_users == 0:
            _variable_class()._initialize = _original_initialize


def _initialize(variable: Any, value: Any) -> None:
    """Stands in for Keras' `Variable._initialize`; acts only in the context that asked for it."""
    if not _ABSTRACT.get():
        _original_initialize(variable, value)
        return
    from tensorflow.python.ops.resource_variable_ops import UninitializedVariable

    # A callable is an initializer that was not run yet: Keras knows the shape already. Else a value was given.
    shape = variable._shape if callable(value) else value.shape
    variable._value = UninitializedVariable(
        shape=shape, dtype=variable._dtype, trainable=variable.trainable, name=variable.name
    )
    variable._memviz_abstract = True


@contextmanager
def _keras_state_kept() -> Iterator[None]:
    """Python's random state and this thread's Keras globals are restored on leaving."""
    from keras.src.backend.common.global_state import GLOBAL_STATE_TRACKER

    random_state = random.getstate()
    names = GLOBAL_STATE_TRACKER.__dict__
    saved = dict(names)
    counters = copy.copy(saved.get("object_name_uids"))  # changed in place by Keras
    try:
        yield
    finally:
        random.setstate(random_state)
        names.clear()
        names.update(saved)
        if counters is not None:
            saved["object_name_uids"].clear()
            saved["object_name_uids"].update(counters)
