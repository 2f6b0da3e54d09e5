"""From live bytes to what a card shows; what NVIDIA's library answers is played back, as there is no GPU."""

from types import SimpleNamespace

import pynvml
import pytest

import memviz
from memviz.child import machine
from memviz.measurement.waterfall import DriverMemory, Waterfall, driver_memory
from memviz.setup import TrainingSetup
from memviz.units import GIB, MIB
from memviz.views.figures import waterfall_figure

# A T4 with a training of 9,982 MiB and a browser on it; of a process in another container no size is told.
CARD = {
    "nvmlInit": lambda: None,
    "nvmlShutdown": lambda: None,
    "nvmlDeviceGetCount": lambda: 1,
    "nvmlDeviceGetHandleByIndex": lambda number: number,
    "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=15_360 * MIB, used=10_534 * MIB, free=4_826 * MIB),
    "nvmlDeviceGetComputeRunningProcesses": lambda handle: [
        SimpleNamespace(pid=41, usedGpuMemory=9_982 * MIB), SimpleNamespace(pid=42, usedGpuMemory=None),
    ],
}  # fmt: skip


@pytest.fixture
def card(monkeypatch):
    for name, answer in CARD.items():
        monkeypatch.setattr(pynvml, name, answer)


def test_the_driver_tells_the_card_and_the_process(card):
    assert driver_memory(0, 41) == DriverMemory(9_982 * MIB, 10_534 * MIB, 15_360 * MIB)
    assert driver_memory(0, 42) == driver_memory(0, 7) == DriverMemory(None, 10_534 * MIB, 15_360 * MIB)
    assert driver_memory(1, 41) is None


def test_without_a_driver_nothing_is_told():
    assert driver_memory(0, 41) is None


def stages(**changed):
    known = {"live_bytes": 9 * GIB, "peak_bytes": 9 * GIB + MIB, "reserved_bytes": 9_513 * MIB, "host_rss_bytes": GIB}
    known |= {"limit_bytes": 9_513 * MIB, "driver": DriverMemory(9_982 * MIB, 10_534 * MIB, 15_360 * MIB)}
    return Waterfall.of(**known | changed)


def test_on_a_card_every_stage_is_known():
    parts = stages()
    assert parts.unknown == ()
    assert parts.context_bytes == (9_982 - 9_513) * MIB
    assert parts.others_bytes == (10_534 - 9_982) * MIB
    assert parts.device_bytes == 15_360 * MIB


def test_with_memory_growth_the_pool_and_so_the_context_are_not_told():
    assert stages(reserved_bytes=None).unknown == ("reserved", "context")


def test_where_the_driver_names_no_process_its_parts_are_not_told():
    parts = stages(driver=DriverMemory(None, 10_534 * MIB, 15_360 * MIB))
    assert parts.unknown == ("process", "context", "others")


@pytest.mark.parametrize("growth", [False, True])
def test_on_the_reference_device_the_parts_that_exist_are_measured(growth):
    trial = memviz.measure(
        memviz.presets.digits, batch_size=32, budget="300 MiB", memory_growth=growth, device="reference", steps=3
    )
    parts = trial.waterfall
    assert parts.live_bytes == trial.steps[-1].bytes_in_use
    assert parts.peak_bytes == max([trial.phases["build"].peak_bytes, *(step.peak_bytes for step in trial.steps)])
    assert parts.live_bytes < parts.peak_bytes < parts.device_bytes == 300 * MIB
    assert parts.reserved_bytes == (None if growth else 300 * MIB)
    assert parts.host_rss_bytes > parts.peak_bytes
    assert parts.unknown == (*["reserved"] * growth, "process", "context", "others")


def test_its_figure_shows_what_is_known_and_names_the_rest():
    (bars,) = waterfall_figure(stages(reserved_bytes=None)).data
    assert list(bars.x) == [9 * GIB, 9 * GIB + MIB, 9_982 * MIB, 552 * MIB, 15_360 * MIB, GIB]
    figure = waterfall_figure(stages(reserved_bytes=None), units="decimal")
    assert "Not told here: reserved by the pool, context + libraries" in figure.layout.title.text
    assert figure.data[0].text[-1] == " 1.07 GB"
    assert "Not told" not in waterfall_figure(stages()).layout.title.text
    assert len(waterfall_figure(Waterfall()).data) == 1


def test_a_budget_can_be_a_share_of_the_device(card, monkeypatch):
    assert machine.budget_of("50 %", "GPU:0") == 7_680 * MIB
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=10 * GIB))
    assert machine.budget_of("12.5%", "reference") == 1_280 * MIB
    assert machine.budget_of("9513 MiB", None) == "9513 MiB"
    assert machine.budget_of(None, None) is None
    for wrong in ("0 %", "101 %", "many %", "-3 %"):
        with pytest.raises(ValueError, match=r"a share of the device's memory is above 0 to 100 %"):
            machine.budget_of(wrong, "reference")
    with pytest.raises(ValueError, match="'GPU:1' is not in this machine, whose GPUs are: 'GPU:0'"):
        machine.budget_of("50 %", "GPU:1")


def test_a_gpu_takes_the_same_path_with_another_name(card, monkeypatch):
    """Up to TensorFlow, which has no GPU here, and says so."""
    trial = memviz.measure(memviz.presets.digits, batch_size=1, device="GPU:0", steps=1)
    assert trial.status == "crashed"
    assert "There is no GPU:0 here: TensorFlow sees no GPU. Use device='reference'." in trial.error
    assert machine.chosen_device(None) == "GPU:0"
    assert TrainingSetup(batch_size=1, device="GPU:0").device == "GPU:0"
