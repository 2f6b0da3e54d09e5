"""Real data for a trial: every kind that `fit` takes, and every way it can fail."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import Pipe

import feeds
import numpy as np
import psutil
import pytest
import troubled
from processes import PATIENCE, gone, open_fds

from memviz import measure, presets
from memviz.measurement import recordings
from memviz.measurement.fed import FedBatches
from memviz.measurement.feeder import serve
from memviz.measurement.trial import RunningTrial
from memviz.setup import TrainingSetup


def setup(**options):
    return TrainingSetup.create(**{"batch_size": feeds.BATCH, "budget": "100 MiB", "device": "reference", **options})


def fed(data, **options):
    return RunningTrial(feeds.network, setup(), data=data, **{"steps": 6, **options}).wait()


TAKEN = {
    "dataset": feeds.dataset, "generator function": feeds.generator, "arrays": feeds.arrays,
    "PyDataset": feeds.py_dataset,
    "sample weights": feeds.with_weights, "a function of the batch size": feeds.sized,
    "arrays here": feeds.arrays(), "generator here": feeds.generator(),
    "a smaller batch": feeds.ending_with_a_smaller_batch, "three batches": feeds.three_batches,
    "float64 arrays": lambda: feeds.arrays(dtype="float64"), "float64": feeds.wide_generator,
    "no weights": feeds.none_for_weights, "frames": feeds.frames, "leaving files": feeds.leaving_files,
}  # fmt: skip
REFUSED = {
    "nothing": (feeds.nothing, "The data function nothing returned None; it returns a tf.data.Dataset"),
    "empty": (feeds.empty, "The data is empty"),
    "uneven": (feeds.uneven, "The data has arrays of 7, 8 examples"),
    "only features": (feeds.only_features, "gave a batch that is ndarray of shape (4, 8); each one is (features,"),
    "unbatched": (feeds.unbatched, "The data's features are (8,), single examples; batch it, as by .batch(4)."),
    "too wide": (feeds.too_wide, "The data's features are (9,) per example, the network takes (8,)."),
    "batch size": (feeds.another_batch_size, "batches hold 5 examples, batch_size is 4; give batch_size=5"),
    "names": (feeds.unknown_names, "The data's features are 'left', 'right', the network takes one tensor."),
    "one-hot": (feeds.one_hot, "The data's labels are one-hot, (3,) per example, and the loss takes class numbers"),
    "label": (feeds.label_outside, "The label 3 of step 3 is none of the network's 3 classes, which are 0 to 2."),
    "ragged": (feeds.ragged, "values that no dense tensor of numbers holds"),
    "strings": (feeds.strings, "values that no dense tensor of numbers holds"),
    "raising": (feeds.raising, "The data raised KeyError: 'no such clip' (line "),
    "raising at once": (feeds.raising_at_once, "The data raised FileNotFoundError: clips.zip (line "),
    "killed": (feeds.killed, "somebody killed the process that reads the data"),
    "forking": (feeds.forking_and_killed, "somebody killed the process that reads the data"),
    "exiting by itself": (feeds.exiting_by_itself, "The data raised SystemExit: no clips found (line "),
    "a broken pipe": (feeds.a_broken_pipe, "The data raised BrokenPipeError: ffmpeg is gone (line "),
    "exiting": (feeds.exiting, "the process that reads the data ended with exit code 3. The end of what it wrote:"),
}  # fmt: skip


# What needs processes to be seen; all else is seen at the pipe's end.
IN_A_TRIAL = ("killed", "forking", "exiting")
AT_THE_PIPE = (
    "generator function",
    "PyDataset",
    "sample weights",
    "a function of the batch size",
    "no weights",
    "frames",
)


@pytest.fixture(scope="module")
def trials(tmp_path_factory):
    before, mine = open_fds(), tmp_path_factory.mktemp("own")  # others may have trials, too
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(tempfile, "tempdir", str(mine))
    with ThreadPoolExecutor(3) as pool:
        data = {name: TAKEN[name] for name in TAKEN if name not in AT_THE_PIPE}
        data |= {name: REFUSED[name][0] for name in IN_A_TRIAL}
        found = dict(zip(data, pool.map(fed, data.values()), strict=True))
    children = [c for c in psutil.Process().children(recursive=True) if "memviz.measurement" in " ".join(c.cmdline())]
    assert not children
    assert not os.listdir(mine)
    monkeypatch.undo()
    assert open_fds() - before <= 2  # the generator that is not finished keeps its end until it is asked again
    return found


@pytest.mark.parametrize("name", [name for name in TAKEN if name not in AT_THE_PIPE])
def test_what_fit_takes_is_trained_on(trials, name):
    trial = trials[name]
    assert (trial.status, trial.error) == ("completed", None)
    assert len(trial.steps) == (3 if name == "three batches" else 6)
    assert trial.steps[-1].loss < trial.steps[0].loss
    assert trial.data == "the given data"


def test_the_data_is_counted_as_the_batch_alone(trials):
    peaks = {name: trials[name].peak_bytes for name in ("dataset", "arrays", "arrays here", "generator here")}
    assert max(peaks.values()) - min(peaks.values()) <= 4096, peaks  # orders of execution


def test_float64_is_kept_counted_and_said_but_of_arrays_which_fit_casts(trials):
    wide, usual, cast = trials["float64"], trials["arrays"], trials["float64 arrays"]
    assert abs(cast.peak_bytes - usual.peak_bytes) <= 4096  # orders of execution
    assert cast.note == "The data holds arrays of float64; as fit does, they are cast to float32 on the host."
    assert wide.note == "The data's features are float64 and stay so on the device: 256 B per batch, as float32 128 B."
    assert usual.note == ""


def test_a_step_of_another_size_is_trained_and_said(trials):
    assert trials["a smaller batch"].note == "Step 4 has 1 examples, and a graph of its own."


def test_a_generator_that_ends_ends_the_trial(trials):
    assert trials["three batches"].note == "The data ended after 3 steps; a generator cannot begin again."
    assert trials["three batches"].peak_bytes is not None


@pytest.mark.parametrize("name", IN_A_TRIAL)
def test_a_trial_says_in_a_sentence_what_its_data_did(trials, name):
    trial, (_, sentence) = trials[name], REFUSED[name]
    assert trial.status == "crashed"
    assert sentence in trial.error


@contextmanager
def at_the_pipe(data, count=3, say=lambda kind, **told: None):
    """What a trainer gets of the data, as a function from the step's number."""
    model = feeds.network()
    model.compile(loss="sparse_categorical_crossentropy")
    receiving, sending = Pipe(duplex=False)
    with receiving:
        threading.Thread(target=serve, args=(sending, data, feeds.BATCH, count)).start()
        yield FedBatches(receiving, model, setup(), say).batch


