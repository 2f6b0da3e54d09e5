"""Functions that build a network, or fail at it in one of the ways a user's function can."""

import os
import resource
import signal
import sys
import time
from pathlib import Path

import numpy as np
import psutil

from memviz import presets


def wide_dense():
    """Building takes three times the 8 MiB of its kernel."""
    import keras

    return keras.Sequential([keras.Input((1024,)), keras.layers.Dense(2048), keras.layers.Dense(1)])


def growing():
    """Step n takes n x 16 MiB: the first fits where a later one does not."""
    import keras
    import tensorflow as tf

    class Growing(keras.layers.Layer):
        def build(self, shape):
            self.calls = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False)

        def call(self, x):
            self.calls.assign_add(1)
            return x + tf.reduce_max(tf.random.uniform([self.calls.value * 4 * 2**20]))

    x = keras.Input((4,))
    return keras.Model(x, Growing()(keras.layers.Dense(1)(x)))


def subclassed():
    """Takes {"words": (batch, any)} and says so nowhere."""
    import keras

    class Subclassed(keras.Model):
        def __init__(self):
            super().__init__()
            self.embedding, self.last = keras.layers.Embedding(300, 80), keras.layers.Dense(3)

        def call(self, x):
            return self.last(keras.ops.mean(self.embedding(x["words"]), axis=1))

    return Subclassed()


def any_length():
    import keras

    return keras.Sequential(
        [keras.layers.Embedding(300, 8), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(3)]
    )


def wide_input():
    import keras

    return keras.Sequential([keras.Input((100_000,)), keras.layers.Dense(1)])


def slow_to_build():
    time.sleep(600)


def slow_to_train():
    """One TensorFlow operation of every step runs for minutes."""
    import keras
    import tensorflow as tf

    class Slow(keras.layers.Layer):
        def call(self, x):
            big = tf.random.uniform([1500, 1500]) / 1500
            for _ in range(10_000):
                big = tf.matmul(big, big)
            return x + tf.reduce_max(big)

    x = keras.Input((4,))
    return keras.Model(x, Slow()(keras.layers.Dense(1)(x)))


def flooding():
    sys.stdout.write("x" * 3_000_000)
    sys.stderr.write("y" * 3_000_000)
    sys.stdout.flush()
    return presets.digits.build()


def aborting():
    sys.stderr.write("the last words\n")
    os.abort()


def exiting():
    os._exit(7)


def _fork():
    """A process that outlives its parent's work, and notes its number."""
    if (pid := os.fork()) == 0:
        time.sleep(600)
        os._exit(0)
    Path(os.environ["MEMVIZ_TEST_FORKED"]).write_text(str(pid))


def forking():
    _fork()
    return presets.digits.build()


def forking_and_killed():
    _fork()
    os.kill(os.getpid(), signal.SIGKILL)


def on_a_full_disk():
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))
    return presets.digits.build()


def raising():
    raise KeyError("no such key")


def no_model():
    return "not a model"


def killed_by_the_system():
    os.kill(os.getpid(), signal.SIGKILL)


def host_exhausted():
    in_use = psutil.Process().memory_info().vms
    resource.setrlimit(resource.RLIMIT_AS, (in_use + 2**28, resource.RLIM_INFINITY))
    return np.ones(2**33, np.uint8)


def no_number():
    import keras

    layers = keras.layers
    return keras.Sequential([keras.Input((3,)), layers.Dense(1), layers.Lambda(lambda x: keras.ops.log(-1.0 - x * x))])
