"""What `memviz.MemoryMonitor` costs a training step: the time of steps with it over that of steps without, in one run.

    python benchmarks/monitor.py

A step is monitored or not by a seeded draw, since every second one may meet what also comes every second time; the
ratio is that of the medians (bar: 1.02). The same is printed for a callback that does nothing: what the run cannot tell
from 1. Exit code 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import memviz

STEPS, WARM_UP, BATCHES, BAR = 4000, 40, 64, 1.02


class Drawn(keras.callbacks.Callback):
    """Calls the callback around every step that is drawn, and times all of them with its calls."""

    def __init__(self, monitor: keras.callbacks.Callback) -> None:
        super().__init__()
        self.monitor = monitor
        self.drawn = np.random.default_rng(0).integers(2, size=STEPS)
        self.seconds: tuple[list[float], list[float]] = [], []  # without, with
        self._began = 0.0

    def on_train_begin(self, logs: Any = None) -> None:
        """As Keras calls a callback."""
        self.monitor.on_train_begin(logs)
        self.monitor.on_epoch_begin(0)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """The time of the monitor's call is the step's, too."""
        self._began = time.perf_counter()
        if self.drawn[batch]:
            self.monitor.on_train_batch_begin(batch, logs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Steps that warm up are not counted."""
        if self.drawn[batch]:
            self.monitor.on_train_batch_end(batch, logs)
        if batch >= WARM_UP:
            self.seconds[self.drawn[batch]].append(time.perf_counter() - self._began)


def ratio(callback: keras.callbacks.Callback, network: memviz.ConvNet, batch_size: int) -> tuple[float, float]:
    """(the ratio, milliseconds of a step without the callback)."""
    model, random = network.build(), np.random.default_rng(0)
    model.compile("adam", "sparse_categorical_crossentropy")
    images = random.random((BATCHES * batch_size, *network.input_shape), dtype=np.float32)
    data = tf.data.Dataset.from_tensor_slices((images, np.arange(len(images)) % network.outputs))
    watch = Drawn(callback)
    model.fit(data.batch(batch_size).repeat(), steps_per_epoch=STEPS, verbose=0, callbacks=[watch])
    without, with_it = map(statistics.median, watch.seconds)
    return with_it / without, 1e3 * without


def main() -> int:
    """Print a line per network; 1 where a bar is missed."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    missed = []
    for batch_size in (8, 32, 128):
        nothing, _ = ratio(keras.callbacks.Callback(), memviz.presets.digits, batch_size)
        cost, ms = ratio(memviz.MemoryMonitor(), memviz.presets.digits, batch_size)
        print(f"digits batch={batch_size} step_ms={ms:.1f} cost={cost:.3f} bar={BAR} nothing={nothing:.3f}", flush=True)
        missed += [str(batch_size)] if cost > BAR else []
    print(f"missed: {', '.join(missed)}" if missed else "every bar was met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