@pytest.mark.parametrize("name", AT_THE_PIPE)
def test_each_step_gets_a_batch(name):
    wanted_features, wanted_labels = feeds.arrays(feeds.BATCH)
    with at_the_pipe(TAKEN[name]) as batch:
        features, labels, *weights = batch(0)
    assert np.array_equal(features, wanted_features)
    assert features.dtype == "float32"
    assert np.array_equal(labels, wanted_labels)
    assert len(weights) == (name == "sample weights")


def test_sample_weights_that_the_estimate_does_not_count_are_said():
    said = []
    with at_the_pipe(TAKEN["sample weights"], say=lambda kind, **told: said.append((kind, told))) as batch:
        batch(0)
        batch(1)
    text = "The data has sample weights; the estimate of this training is that of sample_weight=True."
    assert [told for told in said if told[0] == "note"] == [("note", {"text": text})]


@pytest.mark.parametrize("name", [name for name in REFUSED if name not in IN_A_TRIAL])
def test_data_that_does_not_suit_is_refused_in_a_sentence(name):
    function, sentence = REFUSED[name]
    with at_the_pipe(function) as batch, pytest.raises(ValueError, match=re.escape(sentence)):
        list(map(batch, range(3)))


def test_what_a_step_did_before_the_data_failed_is_kept(trials):
    assert [len(trials[name].steps) for name in IN_A_TRIAL] == [2] * len(IN_A_TRIAL)


