"""Every way a trial can end, provoked for real; the trials run side by side, three at a time."""

import dataclasses
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
import troubled
from processes import PATIENCE, gone, open_fds

from memviz import measure, presets
from memviz.failure import PHASE_WORDS
from memviz.measurement.trial import HOST_RESERVE_BYTES, HostMemoryError, RunningTrial, host_limit
from memviz.models.convnet import ConvBlock, ConvNet
from memviz.models.network import Network
from memviz.setup import FIRST_REGION_BYTES, TrainingSetup
from memviz.units import GIB, MIB

# bird_audio's Dense at 1/32: three copies of a kernel of 91.8 MiB while building, four with Adam's slots.
BIRD_32 = ConvNet(input_shape=(2938, 1, 64), dense=(128,))


def made_in_a_notebook():
    """A function that no module holds: its module is __main__, so it travels by value."""
    namespace = {"__name__": "__main__"}
    exec(
        "def built_here():\n import keras\n return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])",
        namespace,
    )
    return namespace["built_here"]


SCENARIOS = {
    "completed": (presets.digits, {"batch_size": 32}, {"steps": 40}),
    "memory_growth": (presets.digits, {"batch_size": 32, "memory_growth": True}, {}),
    "notebook": (made_in_a_notebook(), {"batch_size": 2, "optimizer": "sgd"}, {"steps": 2}),
    "flooding": (troubled.flooding, {"batch_size": 4}, {"steps": 1}),
    "inputs": (troubled.subclassed, {"batch_size": 4, "loss": "mse", "inputs": {"words": "int32[5]"}}, {"steps": 1}),
    "oom_build": (troubled.wide_dense, {"batch_size": 1, "budget": "16 MiB"}, {}),
    "oom_first_step": (BIRD_32, {"batch_size": 1, "budget": "297 MiB"}, {}),
    "oom_build_growing": (BIRD_32, {"batch_size": 1, "budget": "297 MiB", "memory_growth": True}, {}),
    "oom_steady_step": (troubled.growing, {"batch_size": 2, "budget": "56 MiB"}, {}),
    "aborting": (troubled.aborting, {"batch_size": 1}, {}),
    "exiting": (troubled.exiting, {"batch_size": 1}, {}),
    "raising": (troubled.raising, {"batch_size": 1}, {}),
    "no_model": (troubled.no_model, {"batch_size": 1}, {}),
    "killed": (troubled.killed_by_the_system, {"batch_size": 1}, {}),
    "no_number": (troubled.no_number, {"batch_size": 2}, {}),
    "host_exhausted": (troubled.host_exhausted, {"batch_size": 1}, {}),
    "timed_out_in_import": (presets.digits, {"batch_size": 1}, {"timeout": 0.2}),
    "timed_out_in_build": (troubled.slow_to_build, {"batch_size": 1}, {"timeout": {"build": 0.5, "steady_step": 1}}),
}  # fmt: skip


def setup(**options):
    return TrainingSetup.create(**{"budget": "200 MiB", "device": "reference", **options})


def run(scenario):
    network, options, keywords = scenario
    events = []
    running = RunningTrial(network, setup(**options), on_event=events.append, **keywords)
    return running.wait(), events, running


@pytest.fixture(scope="module")
def ended():
    before = open_fds(), threading.active_count()
    with ThreadPoolExecutor(3) as pool:
        results = dict(zip(SCENARIOS, pool.map(run, SCENARIOS.values()), strict=True))
    assert (open_fds(), threading.active_count()) == before
    return results


@pytest.mark.parametrize("name", SCENARIOS)
def test_nothing_of_an_ended_trial_is_left_and_its_last_event_says_so(ended, name):
    trial, events, running = ended[name]
    assert not psutil.pid_exists(running.pid)
    assert [e.kind for e in events].count("ended") == 1
    assert events[-1].kind == "ended"
    assert events[0].phase == "import"
    assert trial.device == "reference"
    assert (trial.error is None) == (trial.status == "completed")
    running.cancel()  # too late: nothing happens
    assert running.wait() is trial


def test_a_completed_trial_reports_every_step_and_phase(ended):
    trial, events, _ = ended["completed"]
    assert trial.status == "completed"
    assert [s.index for s in trial.steps] == list(range(1, 41))
    peaks = [s.peak_bytes for s in trial.steps]
    assert list(trial.phases) == ["build", "first_step", "steady_step"]
    assert trial.phases["first_step"].peak_bytes == peaks[0]
    assert trial.peak_bytes == trial.phases["steady_step"].peak_bytes == statistics.median_low(peaks[2:])
    assert trial.profile is None
    assert trial.setup.budget_bytes == trial.device_limit_bytes == 200 * MIB
    assert "handwritten digits" in trial.data
    assert [e.step for e in events if e.kind == "step"] == list(trial.steps)
    assert [e.phase for e in events if e.kind == "phase"] == ["import", "build", "first_step", "steady_step"]
    assert any(e.kind == "sample" and e.host_rss_bytes > 0 for e in events)
    assert sorted(e.seconds for e in events) == [e.seconds for e in events]


