"""What `memviz.MemoryMonitor` costs a training step: the time of steps with it over that of steps without, in one run.

    python benchmarks/monitor.py

Every second step is monitored; the ratio is that of the medians (bar: 1.02). Exit code 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import Any

import keras
import numpy as np

import memviz

STEPS, WARM_UP, BAR = 1000, 40, 1.02


class Alternating(keras.callbacks.Callback):
    """Calls the monitor around every second step, and times all of them with its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.monitor = memviz.MemoryMonitor()
        self.seconds: tuple[list[float], list[float]] = [], []  # without, with
        self._began = 0.0

    def on_train_begin(self, logs: Any = None) -> None:
        """As Keras calls a callback."""
        self.monitor.on_train_begin(logs)
        self.monitor.on_epoch_begin(0)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """The time of the monitor's call is the step's, too."""
        self._began = time.perf_counter()
        if batch % 2:
            self.monitor.on_train_batch_begin(batch, logs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Steps that warm up are not counted."""
        if batch % 2:
            self.monitor.on_train_batch_end(batch, logs)
        if batch >= WARM_UP:
            self.seconds[batch % 2].append(time.perf_counter() - self._began)


def ratio(network: memviz.ConvNet, batch_size: int) -> tuple[float, float]:
    """(the ratio, milliseconds of a step without the monitor)."""
    model, random = network.build(), np.random.default_rng(0)
    model.compile("adam", "sparse_categorical_crossentropy")
    images = random.random((STEPS * batch_size, *network.input_shape), dtype=np.float32)
    watch = Alternating()
    model.fit(images, np.arange(len(images)) % network.outputs, batch_size, verbose=0, callbacks=[watch])
    without, with_it = map(statistics.median, watch.seconds)
    return with_it / without, 1e3 * without


def main() -> int:
    """Print a line per network; 1 where a bar is missed."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    missed = []
    for batch_size in (8, 32, 128):
        cost, milliseconds = ratio(memviz.presets.digits, batch_size)
        print(f"digits batch={batch_size} step_ms={milliseconds:.1f} cost={cost:.3f} bar={BAR}", flush=True)
        missed += [str(batch_size)] if cost > BAR else []
    print(f"missed: {', '.join(missed)}" if missed else "every bar was met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