@pytest.mark.parametrize("data", [3, "clips", [1, 2], np.zeros((4, 8)), feeds.arrays, (1, 2), ()])
def test_what_cannot_be_data_is_refused_before_a_child_is_started(data):
    if data is feeds.arrays:
        lock = threading.Lock()
        data, error, words = (lambda: lock), ValueError, "cannot be taken to another process"
    else:
        error, words = TypeError, r"data=.* is not possible; it is a tf\.data\.Dataset"
    children = psutil.Process().children()
    with pytest.raises(error, match=words):
        fed(data)
    assert psutil.Process().children() == children


def test_a_feeder_that_blocks_is_named_when_time_is_up():
    trial = fed(feeds.blocking, timeout={"steady_step": 3})
    assert trial.status == "timed_out"
    assert trial.error.startswith(
        "Stopped in a steady step, waiting for its data, after the 3 s that this phase may take."
    )
    assert len(trial.steps) == 2


def test_a_dataset_that_is_here_is_read_here():
    trial = fed(feeds.dataset(), record=True)
    assert trial.status == "completed"
    assert trial.profile.peak_bytes == trial.profile.allocator_peak_bytes
    assert trial.profile.by_category()["input"] >= feeds.BATCH * 8 * 4


def test_inputs_are_found_by_their_names_and_in_named_tuples():
    features, labels = feeds.arrays()
    named = {"right": np.ones((40, 2), "float32"), "left": features}
    for data in ((named, labels), feeds.named_tuples):
        assert RunningTrial(feeds.two_inputs, setup(), data=data, steps=2).wait().status == "completed"


def test_sequences_of_another_length_are_taken_where_the_network_takes_them():
    ended = RunningTrial(
        troubled.any_length, setup(loss="mse", inputs="int32[5]"), data=feeds.of_another_length, steps=3
    ).wait()
    assert (ended.status, len(ended.steps)) == ("completed", 3)


def ignoring(loss):
    def network():
        model = feeds.network()
        model.compile(loss=loss)
        return model

    return network


def test_labels_that_a_loss_ignores_are_no_mistake():
    import keras

    loss = keras.losses.SparseCategoricalCrossentropy(ignore_class=feeds.CLASSES)
    assert RunningTrial(ignoring(loss), setup(), data=feeds.label_outside, steps=3).wait().status == "completed"


def test_a_generator_that_ends_leaves_evaluation_out_and_says_what_is_not_recorded():
    trial = fed(feeds.three_batches, steps=5, inference=True, record=True)
    assert trial.status == "completed"
    assert list(trial.phases) == ["build", "first_step", "steady_step"]
    assert trial.profile is None
    assert "No steady step is recorded: that is step 4." in trial.note
    assert "The data ended after 3 steps" in trial.note


def test_a_generator_is_read_no_further_than_it_is_trained_on():
    read = []

    def counted():
        for number in range(60):
            read.append(number)
            yield feeds.arrays(feeds.BATCH)

    data = counted()
    for _ in range(2):
        assert len(fed(data, steps=3).steps) == 3
    assert len(read) <= 2 * (3 + 2)


def test_the_largest_step_is_in_the_waterfall():
    def sizes():
        yield from (feeds.arrays(n) for n in (4, 4, 4, 4000, 4))

    trial = fed(sizes, steps=5)
    assert trial.waterfall.peak_bytes == max(step.peak_bytes for step in trial.steps) > 10 * trial.peak_bytes


