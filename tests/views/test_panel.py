"""The panel without a browser: real widgets, real threads, the real estimating process."""

import base64
import datetime
import re
import subprocess
import sys
import threading
import time

import comm
import pytest
from plotly.callbacks import Points

import memviz
from memviz.estimation.service import shared_service
from memviz.models import presets
from memviz.models.network import Network
from memviz.views.explorer.chart import Chart
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
    asked = state_of(panel.knobs.values({field: values[2]}), panel.state).question
    wait_for(lambda: panel._looked_ahead_from == (panel._wanted, field))
    assert state_of(panel.knobs.ahead()[0], panel.state).question == asked
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
        ("dense", 512, [513, 511, 768, 384]),  # by one, and to the next places of its slider
        ("memory_growth", False, [True]),
        ("scale", "linear", []),
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
    policies = field.options
    for at, first in ((2, (3, 1)), (3, (4, 2)), (2, (1, 3))):
        field.value = policies[at]
        assert [values["dtype_policy"] for values in panel.knobs.ahead()[:2]] == [policies[each] for each in first]


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
    for batch in (64, 32):
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


def test_a_function_that_returns_no_model_is_said_so():
    panel = memviz.explore(lambda: None)
    wait_for(lambda: "it must return a keras.Model" in panel._error.value)
    panel.close()


def test_a_preset_with_more_blocks_than_rows_and_its_own_training(panel):
    panel.knobs.preset.value = "vgg16"
    assert state_of(panel.knobs.values(), panel._base).network == presets.vgg16
    assert (panel.knobs.fields["batch_size"].value, panel.knobs.fields["optimizer"].value) == (16, "sgd")
    wait_for(lambda: panel._drawn.network == presets.vgg16)
    panel.knobs.preset.value = "digits"
    wait_for(lambda: panel._drawn.network == presets.digits)
    assert panel.knobs.preset.value == "digits"


def test_a_slider_sets_its_number_and_follows_it(panel):
    ranged = panel.knobs._ranged[panel.knobs.fields["batch_size"]]
    ranged._slider.value = 48
    assert panel.knobs.fields["batch_size"].value == 48
    panel.knobs.fields["batch_size"].value = 50
    assert ranged._slider.value == 48
    panel.knobs.fields["batch_size"].value = 100_000
    assert ranged._slider.value == 4096
    assert panel.knobs.fields["batch_size"].value == 100_000


def test_only_options_that_the_optimizer_has_are_on_show_and_count(panel):
    fields = panel.knobs.fields
    slots = panel.estimate.profile.by_category()["optimizer_state"]
    fields["amsgrad"].value = True
    wait_for(lambda: "amsgrad" in panel._verdict.value)
    assert panel.estimate.profile.by_category()["optimizer_state"] == pytest.approx(1.5 * slots, rel=0.001)
    fields["optimizer"].value = "sgd"
    assert fields["amsgrad"].layout.display == "none"
    assert fields["momentum"].layout.display == ""
    assert panel._wanted.setup.optimizer == "sgd"


def test_a_card_takes_what_tensorflow_can_use_of_it_and_is_not_trained_on(panel):
    from memviz.cards import card

    panel.knobs.fields["device"].value = "T4"
    wait_for(lambda: panel._drawn.setup.device == "T4")
    assert panel.state.setup.budget_bytes == card("T4").usable_bytes
    panel.start_button.click()
    wait_for(lambda: "did not start" in panel._status.value)
    assert "T4" in panel._status.value
    panel.knobs.fields["device"].value = "reference"
    assert panel.knobs.fields["budget"].value == "9513 MiB"


