"""What can go wrong around a trial: only that trial is lost, it is said what happened, and nothing is left behind."""

import gc
import os
import random
import signal
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import feeds
import psutil
import pytest
import troubled
from processes import PATIENCE, gone, open_fds

from memviz import presets
from memviz.failure import PHASE_WORDS
from memviz.measurement.trial import RunningTrial
from memviz.setup import TrainingSetup


def running(network, **options):
    setup = TrainingSetup.create(batch_size=feeds.BATCH, budget="100 MiB", device="reference")
    return RunningTrial(network, setup, **options)


def left_over():
    """What a trial could leave: children, open files, threads, temporary folders, shared memory."""
    folders = set(os.listdir(tempfile.gettempdir()))
    children = {child.pid for child in psutil.Process().children(recursive=True)}
    return children, open_fds(), threading.active_count(), folders, set(os.listdir("/dev/shm"))


@pytest.fixture(autouse=True)
def nothing_left(tmp_path_factory, monkeypatch):
    # Others may have trials, too.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("own")))
    before = left_over()
    yield
    assert left_over() == before


@pytest.mark.parametrize("phase", ["import", "build", "first_step", "steady_step"])
def test_a_child_killed_in_any_phase_is_one_lost_trial(phase):
    def kill(event):
        if (event.kind, event.phase) == ("phase", phase):
            os.kill(trial.pid, signal.SIGKILL)

    trial = running(presets.digits, steps=1000, on_event=kill)
    ended = trial.wait()
    assert ended.status == "crashed"
    assert f"failed in {PHASE_WORDS[phase]}: somebody killed the child process" in ended.error


def test_the_next_trial_works():
    assert running(presets.digits, steps=1).wait().status == "completed"


@pytest.fixture
def forked(tmp_path, monkeypatch):
    """The file in which a builder that forks notes the number."""
    monkeypatch.setenv("MEMVIZ_TEST_FORKED", str(tmp_path / "pid"))
    return tmp_path / "pid"


@pytest.mark.parametrize(
    ("network", "status"), [(troubled.forking, "completed"), (troubled.forking_and_killed, "crashed")]
)
def test_what_a_builder_forks_ends_with_the_trial(network, status, forked):
    assert running(network, steps=1).wait().status == status
    assert gone(int(forked.read_text()))


def test_a_full_disk_costs_the_recording_and_no_more():
    trial = running(troubled.on_a_full_disk, record=True).wait()
    assert trial.status == "completed"
    assert trial.profile is None
    assert trial.note.startswith("The recording cannot be read: ")
    assert len(trial.steps) == 5


def test_a_parent_that_does_not_listen_holds_the_child_up_and_can_cancel_it():
    stuck, free = threading.Event(), threading.Event()

    def listen(event):
        if event.step and event.step.index == 1:
            stuck.set()
            assert free.wait(PATIENCE)

    trial = running(presets.digits, steps=100_000, on_event=listen)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(trial.wait)
        assert stuck.wait(PATIENCE)
        child = psutil.Process(trial.pid)
        before, idle = None, 0
        while idle < 3:  # once the pipe is full it does nothing
            now = sum(child.cpu_times()[:2])
            idle = idle + 1 if now == before else 0
            before = now
            threading.Event().wait(0.3)
        trial.cancel()
        assert not psutil.pid_exists(trial.pid)
        free.set()
        ended = waiting.result(PATIENCE)
    assert ended.status == "cancelled"
    assert 1 <= len(ended.steps) < 100_000


def test_a_trial_that_two_threads_wait_for_is_one_trial():
    events = []
    trial = running(presets.digits, steps=2, on_event=events.append)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: trial.wait(), range(2))
    assert first is second
    assert [e.kind for e in events].count("ended") == 1


def one_of_many(number):
    """A trial of one kind or another, cancelled at a random moment where it is to be; its status."""
    kind = number % 5
    if kind == 3:
        trial = running(presets.digits, steps=100_000)
        moment = random.Random(number).uniform(0, 4)
        timer = threading.Timer(moment, trial.cancel)
        timer.start()
        ended = trial.wait()
        timer.join()
        return ended.status
    network, options = [
        (presets.digits, {"steps": 2}),
        (troubled.killed_by_the_system, {}),
        (feeds.network, {"data": feeds.generator, "steps": 2}),
        (None, {}),
        (troubled.wide_dense, {"record": True, "timeout": 2}),
    ][kind]
    return running(network, **options).wait().status


@pytest.mark.parametrize("count", [20, pytest.param(200, marks=pytest.mark.soak)])
def test_many_trials_in_a_row_leave_nothing(count):
    running(presets.digits, steps=1).wait()
    gc.collect()
    before, rss = left_over(), psutil.Process().memory_info().rss
    statuses = [one_of_many(number) for number in range(count)]
    gc.collect()
    assert set(statuses[::5]) == set(statuses[2::5]) == {"completed"}
    assert set(statuses[1::5]) == {"crashed"}
    assert set(statuses[3::5]) == {"cancelled"}
    assert set(statuses[4::5]) <= {"completed", "timed_out"}
    assert left_over() == before
    assert psutil.Process().memory_info().rss - rss < 50e6


@pytest.mark.soak
@pytest.mark.parametrize("number", range(40))
def test_a_trial_is_cancelled_at_any_moment(number):
    trial = running(presets.digits, steps=100_000, record=number % 2 == 0)
    timer = threading.Timer(number / 8, trial.cancel)
    timer.start()
    assert trial.wait().status == "cancelled"
    timer.join()
    assert not Path(f"/proc/{trial.pid}").exists()