def test_a_batch_that_finds_no_room_is_named():
    trial = RunningTrial(troubled.wide_input, setup(batch_size=64, budget="16 MiB", loss="mse")).wait()
    assert (trial.status, trial.failure.op, trial.failure.shape) == ("out_of_memory", "batch", (64, 100_000))
    assert "the batch asked for 24.41 MiB (64 x 100,000, float32)" in trial.error
    assert "a smaller batch" in trial.error
    assert "slots" not in trial.error


def test_all_words_of_waiting_end_when_the_data_comes():
    def late():
        time.sleep(2)
        yield np.zeros((feeds.BATCH, 9), "float32"), np.zeros(feeds.BATCH)

    assert fed(late).error.startswith("The trial failed in the first step: The data's features are (9,)")


def test_the_loss_falls_on_recordings_of_birds():
    trial = measure(
        presets.bird_audio_pooled,
        batch_size=4,
        budget="1 GiB",
        device="reference",
        steps=16,
        data=recordings.bird_audio,
    )
    assert trial.status == "completed"
    totals = [step.index * step.loss for step in trial.steps]  # Keras reports the mean so far
    losses = np.diff(totals, prepend=0)
    assert losses[-4:].mean() < 0.5 * losses[:4].mean()


def test_recordings_have_the_founding_questions_shape_and_both_labels():
    features, labels = next(iter(recordings.bird_audio(batch_size=6, recordings=6)))
    assert features.shape == (6, *presets.bird_audio.input_shape)
    assert sorted(labels[:, 0].numpy()) == [0, 0, 0, 1, 1, 1]
    birds, noise = features[labels[:, 0] == 1], features[labels[:, 0] == 0]
    assert np.max(birds) > 5 * np.max(noise)


def test_feeder_and_trainer_end_when_their_parent_is_killed(tmp_path):
    script = f"""
import tempfile, feeds
tempfile.tempdir = {str(tmp_path)!r}
from memviz.measurement.trial import RunningTrial
from memviz.setup import TrainingSetup
setup = TrainingSetup(batch_size=4, budget_bytes=2**27, device="reference")
def tell(event):
    if event.step and event.step.index == 2:
        print(running.pid, running._feeder.child.pid, flush=True)
running = RunningTrial(feeds.network, setup, data=feeds.blocking, on_event=tell)
running.wait()
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment) as parent:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(list(tmp_path.iterdir())) == 1
        parent.kill()
    assert all(map(gone, pids))
    assert not list(tmp_path.iterdir())


def test_a_parent_that_hears_late_that_data_was_waited_for_goes_on():
    def slow_to_listen(event):
        if event.phase == "first_step" and event.kind == "phase":
            time.sleep(6)  # the feeder has sent all and is gone by then

    def late():
        time.sleep(2)
        yield from [feeds.arrays(feeds.BATCH)] * 9

    assert fed(late, steps=2, on_event=slow_to_listen).status == "completed"


def test_cancelling_ends_the_feeder_too():
    waiting = threading.Event()
    running = RunningTrial(
        feeds.network, setup(), data=feeds.blocking, on_event=lambda e: e.step and e.step.index == 2 and waiting.set()
    )
    with ThreadPoolExecutor(1) as pool:
        trial = pool.submit(running.wait)
        assert waiting.wait(PATIENCE)
        feeder = running._feeder.child.pid
        running.cancel()
        assert trial.result(PATIENCE).status == "cancelled"
    assert not psutil.pid_exists(feeder)


def test_a_trainer_that_is_killed_takes_its_feeder_along():
    def kill(event):
        if event.step and event.step.index == 2:
            os.kill(running.pid, signal.SIGKILL)

    running = RunningTrial(feeds.network, setup(), data=feeds.generator, steps=50, on_event=kill)
    trial = running.wait()
    assert trial.status == "crashed"
    assert "somebody killed the child process" in trial.error
    assert not psutil.pid_exists(running._feeder.child.pid)
