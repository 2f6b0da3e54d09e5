"""Memory of one's own `model.fit`, in one's own process: no child, no budget, nothing changed but the peak's start."""

from __future__ import annotations

import itertools
import math
import time
from statistics import median, median_high, median_low
from typing import Any

import keras
import psutil

from memviz.measurement.result import TrialEvent, TrialStep
from memviz.units import format_bytes

_WARM_UP = 3  # steps: the first traces and makes the optimizer's slots
_RUN = 8  # steps
_NOT_SEEN = (
    "Memory outside TensorFlow's allocator: the CUDA context, libraries, other programs, and the host's.",
    "What happens between two calls of the callback, where steps_per_execution is above 1, is one step here.",
)
_NOT_SEEN_ON_CPU = (
    "Which bytes are training's: on the CPU the buffers and caches of tf.data are counted with them.",
    "On the CPU, tensors of less than 256 KiB, which oneDNN's allocator serves beside its statistics.",
)


class MemoryMonitor(keras.callbacks.Callback):
    """A Keras callback that notes the device's memory in use, and its peak, in every training step.

        monitor = memviz.MemoryMonitor()
        model.fit(images, labels, callbacks=[monitor])
        memviz.views.figures.trial_figure(monitor.events)

    device: TensorFlow's name, such as "GPU:0"; None: the first GPU, else the CPU. steps: `TrialStep` per training step,
    in bytes of TensorFlow's allocator, from 1 on through all epochs. epochs: the highest peak of each epoch, in bytes.
    leak: a sentence where memory in use grows from step to step, else ""; it is also printed, once. not_counted: what
    cannot be seen from here; a growth is only seen within some 30 steps of one epoch, or where it is larger than what
    tf.data holds at times. Each step begins with `tf.config.experimental.reset_memory_stats`, as a step's own peak
    cannot be had otherwise. Raises ValueError where Keras does not run on TensorFlow, or there is no such device; and
    before the first step, where the device has no statistics, as the CPU without oneDNN.
    """

    def __init__(self, device: str | None = None) -> None:
        super().__init__()
        if keras.backend.backend() != "tensorflow":
            raise ValueError(f"MemoryMonitor needs Keras on TensorFlow; this one runs on {keras.backend.backend()!r}.")
        import tensorflow as tf

        self._tf = tf.config.experimental
        there = [name.name.removeprefix("/physical_device:") for name in tf.config.list_physical_devices()]
        self.device = _full_name(device or next((name for name in there if name.startswith("GPU:")), "CPU:0"))
        if self.device not in there:
            raise ValueError(f"device={device!r} is not here: TensorFlow sees {', '.join(there)}.")
        self.not_counted = (*_NOT_SEEN, *(_NOT_SEEN_ON_CPU if self.device.startswith("CPU") else ()))
        self.epochs: list[int] = []
        self.leak = ""
        self._process = psutil.Process()
        self._rss, self._rss_at = 0, -math.inf
        self._began = self._step_began = 0.0
        self._in_use: list[int] = []
        self._ends: list[float] = []  # of the steps, in seconds since the first one began
        # The fields of each `TrialStep`, which is made when asked for: to make it in each step costs a quarter more.
        self._noted: list[tuple[Any, ...]] = []

    def on_train_begin(self, logs: Any = None) -> None:
        """Better no training than one that ends in its first step."""
        try:
            self._tf.reset_memory_stats(self.device)
        except ValueError:
            raise ValueError(
                f"TensorFlow keeps no memory statistics of {self.device} here. Way out: on the CPU leave "
                "TF_ENABLE_ONEDNN_OPTS unset, or train without MemoryMonitor."
            ) from None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """An epoch's peak starts anew."""
        self.epochs.append(0)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """The step's peak starts at what is in use now."""
        self._tf.reset_memory_stats(self.device)
        self._step_began = time.monotonic()
        self._began = self._began or self._step_began

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Note the step, and look for a slope."""
        now, info = time.monotonic(), self._tf.get_memory_info(self.device)
        in_use, peak, loss = info["current"], info["peak"], (logs or {}).get("loss")
        loss = None if loss is None else float(loss)  # a tensor would be kept, and be a leak of our own
        self._in_use.append(in_use)
        self._ends.append(now - self._began)
        self._noted.append((len(self._ends), in_use, peak, loss, now - self._step_began, self._host_rss(now)))
        if peak > self.epochs[-1]:
            self.epochs[-1] = peak
        if not self.leak:
            self.leak = growth(self._in_use)
            if self.leak:
                print(f"\nmemviz: {self.leak}")

    def _host_rss(self, now: float) -> int:
        """At most a tenth of a second old: to ask the system costs as much as all the rest here."""
        if now - self._rss_at > 0.1:
            self._rss, self._rss_at = self._process.memory_info().rss, now
        return self._rss

    @property
    def steps(self) -> list[TrialStep]:
        """One per training step, from 1 on through all epochs, in bytes of TensorFlow's allocator."""
        return [TrialStep(*noted) for noted in self._noted]

    @property
    def events(self) -> list[TrialEvent]:
        """The steps as `views.figures.trial_figure` draws them; seconds count from the beginning of the first one."""
        return [
            TrialEvent("step", "steady_step", seconds, s.bytes_in_use, s.peak_bytes, s.host_rss_bytes, s)
            for s, seconds in zip(self.steps, self._ends, strict=True)
        ]


def _full_name(device: str) -> str:
    """``"GPU:0"`` for ``"gpu"``, ``"/GPU:0"`` and the like."""
    kind, _, number = device.upper().rpartition("/")[-1].removeprefix("DEVICE:").partition(":")
    return f"{kind}:{number or 0}"


def growth(in_use: list[int]) -> str:
    """A sentence where memory in use, in bytes after each step, grows; else "".

    Of three successive runs of steps the first lies wholly below the middle of the second, and that wholly below the
    third, and memory rises in a third of the steps: a single jump is none. It has also grown by more than it ever fell:
    on the CPU the queues of tf.data fill and drain. Longer runs, looked at as training goes on, see a slower growth
    beneath larger fluctuations.
    """
    steps = len(in_use) - _WARM_UP
    length = _RUN
    while 3 * length <= steps:
        if steps % length == 0:  # else it is not time yet
            window = in_use[-3 * length :]
            first, second, third = (window[n * length : (n + 1) * length] for n in range(3))
            rises = sum(after > before for before, after in itertools.pairwise(window))
            above = max(first) < median_low(second) and median_high(second) < min(third)
            grown = median(third) - median(first)
            if above and 3 * rises >= len(window) and grown > _deepest_fall(in_use[_WARM_UP:]):
                return _sentence(window, round(grown / (2 * length)))
        length *= 2
    return ""


def _deepest_fall(in_use: list[int]) -> int:
    """From any level to any later one, in bytes."""
    return max(highest - level for highest, level in zip(itertools.accumulate(in_use, max), in_use, strict=True))


def _sentence(window: list[int], per_step: int) -> str:
    return (
        f"Memory in use grows by about {format_bytes(per_step)} in each step, from {format_bytes(window[0])} to "
        f"{format_bytes(window[-1])} in the last {len(window)} steps. Something keeps tensors from step to step, such "
        "as a list of losses or outputs; or, in the first epoch on the CPU, tf.data fills a cache."
    )
