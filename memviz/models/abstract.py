"""Building a network and its optimizer without memory: weights as handles with shape and dtype and no storage.

This is the one adapter to the private names of Keras and TensorFlow that building needs.
Checked with Keras 3.15 and TensorFlow 2.21; `tests/models/test_abstract.py` says which name moved.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from memviz.models.patching import patched

# The variables made so far in the context that asked for none of their storage; None outside of one.
_ABSTRACT: ContextVar[list[Any] | None] = ContextVar("memviz_abstract_weights", default=None)
_LARGEST_VALUE = 16_384  # elements of a buffer whose values a layer may read while it is built


@contextmanager
def abstract_weights() -> Iterator[list[Any]]:
    """Every Keras variable made inside this context, by this thread, gets a handle but no storage.

    Yields the list of these variables, in the order in which they are made; it grows meanwhile.

    Names are counted from one, as in the fresh process of a trial: the order of a graph follows from its names.
    On leaving, the random state of Python, numpy and TensorFlow and Keras' global state (name counters, dtype policy,
    seed generator) are what they were before. Other threads that build models meanwhile get real weights.
    """
    from keras.src.backend.tensorflow.core import Variable

    with _caller_state_kept(), patched(Variable, _REPLACEMENTS):
        made: list[Any] = []
        token = _ABSTRACT.set(made)
        try:
            yield made
        finally:
            _ABSTRACT.reset(token)


def building_abstractly() -> bool:
    """Whether this context makes weights without storage."""
    return _ABSTRACT.get() is not None


def is_abstract(variable: Any) -> bool:
    """Whether a Keras variable was made without storage."""
    return getattr(variable, "_memviz_abstract", False)


def initializer_of(variable: Any) -> Any:
    """The Keras initializer that an abstract variable would have been filled by; None where it was given a value."""
    return getattr(variable, "_memviz_initializer", None)


@contextmanager
def storage(variables: Iterable[Any]) -> Iterator[None]:
    """Storage for variables that were made without, of which no page is touched: it costs addresses, not memory.

    It is given back on leaving. TensorFlow keeps variables that a function was compiled with, and their storage.
    """
    import tensorflow as tf

    given = [handle for variable in variables if not (handle := variable._value).is_initialized()]
    try:
        for handle in given:
            tf.raw_ops.AssignVariableOp(resource=handle.handle, value=untouched(handle))
        yield
    finally:
        for handle in given:
            tf.raw_ops.AssignVariableOp(resource=handle.handle, value=tf.raw_ops.Empty(shape=[0], dtype=handle.dtype))


def untouched(like: Any) -> Any:
    """A tensor of the same shape and dtype, of which no page is touched."""
    import tensorflow as tf

    return tf.raw_ops.Empty(shape=like.shape, dtype=like.dtype)


def _initialize(original: Any) -> Any:
    """For Keras' `Variable._initialize`: a handle in place of a value."""

    def initialize(variable: Any, value: Any) -> None:
        made = _ABSTRACT.get()
        if made is None:
            original(variable, value)
            return
        from tensorflow.python.ops.resource_variable_ops import UninitializedVariable

        # A callable is an initializer that was not run yet: Keras knows the shape already. Else a value was given.
        shape = variable._shape if callable(value) else value.shape
        told = {"dtype": variable._dtype, "trainable": variable.trainable, "name": variable.name}
        variable._value = UninitializedVariable(shape=shape, **told)
        variable._memviz_abstract = True
        variable._memviz_given = None if callable(value) else value  # such as an optimizer's learning rate
        made.append(variable)

    return initialize


def _initialize_with_initializer(original: Any) -> Any:
    """For Keras' method of this name, which hands the initializer on as a function without arguments."""

    def initialize(variable: Any, initializer: Any) -> None:
        if building_abstractly():
            variable._memviz_initializer = initializer
        original(variable, initializer)

    return initialize


def _direct_assign(original: Any) -> Any:
    """For Keras' `Variable._direct_assign`: pretrained values loaded into an abstract weight need no room.

    Assignments in a graph are part of what is traced and stay.
    """

    def assign(variable: Any, value: Any) -> None:
        import tensorflow as tf

        if not (building_abstractly() and is_abstract(variable) and tf.executing_eagerly()):
            original(variable, value)

    return assign


def _value(original: Any) -> Any:
    """For Keras' property `Variable.value`: a small buffer that a layer reads while it is built, such as the mean of a
    Normalization, gets its storage then.
    """

    def value(variable: Any) -> Any:
        import tensorflow as tf

        initializer, given = initializer_of(variable), getattr(variable, "_memviz_given", None)
        if is_abstract(variable) and building_abstractly() and tf.executing_eagerly():
            small = not variable.trainable and math.prod(variable._shape) <= _LARGEST_VALUE
            if small and not (initializer is given is None) and not variable._value.is_initialized():
                value = initializer(variable._shape, dtype=variable._dtype) if given is None else given
                variable._value.assign(value)
        return original.fget(variable)

    return property(value)


_REPLACEMENTS = {
    "_initialize": _initialize,
    "_initialize_with_initializer": _initialize_with_initializer,
    "_direct_assign": _direct_assign,
    "value": _value,
}


@contextmanager
def _caller_state_kept() -> Iterator[None]:
    """The random states and this thread's Keras globals are restored on leaving, whatever a user's function did."""
    import numpy as np
    from keras.src.backend.common import global_state
    from tensorflow.python.eager import context

    python_random, numpy_random = random.getstate(), np.random.get_state()
    tf_context = context.context()
    seed, generator = tf_context._seed, getattr(tf_context, "_rng", None)
    drawn = generator and generator.getstate()
    before = dict(vars(global_state.GLOBAL_STATE_TRACKER))
    for counted in ("object_name_uids", "uninitialized_variables"):  # of the caller, and not to be added to
        vars(global_state.GLOBAL_STATE_TRACKER).pop(counted, None)
    try:
        yield
    finally:
        random.setstate(python_random)
        np.random.set_state(numpy_random)
        tf_context._seed = seed
        if generator is not None:
            generator.setstate(drawn)
            tf_context._rng = generator
        now = vars(global_state.GLOBAL_STATE_TRACKER)  # another object where `clear_session` was called meanwhile
        now.clear()
        now.update(before)
