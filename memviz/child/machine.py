"""What this machine offers: free memory, and which GPUs there are; found without TensorFlow."""

from __future__ import annotations

import contextlib

from memviz.setup import REFERENCE


def available_bytes() -> int:
    """Host memory, in bytes, that can be taken without anything else having to go."""
    import psutil

    return psutil.virtual_memory().available


def gpu_count() -> int:
    """The GPUs that the NVIDIA driver knows; 0 where there is no driver."""
    import pynvml

    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        try:
            return pynvml.nvmlDeviceGetCount()
        finally:
            pynvml.nvmlShutdown()
    return 0


def default_device() -> str:
    """``"GPU:0"`` where there is one, else ``"reference"``."""
    return "GPU:0" if gpu_count() else REFERENCE


def chosen_device(device: str | None) -> str:
    """The device that a setup's ``device`` means; ValueError for a GPU that is not there."""
    if device is None:
        return default_device()
    if device != REFERENCE and int(device.partition(":")[2]) >= gpu_count():
        here = ", ".join(f"'GPU:{n}'" for n in range(gpu_count())) or "none"
        raise ValueError(f"device={device!r} is not in this machine, whose GPUs are: {here}. Use device='reference'.")
    return device