def test_a_layer_is_chosen_by_a_click_on_its_bar_and_by_another_click_none(panel):
    trace = next(trace for trace in panel.bars.data if trace.name == "parameter")

    at = Points(point_inds=[list(panel.bars.layout.meta).index("dense1")])
    panel._clicked(trace, at, None)
    wait_for(lambda: "dense1 (Dense): 2,048 in, 64 out" in panel._card.value)
    wait_for(lambda: "memviz-chosen" in panel._table.value)
    wait_for(lambda: any(t.name == "dense1" and t.visible for t in panel.step.data))
    panel._clicked(trace, at, None)
    wait_for(lambda: not panel._card.value)


def test_a_setup_is_kept_compared_and_taken_back(panel):
    kept = panel.state
    panel.compare.keep_button.click()
    panel.knobs.fields["optimizer"].value = "sgd"
    wait_for(lambda: "optimizer adam" in panel.compare._said.value)
    wait_for(lambda: "optimizer state" in panel.compare._table.value)
    panel.compare.back_button.click()
    wait_for(lambda: panel._drawn.question == kept.question)
    wait_for(lambda: "Changed: nothing" in panel.compare._said.value)
    panel.compare.forget_button.click()
    wait_for(lambda: "Keep the present setup" in panel.compare._said.value)


def test_what_would_help_is_found_and_applied_and_goes_when_a_knob_moves(panel):
    panel.knobs.fields["budget"].value = "20 MiB"
    wait_for(lambda: panel.what_if._state.setup.budget_bytes == 20 << 20)
    before = panel.estimate.required_bytes
    panel.what_if.ask_button.click()
    wait_for(lambda: panel.what_if._changes.children, 300)
    button, text = panel.what_if._changes.children[0].children
    button.click()
    wait_for(lambda: panel.estimate.required_bytes < before and not panel.what_if._changes.children)
    from memviz.units import format_bytes

    assert format_bytes(panel.estimate.required_bytes) in text.value
    assert panel.state.setup.budget_bytes == 20 << 20


def test_a_search_for_help_can_be_stopped(panel):
    panel.what_if.ask_button.click()
    panel.what_if.cancel_button.click()
    wait_for(lambda: not panel.what_if.ask_button.disabled, 120)
    assert panel.what_if._changes.children == ()


def uploaded(content):
    """As the browser sends a file."""
    about = {"name": "setup.json", "type": "application/json", "size": len(content)}
    return about | {"content": content, "last_modified": datetime.datetime.now(datetime.UTC)}


def test_a_saved_setup_is_taken_along_and_restored(panel, tmp_path, monkeypatch):
    panel.knobs.fields["dense"].value = 100
    wait_for(lambda: "units=100" in panel.keep.code.value)
    setup, table = (base64.b64decode(data).decode() for data in re.findall('base64,([^"]*)', panel.keep._links.value))
    assert table.count("\n") == 1 + len(panel.estimate.profile.by_layer())
    changed = panel.state
    panel.knobs.preset.value = "gesture_cnn"
    wait_for(lambda: panel._drawn.network == presets.gesture_cnn)
    panel.keep.upload.value = [uploaded(setup.encode())]
    wait_for(lambda: panel._drawn.question == changed.question)
    panel.keep.upload.value = [uploaded(b"\xff")]
    wait_for(lambda: "no setup that memviz saved" in panel._error.value)
    monkeypatch.chdir(tmp_path)
    panel.keep.html_button.click()
    wait_for(lambda: "Written:" in panel.keep._said.value)
    assert "plotly" in (tmp_path / "memviz-digits.html").read_text()


def test_a_recorded_step_is_a_line_over_the_estimate(panel):
    panel.record.value, panel.steps.value = True, 4
    panel.start_button.click()
    assert panel.course_of.value == "step"
    wait_for(lambda: panel.trial is not None, 120)
    assert panel.trial.status == "completed"
    assert panel.course_of.value == "trial"
    panel.course_of.value = "step"
    wait_for(lambda: panel._course_box.children == (panel.step,))
    line = next(trace for trace in panel.step.data if trace.name == "measured")
    assert max(line.y) == panel.trial.profile.peak_bytes
