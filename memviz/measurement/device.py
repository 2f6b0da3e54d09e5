"""The devices a trial runs on, inside its child: the reference device and a real GPU, behind one small record.

The reference device is the CPU under TensorFlow's own BFC allocator, in one region as on a GPU, with a limit of the
user's choice. It really allocates, and it really runs out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from memviz.setup import REFERENCE
from memviz.units import MIB

_ROUNDING_BYTES = 256  # BFC's: every chunk is a multiple


@dataclass(frozen=True)
class Device:
    """An open device. name: TensorFlow's, such as ``"CPU:0"``. overhead_bytes: in use before the trial began."""

    name: str
    overhead_bytes: int
    guard: Any = None  # kept, since without it the region would be given back when it is free

    def memory(self) -> tuple[int, int]:
        """(bytes in use, peak since the last reset), without what was in use before the trial."""
        info = tf.config.experimental.get_memory_info(self.name)
        return max(0, info["current"] - self.overhead_bytes), max(0, info["peak"] - self.overhead_bytes)

    def reset_peak(self) -> None:
        """The peak starts anew at what is in use now."""
        tf.config.experimental.reset_memory_stats(self.name)

    def place(self, array: Any) -> Any:
        """A fresh copy of a numpy array in the device's memory."""
        host = _taken_over(array)
        with tf.device(self.name):
            return tf.raw_ops.DeepCopy(x=host) if self.name == "CPU:0" else tf.identity(host)


def _taken_over(array: Any) -> Any:
    """A tensor in the memory of an array that is aligned as in `digits.aligned`; nothing is allocated.

    `tf.constant` copies once in numpy's memory, and once more in the device's or not, as that copy happens to lie.
    """
    try:
        return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
    except BufferError:  # bfloat16, which numpy does not know
        with tf.device("CPU:0"):
            return tf.constant(array)


def open_device(device: str, limit_bytes: int | None, memory_growth: bool) -> Device:
    """Make TensorFlow's device ready; to be called before anything else is done with TensorFlow.

    Raises ValueError where TensorFlow has no such GPU.
    """
    if device != REFERENCE:
        _show_only(device, limit_bytes)
        return Device("GPU:0", _in_use("GPU:0"))
    # With two inter-op threads the peak of one and the same step moves by a fifth; with one it repeats.
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.threading.set_intra_op_parallelism_threads(2)
    assert limit_bytes is not None
    guard = None if memory_growth else _make_one_region(limit_bytes)
    return Device("CPU:0", _in_use("CPU:0"), guard)


def _in_use(name: str) -> int:
    return tf.config.experimental.get_memory_info(name)["current"]


def _show_only(device: str, limit_bytes: int | None) -> None:
    """One GPU, with a limit or none, as TensorFlow's only one."""
    gpus = {f"GPU:{number}": gpu for number, gpu in enumerate(tf.config.list_physical_devices("GPU"))}
    if device not in gpus:
        seen = ", ".join(gpus) or "no GPU"
        raise ValueError(f"There is no {device} here: TensorFlow sees {seen}. Use device='reference'.")
    tf.config.set_visible_devices(gpus[device], "GPU")
    if limit_bytes is not None:
        limit = tf.config.LogicalDeviceConfiguration(memory_limit=limit_bytes // MIB)
        tf.config.set_logical_device_configuration(gpus[device], [limit])


def _make_one_region(nbytes: int) -> Any:
    """Have the BFC allocator take ``nbytes`` in one region, all of it one free chunk but a guard of a few KiB.

    A region is as large as the first request that needs it, rounded up to a power of two and capped by the limit;
    `Empty` touches no page, so nothing of it is resident. Halving the free rest leaves a last small piece at its end.
    Returns the guard, to be kept. Source: tensorflow's bfc_allocator.cc, `Extend` and `FindChunkPtr`.
    """
    # Fills the region of 2 MiB, so that the small pieces below come from ours: a chunk is not split for more than half.
    filler = _empty(MIB + _ROUNDING_BYTES)
    before = _in_use("CPU:0")
    largest_power_below = 1 << ((nbytes - 1).bit_length() - 1)
    _empty(largest_power_below + _ROUNDING_BYTES)
    pieces, rest = [], nbytes
    while rest >= 8192:
        half = rest // 2 // _ROUNDING_BYTES * _ROUNDING_BYTES
        pieces.append(_empty(half))
        rest -= half
    guard = _empty(rest)
    taken = _in_use("CPU:0") - before
    if taken != nbytes:
        raise RuntimeError(f"The region holds {taken} B instead of {nbytes} B; this TensorFlow's allocator is another.")
    del filler, pieces
    return guard


def _empty(nbytes: int) -> Any:
    # Two dimensions, since a single one above 2^31 overflows.
    with tf.device("CPU:0"):
        return tf.raw_ops.Empty(shape=[nbytes // _ROUNDING_BYTES, _ROUNDING_BYTES], dtype=tf.uint8)
