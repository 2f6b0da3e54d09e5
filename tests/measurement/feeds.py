"""Data to train on, or to fail at, as functions that travel to a process of their own. The network takes 8 values."""

import os
import signal
import sys
import time
from typing import NamedTuple

import numpy as np

BATCH = 4
CLASSES = 3


def network():
    import keras

    return keras.Sequential([keras.Input((8,)), keras.layers.Dense(CLASSES, activation="softmax")])


def arrays(count=40, dtype="float32"):
    labels = np.arange(count) % CLASSES
    return np.eye(8, dtype=dtype)[labels], labels


def dataset():
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(arrays()).cache().shuffle(40, seed=0).batch(BATCH).prefetch(2)


def unbatched():
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(arrays())


def ragged():
    import tensorflow as tf

    return tf.data.Dataset.from_tensors((tf.ragged.constant([[1.0], [1.0, 2.0]]), [0, 1]))


def strings():
    yield np.array([["a"] * 8] * BATCH), np.zeros(BATCH)


def generator():
    while True:
        yield arrays(BATCH)


def three_batches():
    for _ in range(3):
        yield arrays(BATCH)


def with_weights():
    return (*arrays(), np.ones(40, "float32"))


def frames():
    import pandas as pd

    features, labels = arrays(dtype="float64")
    return pd.DataFrame(features), pd.Series(labels)


def py_dataset():
    import keras

    class Data(keras.utils.PyDataset):
        def __len__(self):
            return 2

        def __getitem__(self, number):
            return arrays(BATCH)

    return Data()


def sized(batch_size):
    assert batch_size == BATCH
    return generator()


def ending_with_a_smaller_batch():
    return arrays(3 * BATCH + 1)


class Features(NamedTuple):
    """Of no module that the trainer knows."""

    left: np.ndarray
    right: np.ndarray


def two_inputs():
    import keras

    left, right = keras.Input((8,), name="left"), keras.Input((2,), name="right")
    joined = keras.layers.Concatenate()([left, right])
    return keras.Model([left, right], keras.layers.Dense(CLASSES, activation="softmax")(joined))


def named_tuples():
    while True:
        features, labels = arrays(BATCH)
        yield Features(features, np.ones((BATCH, 2), "float32")), labels


def wide_generator():
    while True:
        yield arrays(BATCH, "float64")


def none_for_weights():
    return (*arrays(), None)


def of_another_length():
    """The network takes sequences of any length."""
    for length in (5, 5, 9):
        yield np.ones((BATCH, length), "int32"), np.zeros((BATCH, 3), "float32")


def exiting_by_itself():
    yield from [arrays(BATCH)] * 2
    sys.exit("no clips found")


def a_broken_pipe():
    yield from [arrays(BATCH)] * 2
    raise BrokenPipeError("ffmpeg is gone")


def empty():
    return arrays(0)


def nothing():
    return None


def uneven():
    return np.zeros((8, 8)), np.zeros(7)


def only_features():
    yield np.zeros((BATCH, 8), "float32")


def too_wide():
    return np.zeros((40, 9), "float32"), np.zeros(40, "int64")


def another_batch_size():
    yield np.zeros((5, 8), "float32"), np.zeros(5, "int64")


def unknown_names():
    yield {"left": np.zeros((BATCH, 8)), "right": np.zeros((BATCH, 8))}, np.zeros(BATCH)


def one_hot():
    features, labels = arrays()
    return features, np.eye(CLASSES)[labels]


def label_outside():
    features, labels = arrays()
    labels[2 * BATCH] = CLASSES  # in the third step
    return features, labels


def raising():
    yield from [arrays(BATCH)] * 2
    raise KeyError("no such clip")


def raising_at_once():
    raise FileNotFoundError("clips.zip")


def blocking():
    yield from [arrays(BATCH)] * 2
    time.sleep(600)


def killed():
    yield from [arrays(BATCH)] * 2
    os.kill(os.getpid(), signal.SIGKILL)


def exiting():
    yield from [arrays(BATCH)] * 2
    sys.stderr.write("the last words\n")
    sys.stderr.flush()
    os._exit(3)


def forking_and_killed():
    """What it forks holds its end of the pipe open."""
    yield from [arrays(BATCH)] * 2
    if os.fork() == 0:
        time.sleep(600)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)


def leaving_files():
    import tempfile
    from pathlib import Path

    Path(tempfile.mkdtemp(), "left.bin").write_bytes(bytes(1000))
    return generator()
