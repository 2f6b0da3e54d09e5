"""What this machine offers: free memory, and which GPUs there are; found without TensorFlow."""

from __future__ import annotations

from pathlib import Path

from memviz.setup import REFERENCE


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


def gpu_count() -> int:
    """The GPUs that the NVIDIA driver knows; 0 where there is no driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return 0
    count = pynvml.nvmlDeviceGetCount()
    pynvml.nvmlShutdown()
    return count


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