def test_the_bytes_are_the_networks(ended):
    trial = ended["completed"][0]
    weights = presets.digits.parameters * 4
    assert weights <= trial.phases["build"].peak_bytes <= 4 * weights  # the initializer's copies
    for step in trial.steps:
        assert 3 * weights <= step.bytes_in_use <= 3 * weights + MIB  # weights and Adam's two slots
        assert step.bytes_in_use < step.peak_bytes < 200 * MIB
        assert step.host_rss_bytes > step.bytes_in_use


def test_the_loss_falls(ended):
    losses = [s.loss for s in ended["completed"][0].steps]
    assert losses[-1] < 0.75 * losses[0]
    assert losses[20:] == sorted(losses[20:], reverse=True)


def test_regions_that_grow_take_the_same_network(ended):
    trial = ended["memory_growth"][0]
    assert trial.status == "completed"
    assert trial.peak_bytes == pytest.approx(ended["completed"][0].peak_bytes, rel=0.5)  # other chunks, other slack


def test_a_function_of_a_notebook_travels(ended):
    trial = ended["notebook"][0]
    assert trial.status == "completed"
    assert trial.peak_bytes is None  # two steps only warm up
    assert list(trial.phases) == ["build", "first_step"]
    assert "random" in trial.data


def test_a_model_that_does_not_say_what_it_takes_is_told(ended):
    trial = ended["inputs"][0]
    assert trial.status == "completed"
    weights = 4 * (300 * 80 + 80 * 3 + 3)
    assert 3 * weights <= trial.steps[0].bytes_in_use <= 3 * weights + MIB


def test_chatter_on_stdout_and_stderr_does_no_harm(ended):
    assert ended["flooding"][0].status == "completed"


@pytest.mark.parametrize(
    ("name", "phase", "words", "shape"),
    [
        ("oom_build", "build", "the build", (1024, 2048)),
        ("oom_build_growing", "build", "the build", (188032, 128)),
        ("oom_first_step", "first_step", "the first step", (188032, 128)),
        ("oom_steady_step", "steady_step", "a steady step", None),
    ],
)
def test_out_of_memory_says_where_and_for_what(ended, name, phase, words, shape):
    trial, _, _ = ended[name]
    failure = trial.failure
    assert (trial.status, failure.phase) == ("out_of_memory", phase)
    assert phase not in trial.phases or phase == "steady_step"
    assert failure.limit_bytes == trial.device_limit_bytes == trial.setup.budget_bytes
    assert failure.dtype == "float32"
    if shape is not None:
        assert failure.shape == shape
        assert failure.requested_bytes == shape[0] * shape[1] * 4
    for part in (f"Out of memory in {words}", failure.op, "float32", "the limit is", "Way out"):
        assert part in trial.error
    assert len(trial.steps) == {"build": 0, "first_step": 0}.get(phase, len(trial.steps))
    assert failure.limit_bytes / 2 < trial.waterfall.peak_bytes <= failure.limit_bytes + FIRST_REGION_BYTES


def test_later_steps_may_fail_where_the_first_did_not(ended):
    trial = ended["oom_steady_step"][0]
    assert 1 <= len(trial.steps) < 5
    assert "first_step" in trial.phases


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("aborting", ["the build", "SIGABRT", "the last words"]),
        ("exiting", ["the build", "exit code 7"]),
        ("raising", ["the build", "raising", "KeyError", "no such key"]),
        ("no_model", ["the build", "no_model", "'not a model'", "keras.Model"]),
    ],
)
def test_a_crash_says_how(ended, name, words):
    trial = ended[name][0]
    assert trial.status == "crashed"
    for word in words:
        assert word in trial.error


def test_the_hosts_memory_is_not_the_devices(ended):
    trial = ended["host_exhausted"][0]
    assert trial.status == "host_out_of_memory"
    assert trial.failure is None
    assert "the build" in trial.error


def test_a_kill_is_not_taken_for_want_of_memory(ended):
    trial = ended["killed"][0]
    assert trial.status == "crashed"
    assert re.search(r"in the build: somebody killed the child process; [\d.]+ [GM]iB of memory were free", trial.error)


