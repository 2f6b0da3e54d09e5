"""The user's own data at the trainer's end: taken from the feeder batch by batch, and held against the network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from memviz.measurement.digits import aligned
from memviz.models.training import CLASS_LABEL_DTYPE, batch_specs, ends
from memviz.setup import TrainingSetup
from memviz.units import format_bytes

_WAITS_SECONDS = 1.0  # before it is said, again and again: the parent looks then whether the feeder lives


class FeederGoneError(Exception):
    """What feeds the data has ended without a word."""


class FedBatches:
    """One batch per step, as the data has it: what differs from what the network takes is refused, or said.

    say: is called with a kind of message: a "note" and its text, "waiting" for a batch, or "fed" with one.
    """

    def __init__(self, connection: Connection, model: Any, setup: TrainingSetup, say: Callable[..., None]) -> None:
        self._connection, self._say = connection, say
        self._features, self._labels = batch_specs(model, setup.batch_size, setup.inputs)[:2]
        self._weighted = setup.sample_weight
        taken, outputs = ends(model, setup.inputs)
        self._names = [tensor.name for tensor in keras.tree.flatten(taken)]
        self._classes = [output.shape[-1] for output in keras.tree.flatten(outputs)]
        ignored = any(getattr(loss, "ignore_class", None) is not None for loss in keras.tree.flatten(model.loss))
        self._classes_matter = type(model).train_step is keras.Model.train_step and not ignored
        self._known_shapes = setup.inputs is None  # else they are one example of what the model takes
        self._batch_size, self._another_size, self._ended = setup.batch_size, False, False
        self.description = "the given data"

    def batch(self, step: int) -> Any:
        """(features, labels), or with sample weights, of a step, counted from 0; None where the data has ended.

        Raises ValueError where the data does not suit the network, or raised something itself; `FeederGoneError`.
        """
        if self._ended:
            return None
        while (message := self._received())[0] == "note":
            self._say("note", text=f"The data {message[1]}")
        kind, told = message
        if kind == "failed":
            raise ValueError(f"The data {told}")
        if kind == "ended":
            self._ended = True
            self._say("note", text=f"The data ended after {step} steps; a generator cannot begin again.")
            return None
        features, *others = keras.tree.map_structure(_aligned_copy, told)
        features = self._in_the_models_structure(features)
        self._check_features(features, step)
        self._check_labels(others[0], step)
        if step == 0 and (weighted := len(others) > 1) != self._weighted:
            has = "has sample weights" if weighted else "has no sample weights"
            self._say(
                "note", text=f"The data {has}; the estimate of this training is that of sample_weight={weighted}."
            )
        return (features, *others)

    def _received(self) -> tuple[str, Any]:
        while not self._connection.poll(_WAITS_SECONDS):
            self._say("waiting")
        try:
            message = self._connection.recv()
        except (EOFError, OSError):  # at the end of a batch, or in the middle of one
            raise FeederGoneError from None
        self._say("fed")
        return message

    def _in_the_models_structure(self, features: Any) -> Any:
        by_name = isinstance(features, Mapping) and not isinstance(self._features, Mapping)
        if by_name and set(features) == set(self._names):
            features = keras.tree.pack_sequence_as(self._features, [features[name] for name in self._names])
        if (given := _paths(features)) != (wanted := _paths(self._features)):
            raise ValueError(f"The data's features are {given}, the network takes {wanted}.")
        return features

    def _check_features(self, features: Any, step: int) -> None:
        for spec, array in zip(keras.tree.flatten(self._features), keras.tree.flatten(features), strict=True):
            wanted = tuple(spec.shape)[1:]
            if not array.ndim or array.shape == wanted:
                raise ValueError(
                    f"The data's features are {wanted}, single examples; batch it, as by .batch({self._batch_size})."
                )
            if self._known_shapes and _without_ones(array.shape[1:]) != _without_ones(wanted):
                raise ValueError(f"The data's features are {array.shape[1:]} per example, the network takes {wanted}.")
            if step == 0 and len(array) != self._batch_size:
                raise ValueError(
                    f"The data's batches hold {len(array)} examples, batch_size is {self._batch_size}; give "
                    f"batch_size={len(array)}, or batch the data anew."
                )
            if len(array) != self._batch_size and not self._another_size:
                self._another_size = True
                self._say("note", text=f"Step {step + 1} has {len(array)} examples, and a graph of its own.")
            if step == 0 and array.dtype == np.float64 and (usual := spec.dtype.as_numpy_dtype) != np.float64:
                few = array.size * np.dtype(usual).itemsize
                kept = f"{format_bytes(array.nbytes)} per batch, as {spec.dtype.name} {format_bytes(few)}"
                self._say("note", text=f"The data's features are float64 and stay so on the device: {kept}.")

    def _check_labels(self, labels: Any, step: int) -> None:
        if not self._classes_matter or _paths(labels) != _paths(self._labels):
            return  # a step of the user's own may take anything, and Keras finds outputs by name
        specs, arrays = keras.tree.flatten(self._labels), keras.tree.flatten(labels)
        for spec, array, classes in zip(specs, arrays, self._classes, strict=True):
            if spec.dtype.name == CLASS_LABEL_DTYPE and classes > 1 and array.shape[1:] == (*spec.shape[1:], classes):
                raise ValueError(
                    f"The data's labels are one-hot, {array.shape[1:]} per example, and the loss takes class numbers; "
                    "give loss='categorical_crossentropy', or class numbers."
                )
            if spec.dtype.name == CLASS_LABEL_DTYPE and (wrong := array[(array < 0) | (array >= classes)]).size:
                raise ValueError(
                    f"The label {wrong[0]} of step {step + 1} is none of the network's {classes} classes, which "
                    f"are 0 to {classes - 1}."
                )


def _aligned_copy(array: np.ndarray) -> np.ndarray:
    copy = aligned(array.shape, array.dtype)
    copy[...] = array
    return copy


def specs_of(batch: Any) -> Any:
    """TensorSpecs of a batch of arrays, in its structure."""
    return keras.tree.map_structure(lambda array: tf.TensorSpec(array.shape, array.dtype), batch)


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Keras adds or takes away a last size of 1 where that helps."""
    while shape and shape[-1] == 1:
        shape = shape[:-1]
    return shape


def _paths(features: Any) -> str:
    names = ["/".join(map(str, path)) for path, _ in keras.tree.flatten_with_path(features)]
    return ", ".join(map(repr, names)) if names != [""] else "one tensor"
