"""XLA's plan against what a trial's allocator is really asked for."""

import itertools
import math

import keras
import numpy as np
import pytest
from keras import layers

import memviz
from memviz.estimation.assignment import ARENA, Block, Part, divided, lines_of
from memviz.estimation.attribution import Owner
from memviz.estimation.replay import Purpose, Say
from memviz.profile import UNATTRIBUTED, Allocation, Category
from memviz.units import MIB

OPTIONS = {"jit_compile": True, "device": "reference"}


def convolutions():
    return keras.Sequential([
        keras.Input((32, 32, 3)), layers.Conv2D(16, 3, activation="relu"), layers.BatchNormalization(),
        layers.MaxPooling2D(), layers.Conv2D(32, 3, activation="relu"), layers.Flatten(), layers.Dense(64, "relu"),
        layers.Dense(10, "softmax"),
    ])  # fmt: skip


def recurrent():
    return keras.Sequential([keras.Input((40, 24)), layers.LSTM(64), layers.Dense(5, "softmax")])


def two_ends():
    image, table = keras.Input((16, 16, 3)), keras.Input((20,))
    x = layers.Concatenate()([layers.Flatten()(layers.Conv2D(8, 3)(image)), layers.Dense(16)(table)])
    model = keras.Model([image, table], [layers.Dense(300)(x), layers.Dense(1)(x)])
    model.compile("adam", ["mse", "mse"])
    return model


@pytest.mark.parametrize(
    ("network", "optimizer"),
    [(convolutions, "adam"), (convolutions, "adafactor"), (recurrent, "sgd"), (two_ends, "adam")],
)
def test_the_plan_is_what_a_compiled_trial_takes(network, optimizer):
    estimate = memviz.estimate(network, batch_size=32, optimizer=optimizer, **OPTIONS)
    trial = memviz.measure(network, batch_size=32, optimizer=optimizer, budget="1 GiB", **OPTIONS)
    assert trial.status == "completed", trial.error
    for phase in ("first_step", "steady_step"):
        assert estimate.phases[phase].profile.source == "compiled"
        measured = trial.phases[phase].peak_bytes
        assert estimate.phases[phase].peak_bytes == pytest.approx(measured, rel=0.01, abs=16_384)
    assert estimate.phases["build"].profile.source == "estimated"
    assert estimate.profile.setup["jit_compile"] is True


def test_a_recorded_arena_is_divided_as_the_estimated_one():
    options = {"batch_size": 32, "optimizer": "adam", **OPTIONS}
    estimate = memviz.estimate(convolutions, **options).profile
    recorded = memviz.measure(convolutions, budget="1 GiB", record=True, **options).profile
    assert recorded.peak_bytes == recorded.allocator_peak_bytes == recorded.by_layer().to_numpy().sum()
    # Requested bytes, of all that belongs to a layer; the rest is slack and scalars.
    rows = [row for row in estimate.by_layer().index if row not in (UNATTRIBUTED, "optimizer", "metrics")]
    tables = [p.by_layer().drop(columns="allocator_slack").loc[rows] for p in (estimate, recorded)]
    np.testing.assert_array_equal(*tables)
    held = tables[0].loc["conv2d", ["activation", "activation_gradient", "temporary"]].sum()
    assert held >= 32 * 30 * 30 * 16 * 4  # its output, at least


def test_a_budget_that_does_not_hold_the_arena_fails_as_the_trial_does():
    options = {"batch_size": 32, "budget": "16 MiB", **OPTIONS}
    estimate, trial = memviz.estimate(convolutions, **options), memviz.measure(convolutions, **options)
    for failure in (estimate.failure, trial.failure):
        assert (failure.phase, failure.op) == ("first_step", "the compiled step")
    assert estimate.failure.requested_bytes == pytest.approx(trial.failure.requested_bytes, rel=1e-3)
    assert "the compiled step asked for" in trial.error


def test_required_bytes_of_a_compiled_step_is_where_trials_begin_to_complete():
    required = memviz.estimate(convolutions, batch_size=64, **OPTIONS).required_bytes
    for factor, status in ((1.02, "completed"), (0.95, "out_of_memory")):
        budget = math.ceil(factor * required / MIB) * MIB
        assert memviz.measure(convolutions, batch_size=64, budget=budget, **OPTIONS).status == status


def test_the_plan_of_the_cpu_is_not_shown_for_a_gpu():
    with pytest.raises(ValueError, match="What XLA would do for GPU:0 is not known here"):
        memviz.estimate(convolutions, batch_size=4, jit_compile=True, device="GPU:0")


def test_what_xla_cannot_compile_is_refused_in_one_sentence():
    import tensorflow as tf

    class Unique(layers.Layer):
        def call(self, x):
            return x + tf.cast(tf.size(tf.strings.as_string(x)), x.dtype)

    def network():
        return keras.Sequential([keras.Input((4,)), Unique(), layers.Dense(2)])

    with pytest.raises(ValueError, match="cannot be traced"):
        memviz.estimate(network, batch_size=4, **OPTIONS)


def test_where_keras_does_not_compile_the_estimate_does_not_either():
    def network():
        stack = [keras.layers.Hashing(10), keras.layers.Embedding(10, 4), keras.layers.Flatten(), keras.layers.Dense(2)]
        return keras.Sequential([keras.Input((3,), dtype="int64"), *stack])

    assert not keras.layers.Hashing(10).supports_jit
    profile = memviz.estimate(network, batch_size=4, **OPTIONS).profile
    assert (profile.source, profile.setup["jit_compile"]) == ("estimated", False)


def test_a_block_is_divided_without_a_byte_more_or_less():
    owners = [Purpose(Owner(name, Category.ACTIVATION), name, (n,), "float32") for n, name in ((64, "a"), (32, "b"))]
    block = Block(1_000, False, [Part(0, 256, owners[0]), Part(512, 128, owners[1])])
    lines = lines_of([block, Block(4, True, [])])
    assert [line.say for line in lines] == [Say.ALLOCATE, Say.ALLOCATE, Say.RELEASE, Say.RELEASE]
    assert lines[2].key == lines[0].key  # the temporaries go first, then the outputs
    whole = Allocation(1_024, 1_000, 3, 5, UNATTRIBUTED, Category.TEMPORARY, f"{ARENA}0", address=4_096)
    parts = [*divided([whole], [block])]
    assert sum(part.nbytes for part in parts) == whole.nbytes
    assert [part.layer for part in parts] == ["a", "b", UNATTRIBUTED]
    assert [part.address for part in parts[:2]] == [4_096, 4_608]
    assert parts[2].requested_nbytes == 0  # slack
    assert all((part.start, part.end) == (3, 5) for part in parts)


def test_the_parts_of_an_arena_do_not_overlap():
    estimate = memviz.estimate(convolutions, batch_size=32, **OPTIONS)
    arena = [a for a in estimate.profile.at_peak() if a.dtype != "" and a.category != Category.PARAMETER and a.end]
    spans = sorted((a.address, a.address + a.nbytes) for a in arena)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    assert len(spans) > 10
