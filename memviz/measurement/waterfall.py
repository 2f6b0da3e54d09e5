"""From the bytes of training to what a card shows: quantities that are often confused, side by side.

Sources: TensorFlow's allocator for the first two, its pool's size for the third, the NVIDIA driver (NVML) for the rest.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields

from memviz.child.machine import nvml


@dataclass(frozen=True)
class Waterfall:
    """Bytes, each None where it does not exist on the device, or nobody tells it.

    live_bytes: handed out after the last step. peak_bytes: the most handed out in any phase. reserved_bytes: of the
    device, by TensorFlow's pool, whether handed out or not; with memory growth TensorFlow does not say it.
    process_bytes: of the card, by the whole process, as nvidia-smi shows it. context_bytes: of those, beyond the pool:
    the CUDA context and libraries. others_bytes: of other processes. device_bytes: the card's, or the limit of the
    reference device. host_rss_bytes: the process's in the host's memory, at most.
    """

    live_bytes: int | None = None
    peak_bytes: int | None = None
    reserved_bytes: int | None = None
    process_bytes: int | None = None
    context_bytes: int | None = None
    others_bytes: int | None = None
    device_bytes: int | None = None
    host_rss_bytes: int | None = None

    @classmethod
    def of(
        cls, *, live_bytes: int | None, peak_bytes: int | None, reserved_bytes: int | None, host_rss_bytes: int | None,
        limit_bytes: int | None, driver: DriverMemory | None,
    ) -> Waterfall:  # fmt: skip
        """The parts that exist. driver: None on the reference device, whose limit stands for the card."""
        own, used, total = (None, None, limit_bytes) if driver is None else astuple(driver)
        beyond = None if own is None or reserved_bytes is None else max(0, own - reserved_bytes)
        others = None if own is None or used is None else max(0, used - own)
        return cls(live_bytes, peak_bytes, reserved_bytes, own, beyond, others, total, host_rss_bytes)

    @property
    def unknown(self) -> tuple[str, ...]:
        """The names of what is not known, without ``_bytes``."""
        return tuple(f.name.removesuffix("_bytes") for f in fields(self) if getattr(self, f.name) is None)


@dataclass(frozen=True)
class DriverMemory:
    """A card as the driver sees it, in bytes. process_bytes: of one process; None where the driver does not tell."""

    process_bytes: int | None
    used_bytes: int
    total_bytes: int


def driver_memory(number: int, pid: int) -> DriverMemory | None:
    """What the driver says of GPU ``number`` and of a process on it; None where there is no driver or no such GPU."""
    with nvml() as library:
        if library is None or number >= library.nvmlDeviceGetCount():
            return None
        handle = library.nvmlDeviceGetHandleByIndex(number)
        memory = library.nvmlDeviceGetMemoryInfo(handle)
        running = library.nvmlDeviceGetComputeRunningProcesses(handle)
        # In a container the driver may name processes by other numbers, or give no sizes.
        own = next((process.usedGpuMemory for process in running if process.pid == pid), None)
        return DriverMemory(own, memory.used, memory.total)
