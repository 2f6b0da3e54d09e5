"""What this machine offers: free memory, and which GPUs there are; found without TensorFlow."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from memviz.cards import card
from memviz.setup import BACKEND, FIRST_REGION_BYTES, REFERENCE, REFERENCE_ENVIRONMENT
from memviz.units import MIB


def available_bytes() -> int:
    """Host memory, in bytes, that can be taken without anything else having to go."""
    import psutil

    return psutil.virtual_memory().available


def oom_kills() -> int | None:
    """How many processes the kernel has ended for want of memory since it started; None where it does not say.

    Source: Linux, mm/vmstat.c; limits of a control group count, too.
    """
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)


@contextmanager
def nvml() -> Iterator[Any]:
    """NVIDIA's library, opened; None where there is no driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def gpu_count() -> int:
    """The GPUs that the NVIDIA driver knows; 0 where there is no driver."""
    with nvml() as library:
        return library.nvmlDeviceGetCount() if library else 0


def total_bytes(device: str) -> int:
    """A device's whole memory, in bytes: a GPU's that is in this machine, a card's, or for "reference" the host's."""
    import psutil

    if known := card(device):
        return known.memory_bytes
    if device == REFERENCE:
        return psutil.virtual_memory().total
    with nvml() as library:
        number = int(device.removeprefix("GPU:"))
        return library.nvmlDeviceGetMemoryInfo(library.nvmlDeviceGetHandleByIndex(number)).total


def budget_of(budget: int | str | None, device: str | None) -> int | str | None:
    """A budget as it is, or for a share such as ``"40 %"`` its bytes of the device's memory; of a card, where none is
    given, what TensorFlow can use.

    Raises ValueError for a share above 100 % or of none, and of a GPU that is not in this machine.
    """
    known = card(device) if isinstance(device, str) else None
    if budget is None and known:
        return known.usable_bytes
    if not isinstance(budget, str) or not budget.rstrip().endswith("%"):
        return budget
    number = budget.rstrip().removesuffix("%").strip()
    share = float(number) if re.fullmatch(r"\d+(\.\d+)?", number) else 0.0
    if not 0 < share <= 100:
        raise ValueError(f"budget={budget!r} is not possible; a share of the device's memory is above 0 to 100 %.")
    return int(total_bytes(known.name if known else chosen_device(device)) * share / 100)


def default_device() -> str:
    """``"GPU:0"`` where there is one, else ``"reference"``."""
    return "GPU:0" if gpu_count() else REFERENCE


def chosen_device(device: str | None) -> str:
    """The device that a setup's ``device`` means; ValueError for a GPU that is not there."""
    if device is None:
        return default_device()
    gpus = [f"GPU:{number}" for number in range(gpu_count())]
    if device not in (REFERENCE, *gpus):
        here = ", ".join(map(repr, gpus)) or "none"
        raise ValueError(f"device={device!r} is not in this machine, whose GPUs are: {here}. Use device='reference'.")
    return device


def child_environment(device: str, limit_bytes: int | None, memory_growth: bool) -> dict[str, str]:
    """What has to stand in the child's environment before it imports TensorFlow."""
    if device != REFERENCE:
        return BACKEND | {"TF_FORCE_GPU_ALLOW_GROWTH": "true" if memory_growth else "false"}
    assert limit_bytes is not None
    # Before the region proper TensorFlow takes a small one for its own tensors; the limit is raised by as much.
    room = limit_bytes if memory_growth else limit_bytes + FIRST_REGION_BYTES
    limits = {"TF_CPU_ALLOCATOR_USE_BFC": "true", "TF_CPU_BFC_MEM_LIMIT_IN_MB": str(room // MIB)}
    return REFERENCE_ENVIRONMENT | limits
