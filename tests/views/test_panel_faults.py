"""What goes wrong beside the panel, or is asked of it in earnest: it stays alive and says what happened."""

import _thread
import threading
import time
from itertools import pairwise

import psutil
import pytest
from test_panel import wait_for

import memviz
from memviz.estimation.service import shared_service
from memviz.models import presets
from memviz.models.convnet import ConvNet


@pytest.fixture(scope="module")
def panel():
    panel = memviz.explore(presets.digits)
    wait_for(lambda: panel.bars is not None and panel.step is not None)
    yield panel
    panel.close()


def move(panel, knob, value):
    panel.knobs.fields[knob].value = value
    wait_for(lambda: panel._drawn is panel._wanted)


def children():
    found = psutil.Process().children(recursive=True)
    return [each for each in found if "memviz.measurement.worker" in " ".join(each.cmdline())]


def test_the_estimating_process_comes_back_by_itself(panel):
    psutil.Process(shared_service().start().pid).kill()
    move(panel, "batch_size", 7)
    assert not panel._error.value


def test_killed_while_it_estimates_it_is_asked_again(panel, monkeypatch):
    service, asked = shared_service(), []
    estimate = service.estimate

    def killed_once(*question):
        asked.append(question)
        if len(asked) == 1:
            threading.Timer(0.05, psutil.Process(service.start().pid).kill).start()
        return estimate(*question)

    monkeypatch.setattr(service, "estimate", killed_once)
    panel.knobs.preset.value = "vgg16"  # takes longer than that
    wait_for(lambda: panel._drawn is panel._wanted)
    assert not panel._error.value
    assert [a for a, b in pairwise(asked) if a == b]
    monkeypatch.undo()
    panel.knobs.preset.value = "digits"
    wait_for(lambda: panel._drawn is panel._wanted)


def test_a_trial_whose_process_is_killed_is_over_and_another_starts(panel):
    panel.steps.value = 1000
    panel.start_button.click()
    panel.start_button.click()  # twice is once
    wait_for(lambda: any(event.step is not None for event in panel._run.events), 120)
    (child,) = children()
    child.kill()
    wait_for(lambda: panel.trial is not None)
    assert panel.trial.status not in ("completed", "cancelled")
    wait_for(lambda: panel.trial.error in panel._status.value)
    panel.steps.value, before = 3, panel.trial
    panel.start_button.click()
    wait_for(lambda: panel.trial is not before, 120)
    assert panel.trial.status == "completed"
    assert not children()


def test_an_interrupted_kernel_leaves_the_panel_alive(panel):
    def interrupted():
        _thread.interrupt_main()
        time.sleep(5)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    move(panel, "batch_size", 9)
    assert panel.estimate.profile.setup["batch_size"] == 9


def test_an_image_far_too_large_is_answered(panel):
    panel.knobs.fields["height"].value = panel.knobs.fields["width"].value = 100_000
    wait_for(lambda: panel._drawn is panel._wanted or "No estimate" in panel._error.value)
    move(panel, "height", 32)
    move(panel, "width", 32)
    assert not panel._error.value


def test_a_network_without_layers_but_its_output():
    panel = memviz.explore(ConvNet(input_shape=(8, 8, 1), dense=()))
    wait_for(lambda: panel.bars is not None and panel.step is not None)
    assert [layer.name for layer in panel.estimate.layers] == ["flatten", "output"]
    panel.close()
