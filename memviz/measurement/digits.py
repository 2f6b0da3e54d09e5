"""Real input for a trial: scikit-learn's handwritten digits, made to fit the network, one batch at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

BRIGHTEST = 16  # of scikit-learn's images: 8 x 8 pixels, values 0 to 16
_ALIGNMENT_BYTES = 64  # TensorFlow takes over an array that is aligned like this, and copies any other


class Batches:
    """One numpy batch per step, in the structure, shapes and dtypes of the given TensorSpecs.

    A single input of the shape (batch, height, width, channels) gets the digits, in a fixed random order, each pixel
    the nearest of the 8 x 8, from 0 to 1 (0 to 255 for whole numbers), the same in every channel. Any other input gets
    random values from a fixed seed: from 0 to 1, or 0 and 1 for whole numbers, which every vocabulary has.

    Labels, by their shape: class numbers are the digit modulo the number of classes; (batch, 1) is 1 for digits from
    5 on, else 0; (batch, n) is one-hot, the digit modulo n; an image is the digit's own image; else digit / 9.
    Sample weights are 1 for the digits 0 to 4, and 2 for the others.
    """

    def __init__(self, features: Any, labels: Any, classes: Sequence[int], weights: Any = None) -> None:
        """features, labels: structures of TensorSpecs; weights: one, or None. classes: per label, the last size of its
        output.
        """
        self._features, self._labels, self._classes, self._weights = features, labels, classes, weights
        self._random = np.random.default_rng(0)
        self._images: np.ndarray | None = None
        self._targets = self._random.integers(0, 10, size=1797)
        self.description = "random values from a fixed seed"
        if getattr(getattr(features, "shape", None), "rank", None) == 4:
            from sklearn.datasets import load_digits

            digits, order = load_digits(), self._random.permutation(len(self._targets))
            self._images = (digits.images[order] / BRIGHTEST).astype(np.float32)
            self._targets = digits.target[order]
            size = " x ".join(str(n) for n in features.shape[1:])
            self.description = f"scikit-learn's {len(self._targets):,} handwritten digits, resized from 8 x 8 to {size}"

    def batch(self, step: int) -> tuple[Any, ...]:
        """(features, labels), or with sample weights, of a step, counted from 0; after the last digit comes the first
        again.
        """
        size = keras.tree.flatten(self._features)[0].shape[0]
        chosen = np.arange(step * size, (step + 1) * size) % len(self._targets)
        features = keras.tree.map_structure(lambda spec: self._feature(spec, chosen), self._features)
        specs = keras.tree.flatten(self._labels)
        labels = [self._label(spec, n, chosen) for spec, n in zip(specs, self._classes, strict=True)]
        batch = features, keras.tree.pack_sequence_as(self._labels, labels)
        if self._weights is None:
            return batch
        weights = _empty(self._weights)
        weights[...] = 1 + (self._targets[chosen] >= 5)
        return *batch, weights

    def _feature(self, spec: Any, chosen: np.ndarray) -> np.ndarray:
        out = _empty(spec)
        whole = np.issubdtype(out.dtype, np.integer)
        if self._images is not None:
            pixels = resized(self._images[chosen], *out.shape[1:3])[..., None]
            out[...] = pixels * 255 if whole else pixels
        elif out.dtype == bool or whole:
            out[...] = self._random.integers(0, 2, size=out.shape)
        else:
            out[...] = self._random.random(out.shape, dtype=np.float32)
        return out

    def _label(self, spec: Any, classes: int, chosen: np.ndarray) -> np.ndarray:
        out, digits = _empty(spec), self._targets[chosen]
        per_example = digits.reshape(-1, *[1] * (out.ndim - 1))
        if np.issubdtype(out.dtype, np.integer):
            out[...] = per_example % classes
        elif out.ndim == 2 and out.shape[1] == 1:
            out[...] = per_example >= 5
        elif out.ndim == 2:
            out[...] = per_example % out.shape[1] == np.arange(out.shape[1])
        elif out.ndim == 4 and self._images is not None:
            out[...] = resized(self._images[chosen], *out.shape[1:3])[..., None]
        else:
            out[...] = per_example / 9
        return out


def aligned(shape: Sequence[int], dtype: Any) -> np.ndarray:
    """An empty array that TensorFlow can take over without a copy."""
    dtype = np.dtype(dtype)
    nbytes = math.prod(shape) * dtype.itemsize
    raw = np.empty(nbytes + _ALIGNMENT_BYTES, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT_BYTES
    return raw[start : start + nbytes].view(dtype).reshape(shape)


def _empty(spec: Any) -> np.ndarray:
    return aligned(tuple(spec.shape), spec.dtype.as_numpy_dtype)


def resized(images: np.ndarray, height: int, width: int) -> np.ndarray:
    """Images (count, rows, columns) as (count, height, width): for each pixel the nearest one."""
    rows = np.arange(height) * images.shape[1] // height
    columns = np.arange(width) * images.shape[2] // width
    return images[:, rows[:, None], columns]
