"""The panel without a browser: real widgets, real threads, the real estimating process."""

import subprocess
import sys
import threading
import time

import comm
import pytest

import memviz
from memviz.estimation.service import shared_service
from memviz.models import presets
from memviz.models.network import Network
from memviz.views.explorer.panel import Chart
from memviz.views.explorer.state import state_of
from memviz.views.figures import layer_figure


@pytest.fixture
def panel():
    panel = memviz.explore(presets.digits)
    wait_for(lambda: panel.bars is not None and panel.step is not None)
    yield panel
    panel.close()


def wait_for(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.02)


def test_the_bars_are_the_estimates_numbers_and_follow_a_knob(panel):
    def drawn():
        return sum(sum(trace.x) for trace in panel.bars.data if trace.type == "bar")

    assert drawn() == panel.estimate.peak_bytes
    bars, before = panel.bars, drawn()
    panel.knobs.fields["batch_size"].value = 64
    wait_for(lambda: drawn() != before)
    again = shared_service().estimate(Network.of(presets.digits), panel.state.setup)
    assert drawn() == again.peak_bytes
    assert panel.bars is bars
    wait_for(lambda: [t.get("x") for t in bars._widget_data] == [t.get("x") for t in bars._data])  # for a later view


def test_until_a_trial_has_run_the_second_figure_is_the_estimated_step(panel):
    (shown,) = panel._course_box.children
    assert shown is panel.step
    assert max(next(t for t in shown.data if t.name == "estimated").y) == panel.estimate.peak_bytes


def test_a_chart_is_told_to_the_browser_with_its_data(panel, monkeypatch):
    told, create = [], comm.create_comm
    monkeypatch.setattr(
        comm, "create_comm", lambda **told_of: told.append(told_of["data"]["state"]) or create(**told_of)
    )
    chart = Chart(layer_figure(panel.estimate.profile))
    assert not [state for state in told if "_widget_data" in state]
    chart.open()
    (state,) = [state for state in told if "_widget_data" in state]
    assert [trace["name"] for trace in state["_widget_data"]] == [trace.name for trace in chart.data]
    chart.close()


@pytest.mark.parametrize(
    ("name", "values"), [("batch_size", (2, 5, 8)), ("height", (31, 30, 29)), ("optimizer", ("sgd", "adam", "adamw"))]
)
def test_the_answer_to_one_more_move_of_the_same_knob_is_ready(panel, monkeypatch, name, values):
    field = panel.knobs.fields[name]
    for value in values[:2]:
        field.value = value
    asked = state_of(panel.knobs.values({field: values[2]}), presets.digits).question
    wait_for(lambda: panel._looked_ahead_from == (panel._wanted, field))
    assert state_of(panel.knobs.ahead()[0], presets.digits).question == asked
    wait_for(lambda: not [t for t in threading.enumerate() if t.name == "memviz-ahead"])
    monkeypatch.setattr(shared_service(), "estimate", None)  # nothing can be asked any more
    field.value = values[2]
    wait_for(lambda: panel._drawn.question == asked)


def test_one_more_block_looks_like_the_last_one(panel):
    panel.knobs.count.value = 3
    (*_, last, ahead) = panel.knobs.ahead()[0]["blocks"]
    assert ahead == last
    assert len(panel.knobs.ahead()[0]["blocks"]) == 4


@pytest.mark.parametrize(
    ("name", "value", "near"),
    [
        ("head", "flatten", ["global_average", "global_max"]),
        ("batch_size", 1, [2]),  # not 0
        ("dense", 512, [511]),  # the slider's end
        ("memory_growth", False, [True]),
        ("log", False, []),
        ("budget", "1 GiB", []),
    ],
)
def test_the_moves_near_the_knob_under_the_hand_are_known(panel, name, value, near):
    field = panel.knobs.fields[name]
    field.value = value
    panel.knobs._last, panel.knobs.reached = None, field
    assert [values[name] for values in panel.knobs.ahead()] == near


def test_a_list_goes_on_the_way_it_went(panel):
    field = panel.knobs.fields["dtype_policy"]
    for at, first in ((2, (3, 1)), (3, (4, 2)), (2, (1, 3))):
        field.value = field.options[at]
        assert [values["dtype_policy"] for values in panel.knobs.ahead()[:2]] == [field.options[each] for each in first]


def test_the_answers_are_ready_when_a_knob_is_reached(panel, monkeypatch):
    head = panel.knobs.fields["head"]
    panel._put(panel._reach, panel.knobs.all.index(head))
    wait_for(lambda: panel._looked_ahead_from == (panel._wanted, head))
    wait_for(lambda: not [t for t in threading.enumerate() if t.name == "memviz-ahead"])
    monkeypatch.setattr(shared_service(), "estimate", None)  # nothing can be asked any more
    head.value = "global_max"
    wait_for(lambda: panel._drawn.network.head == "global_max")


def test_the_latest_of_many_changes_wins(panel):
    for batch in range(2, 40):
        panel.knobs.fields["batch_size"].value = batch
    wait_for(lambda: panel.estimate.profile.setup["batch_size"] == 39)
    assert panel.state.setup.batch_size == 39
    last = shared_service().estimate(Network.of(presets.digits), panel.state.setup)
    assert panel.estimate.peak_bytes == last.peak_bytes


def test_a_knob_moved_back_at_once_ends_where_it_began(panel):
    before = panel.estimate
    for batch in (64, 1):
        panel.knobs.fields["batch_size"].value = batch
    time.sleep(2)  # longer than an estimate takes: none may arrive late and be drawn
    assert panel.estimate is before
    assert panel._drawn.question == panel.state.question


def test_a_mistake_stays_on_show_until_it_is_mended(panel):
    before = panel.estimate
    panel.knobs.fields["height"].value = 0
    wait_for(lambda: "input height=0" in panel._error.value)
    assert "last setup that works" in panel._error.value
    assert panel.estimate is before
    panel.knobs.fields["height"].value = 32
    wait_for(lambda: not panel._error.value)


def test_no_trial_starts_while_a_mistake_is_on_show(panel):
    panel.knobs.fields["budget"].value = "lots"
    wait_for(lambda: "is not a size" in panel._error.value)
    panel.start_button.click()
    assert not panel.start_button.disabled
    panel.knobs.fields["budget"].value = "1 GiB"
    panel.steps.value = 3
    panel.start_button.click()
    assert panel.start_button.disabled
    wait_for(lambda: panel.trial is not None)
    assert panel.trial.setup.budget_bytes == 1 << 30


def test_closing_leaves_no_thread():
    before = set(threading.enumerate())
    panel = memviz.explore(presets.digits)
    panel.close()
    wait_for(lambda: not {t for t in threading.enumerate() if t.name in ("memviz-panel", "memviz-estimates")} - before)


def test_a_kernel_that_ends_takes_the_trial_along():
    program = (
        "import memviz, time\n"
        "panel = memviz.explore(memviz.presets.digits)\n"
        "panel.steps.value = 1000\n"
        "panel.start_button.click()\n"
        "while panel._handle is None: time.sleep(0.05)\n"
        "print(panel._handle.pid)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    import psutil

    assert not psutil.pid_exists(int(done.stdout))


def test_other_networks_are_sent_where_they_are_answered():
    with pytest.raises(TypeError, match=r"memviz\.estimate"):
        memviz.explore(lambda: None)