@pytest.mark.parametrize(
    ("kills", "free", "status"),
    [
        ((3, 4), 8 * GIB, "host_out_of_memory"),
        ((3, 3), 8 * MIB, "crashed"),
        ((None, None), 8 * MIB, "host_out_of_memory"),
        ((None, None), 8 * GIB, "crashed"),
    ],
)
def test_what_the_kernel_counts_tells_who_killed(monkeypatch, kills, free, status):
    counted = iter(kills)
    monkeypatch.setattr("memviz.measurement.trial.oom_kills", lambda: next(counted))
    running = RunningTrial(troubled.killed_by_the_system, setup(batch_size=1))
    monkeypatch.setattr("memviz.measurement.trial.available_bytes", lambda: free)
    assert running.wait().status == status


# Wide activations on small weights: a single example trains where Keras' 32 do not evaluate.
WIDE = ConvNet(input_shape=(96, 96, 3), blocks=(ConvBlock(filters=32),), head="global_average", dense=(8,))


def test_evaluation_and_prediction_are_phases_with_32_examples():
    trial = RunningTrial(WIDE, setup(batch_size=1), inference=True).wait()
    assert list(trial.phases) == ["build", "first_step", "steady_step", "evaluate", "predict"]
    batch, activations = 32 * 96 * 96 * 3 * 4, 32 * 94 * 94 * 32 * 4
    for phase in ("evaluate", "predict"):
        assert batch + activations < trial.phases[phase].peak_bytes < 200 * MIB
    assert trial.peak_bytes < activations / 2


def test_a_network_that_trains_may_not_evaluate():
    trial = RunningTrial(WIDE, setup(batch_size=1, budget="24 MiB"), inference=True).wait()
    assert (trial.status, trial.failure.phase) == ("out_of_memory", "evaluate")
    assert "Out of memory in evaluation" in trial.error
    assert list(trial.phases) == ["build", "first_step", "steady_step"]


def test_a_loss_that_is_no_number_is_said_and_training_goes_on(ended):
    trial = ended["no_number"][0]
    assert trial.status == "completed"
    assert len(trial.steps) == 5
    assert trial.note == "The loss is nan from step 1 on; training went on."


@pytest.mark.parametrize(("name", "words"), [("timed_out_in_import", "import"), ("timed_out_in_build", "build")])
def test_a_timeout_names_its_phase(ended, name, words):
    trial = ended[name][0]
    assert trial.status == "timed_out"
    assert f"the {words}" in trial.error


def cancelled_at(kind, phase, network, **keywords):
    """The trial cancelled at the first such event, and the seconds until its child was gone."""
    reached = threading.Event()
    running = RunningTrial(
        network, setup(batch_size=2), on_event=lambda e: reached.set() if (e.kind, e.phase) == (kind, phase) else None,
        **keywords,
    )  # fmt: skip
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(running.wait)
        assert reached.wait(PATIENCE)
        running.cancel()
        assert not psutil.pid_exists(running.pid)
        return waiting.result(PATIENCE)


@pytest.mark.parametrize(
    ("kind", "phase", "network"),
    [
        ("phase", "import", presets.digits),
        ("phase", "build", troubled.slow_to_build),
        ("sample", "first_step", troubled.slow_to_train),
        ("step", "steady_step", presets.digits),
    ],
)
def test_cancelling_ends_the_child_in_every_phase(kind, phase, network):
    trial = cancelled_at(kind, phase, network, steps=100_000)
    assert trial.status == "cancelled"
    assert trial.error == f"Cancelled in {PHASE_WORDS[phase]}."
    assert bool(trial.steps) == (phase == "steady_step")


def test_an_exception_of_on_event_ends_the_trial_and_is_raised():
    pids = psutil.Process().children()

    def fail(event):
        raise ZeroDivisionError("in the callback")

    with pytest.raises(ZeroDivisionError, match="in the callback"):
        measure(presets.digits, batch_size=1, budget="100 MiB", device="reference", on_event=fail)
    assert psutil.Process().children() == pids


def test_ctrl_c_ends_the_child_and_is_raised():
    children, others = [], psutil.Process().children()  # the warm estimating process may be one of the others

    def interrupt(event):
        if event.kind == "phase":
            children.extend(child for child in psutil.Process().children() if child not in others)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        measure(presets.digits, batch_size=1, budget="100 MiB", device="reference", on_event=interrupt)
    assert children
    assert not any(child.is_running() for child in children)


