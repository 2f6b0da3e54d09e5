"""The cards and this machine's devices in one table, and the budget that a device stands for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memviz.cards import cards, usable_bytes
from memviz.child.machine import available_bytes, budget_of, default_device, nvml
from memviz.setup import REFERENCE, TrainingSetup
from memviz.units import MIB

if TYPE_CHECKING:
    import pandas as pd


def devices() -> pd.DataFrame:
    """What can be given as ``device``: this machine's devices first, then the cards memviz knows.

    A row per device. Columns: ``memory`` (bytes in all, as CUDA sees them),
    ``usable`` (bytes that TensorFlow takes at most: all but its reserve; CUDA's context and other processes come off
    it), ``capability`` (compute capability), ``here`` (whether it is in this machine), ``aliases`` (as TensorFlow
    prints it), ``source`` (where its memory is stated).
    Source of the reserve: tensorflow/core/common_runtime/gpu/gpu_device.cc, `MinSystemMemory`.
    """
    import pandas as pd

    listed = {
        each.name: (each.memory_bytes, each.usable_bytes, each.capability, False, ", ".join(each.aliases), each.source)
        for each in cards().values()
    }
    columns = ["memory", "usable", "capability", "here", "aliases", "source"]
    return pd.DataFrame.from_dict(_found() | listed, orient="index", columns=columns)


def capacity(device: str | None, budget: int | str | None) -> tuple[str, int]:
    """The device's name and the bytes that training may take on it: the budget, else all that TensorFlow can use.

    Raises ValueError for a budget that is not possible, and where a GPU's memory is asked for that is not here.
    """
    device = device or default_device()
    setup = TrainingSetup.create(batch_size=1, device=device, budget=budget_of(budget, device))
    assert setup.device is not None
    if setup.budget_bytes is None:
        if setup.device not in (found := _found()):
            raise ValueError(
                f"The memory of {device!r} is not known here; give budget=, or a card of memviz.devices()."
            )
        return setup.device, found[setup.device][1] // MIB * MIB
    return setup.device, setup.budget_bytes


def _found() -> dict[str, tuple[int, int, str, bool, str, str]]:
    """This machine's devices: the reference device, whose memory is the host's free one, and its GPUs."""
    import psutil

    host = (psutil.virtual_memory().total, available_bytes(), "", True, "", "this machine")
    found = {REFERENCE: host}
    with nvml() as library:
        for number in range(library.nvmlDeviceGetCount() if library else 0):
            handle = library.nvmlDeviceGetHandleByIndex(number)
            memory, name = library.nvmlDeviceGetMemoryInfo(handle), library.nvmlDeviceGetName(handle)
            major, minor = library.nvmlDeviceGetCudaComputeCapability(handle)
            capability = f"{major}.{minor}"
            usable = usable_bytes(memory.free, capability)
            found[f"GPU:{number}"] = (memory.total, usable, capability, True, name, "this machine")
    return found
