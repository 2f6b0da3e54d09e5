import os
import random
import re
import subprocess
import sys

import keras
import networks_to_watch
import numpy as np
import psutil
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

import memviz
from memviz.measurement.monitor import growth
from memviz.views.figures import trial_figure

STEPS = 30


class Keeps(keras.callbacks.Callback):
    """The leak: a list that keeps a tensor of every step."""

    def __init__(self, nbytes):
        super().__init__()
        self.kept, self.elements = [], nbytes // 4

    def on_train_batch_end(self, batch, logs=None):
        self.kept.append(tf.zeros(self.elements))


def watched(name, *others, epochs=2):
    model, features, labels = networks_to_watch.ALL[name]()
    monitor = memviz.MemoryMonitor()
    history = model.fit(features, labels, batch_size=8, epochs=epochs, verbose=0, callbacks=[*others, monitor])
    return monitor, history


@pytest.mark.parametrize("name", networks_to_watch.ALL)
def test_a_clean_training_is_silent_and_every_step_is_there(name, capsys):
    monitor, history = watched(name)
    assert monitor.leak == "" == capsys.readouterr().out
    assert [step.index for step in monitor.steps] == list(range(1, 2 * STEPS + 1))
    assert all(0 < step.bytes_in_use <= step.peak_bytes for step in monitor.steps)
    assert monitor.epochs == [max(s.peak_bytes for s in monitor.steps[e * STEPS : (e + 1) * STEPS]) for e in (0, 1)]
    assert monitor.steps[-1].loss == pytest.approx(history.history["loss"][-1], rel=1e-5)


# Of the size of a batch and more: tf.data's buffers come and go on the CPU.
@pytest.mark.parametrize("nbytes", [1 << 17, 1 << 20])
def test_a_leak_is_found_within_thirty_steps_and_its_slope_is_right(nbytes, capsys):
    monitor, _ = watched("dense", Keeps(nbytes), epochs=1)
    assert len(monitor.steps) == STEPS
    (slope,) = re.findall(r"grows by about ([\d,.]+ \w+) in each step", monitor.leak)
    assert memviz.units.parse_bytes(slope.replace(",", "")) == pytest.approx(nbytes, rel=0.25)
    assert capsys.readouterr().out.count("memviz:") == 1


def test_the_peak_is_at_least_what_a_step_must_hold():
    monitor, _ = watched("dense", epochs=1)
    weights = sum(np.prod(w.shape) * 4 for w in monitor.model.weights)
    slots = sum(np.prod(v.shape) * 4 for v in monitor.model.optimizer.variables)
    assert monitor.steps[-1].bytes_in_use >= weights + slots
    assert monitor.steps[-1].host_rss_bytes == pytest.approx(psutil.Process().memory_info().rss, rel=0.2)


def test_its_figure_draws_every_step():
    monitor, _ = watched("dense", epochs=1)
    in_use, peak, *_, loss = trial_figure(monitor.events).data
    assert list(in_use.y) == [step.bytes_in_use for step in monitor.steps]
    assert list(peak.y) == [step.peak_bytes for step in monitor.steps]
    assert list(loss.y) == [step.loss for step in monitor.steps]


def test_before_training_its_figure_is_empty_and_an_unknown_device_is_refused():
    assert trial_figure(memviz.MemoryMonitor().events).data
    assert memviz.MemoryMonitor("/cpu").device == memviz.MemoryMonitor("/device:CPU:0").device == "CPU:0"
    with pytest.raises(ValueError, match=r"'GPU:7' is not here: TensorFlow sees CPU:0"):
        memviz.MemoryMonitor("GPU:7")


WITHOUT_STATISTICS = """
import memviz, networks_to_watch
model, features, labels = networks_to_watch.ALL["dense"]()
try:
    model.fit(features, labels, verbose=0, callbacks=[memviz.MemoryMonitor()])
except ValueError as error:
    print(error)
"""


def test_a_device_without_statistics_is_refused_before_the_first_step():
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TF_CPU")}
    environment |= {"TF_ENABLE_ONEDNN_OPTS": "0", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_STATISTICS], check=True, env=environment, capture_output=True, text=True
    )
    assert "no memory statistics of CPU:0 here. Way out:" in done.stdout


@given(st.lists(st.integers(0, 10**9), max_size=400))
def test_there_is_no_growth_where_memory_comes_back(levels):
    assert growth([*levels, min(levels, default=0)]) == ""


@given(st.integers(0, 2**32), st.integers(1, 10**6), st.integers(1, 20))
def test_a_slow_growth_beneath_a_fluctuation_is_seen_at_last(seed, per_step, times):
    noise = random.Random(seed)
    levels = [10**8 + per_step * n + noise.randint(0, times * per_step) for n in range(3 + 96 * 4)]
    assert any(growth(levels[:end]) for end in range(len(levels) + 1))


@given(st.integers(0, 2**32), st.integers(0, 300), st.integers(0, 300))
def test_neither_a_fluctuation_nor_a_jump_or_two_are_a_growth(seed, one, two):
    noise = random.Random(seed)
    jumps = [10**6 * ((step >= one) + (step >= two)) for step in range(300)]
    assert not any(growth(jumps[:end]) for end in range(301))
    levels = [noise.randint(0, 10**6) for _ in range(300)]
    assert not any(growth(levels[:end]) for end in range(301))


# Bytes above the lowest after each step of two clean trainings ("normed") beside other load: tf.data's queues.
# fmt: off
QUEUES = [
    [8960, 10752, 11008, 11008, 11008, 10752, 11008, 9216, 10496, 10496, 10496, 9216, 10240, 10496, 10496, 10752,
     11008, 10752, 11008, 11264, 11264, 9472, 9472, 11264, 9472, 10496, 11008, 6656, 2816, 0, 10752, 9472, 10752,
     7680, 8448, 12544, 12544, 12544, 12288, 9984, 6912, 17408, 16896, 17152, 16896, 16896, 17152, 17408, 17408,
     16640, 16896, 16640, 12032, 11520, 15360, 10496, 9984, 8448, 2048, 3328],
    [9984, 11008, 8704, 12800, 11520, 17152, 13056, 14336, 8448, 14848, 14848, 14848, 12544, 12544, 11776, 13056,
     13056, 10752, 9984, 10752, 11008, 13312, 10240, 13312, 13312, 11008, 8192, 5632, 3328, 1024, 4352, 3328, 6144,
     3328, 7424, 5120, 5632, 9216, 6144, 8704, 11520, 18944, 18944, 18944, 14848, 20480, 17664, 19968, 19968, 16896,
     16384, 20224, 20224, 20224, 17920, 12800, 8704, 7424, 2560, 0]
]
# fmt: on


@pytest.mark.parametrize("levels", QUEUES)
def test_queues_that_fill_and_drain_are_no_growth_and_one_above_them_is(levels):
    assert not any(growth(levels[:end]) for end in range(len(levels) + 1))
    leaking = [level + 2_000 * step for step, level in enumerate(levels)]
    assert any(growth(leaking[:end]) for end in range(len(levels) + 1))


def test_a_loss_given_as_a_tensor_is_kept_as_a_number():
    monitor = memviz.MemoryMonitor()
    monitor.on_train_begin()
    monitor.on_epoch_begin(0)
    for logs in ({"loss": tf.constant(2.5)}, {}, None):
        monitor.on_train_batch_begin(0)
        monitor.on_train_batch_end(0, logs)
    assert [step.loss for step in monitor.steps] == [2.5, None, None]
    assert type(monitor.steps[0].loss) is float
    assert [step.index for step in monitor.steps] == [1, 2, 3]
