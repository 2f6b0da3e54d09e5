"""What this machine offers: free memory, and whether there is a GPU; found without TensorFlow."""

from __future__ import annotations

import contextlib

from memviz.setup import REFERENCE


def available_bytes() -> int:
    """Host memory, in bytes, that can be taken without anything else having to go."""
    import psutil

    return psutil.virtual_memory().available


def default_device() -> str:
    """``"GPU:0"`` where the NVIDIA driver knows a GPU, else ``"reference"``."""
    import pynvml

    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        try:
            return "GPU:0" if pynvml.nvmlDeviceGetCount() else REFERENCE
        finally:
            pynvml.nvmlShutdown()
    return REFERENCE