@pytest.mark.parametrize("record", [False, True])
def test_the_child_ends_in_the_middle_of_a_long_operation_when_its_parent_is_killed(record, tmp_path):
    script = f"""
import tempfile, troubled
tempfile.tempdir = {str(tmp_path)!r}
from memviz.measurement.trial import RunningTrial
from memviz.setup import FIRST_REGION_BYTES, TrainingSetup
setup = TrainingSetup(batch_size=1, budget_bytes=2**28, device="reference")
def tell(event):
    if (event.kind, event.phase) == ("sample", "first_step"):
        print(running.pid, flush=True)
running = RunningTrial(troubled.slow_to_train, setup, record={record}, on_event=tell)
running.wait()
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment) as parent:
        pid = json.loads(parent.stdout.readline())
        assert psutil.pid_exists(pid)
        assert len(list(tmp_path.iterdir())) == record
        parent.kill()
    assert gone(pid)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"steps": 0}, "steps=0"),
        ({"steps": 2.5}, r"steps is a whole number, not 2\.5"),
        ({"timeout": -1}, "timeout=-1"),
        ({"record": "yes"}, "record='yes' is not possible"),
        ({"on_event": 5}, "on_event=5 is not possible"),
        ({"timeout": {"biuld": 1}}, "'biuld' is not known. Did you mean 'build'"),
        ({"budget": "9 GBB"}, "'9 GBB' is not a size"),
        ({"budget": 1000}, "from 1.00 MiB"),
        ({"device": "TPU:0"}, "'TPU:0' is not known"),
        ({"device": "GPU:9"}, "'GPU:9' is not in this machine"),
    ],
)
def test_bad_input_is_refused_before_a_child_is_started(keywords, words):
    children = psutil.Process().children()
    with pytest.raises((ValueError, TypeError), match=words):
        measure(presets.digits, **{"batch_size": 1, "device": "reference", "budget": "100 MiB", **keywords})
    with pytest.raises(TypeError, match="A network is"):
        measure(3, batch_size=1)
    assert psutil.Process().children() == children


def limit_of(budget, free_bytes, network=presets.bird_audio):
    options = setup(batch_size=1, jit_compile=False, budget=budget)
    return host_limit(Network.of(network), options, free_bytes + HOST_RESERVE_BYTES)


def test_a_budget_that_the_host_can_promise_is_taken_in_whole_mib():
    assert limit_of(5 * GIB + 1, 6 * GIB) == 5 * GIB
    assert limit_of("300 GiB", 300 * GIB) == 300 * GIB


def test_what_cannot_be_estimated_may_take_what_the_host_has():
    def recurrent():
        import keras

        return keras.Sequential([keras.Input((5, 4)), keras.layers.LSTM(4)])

    assert limit_of(None, 20 * GIB + 5, recurrent) == 20 * GIB


def test_more_than_the_host_can_promise_is_never_taken():
    assert limit_of(None, 20 * GIB + 5) == 20 * GIB
    assert limit_of("300 GiB", 20 * GIB) == 20 * GIB  # bird_audio needs less


@pytest.mark.parametrize(
    ("budget", "need"), [(None, r"1[4-9]\.\d\d GiB"), ("300 GiB", r"1[4-9]\.\d\d GiB"), ("9 GiB", r"9\.00 GiB")]
)
def test_a_trial_that_the_host_cannot_hold_is_refused_with_the_numbers(budget, need):
    with pytest.raises(HostMemoryError, match=rf"would need {need} of memory and .* has 8\.00 GiB free.*Way out"):
        limit_of(budget, 8 * GIB)


def test_a_host_without_the_reserve_has_nothing_free():
    with pytest.raises(HostMemoryError, match=r"has 0 B free"):
        limit_of("1 GiB", -GIB)


def test_a_trial_that_no_host_can_hold_does_not_start():
    huge = dataclasses.replace(presets.bird_audio, dense=(128_000,))
    with pytest.raises(HostMemoryError, match=r"would need .* TiB of memory and this machine has .* free"):
        measure(huge, batch_size=1, device="reference")


def test_without_a_budget_the_limit_is_what_the_host_can_promise():
    trial = measure(presets.digits, batch_size=2, device="reference", steps=1)
    assert trial.status == "completed"
    assert trial.setup.budget_bytes is None
    assert 0 < trial.device_limit_bytes < psutil.virtual_memory().total - HOST_RESERVE_BYTES


def test_the_parent_stays_small():
    before = psutil.Process().memory_info().rss
    measure(presets.digits, batch_size=64, budget="300 MiB", device="reference", steps=3)
    assert psutil.Process().memory_info().rss - before < 50e6
