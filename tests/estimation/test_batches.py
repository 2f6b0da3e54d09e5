from dataclasses import replace

import keras
import networks
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memviz.estimation.batches import TracesByBatch
from memviz.estimation.estimate import estimate_traced, trace_training
from memviz.models.network import Network
from memviz.setup import TrainingSetup

SETUP = TrainingSetup(batch_size=1, jit_compile=False, device="reference")


class Traces:
    """Traces of a network by batch, and the batch sizes for which TensorFlow was really asked."""

    def __init__(self, network):
        self.network, self.asked = Network.of(network), []
        self.by_batch = TracesByBatch(self.trace)

    def trace(self, batch_size):
        self.asked.append(batch_size)
        return trace_training(self.network, replace(SETUP, batch_size=batch_size))

    def is_right(self, batch_size):
        """Whether what is had without a trace is all that a trace gives."""
        setup = replace(SETUP, batch_size=batch_size)
        traced = trace_training(self.network, setup)
        derived = estimate_traced(self.by_batch.at(batch_size), setup)
        return derived == estimate_traced(traced, setup)


@pytest.fixture(scope="module", params=sorted(networks.ALL))
def traces(request):
    return Traces(networks.ALL[request.param])


@settings(max_examples=8, deadline=None)
@given(batch_size=st.integers(1, 64))
def test_what_is_derived_is_what_is_traced(traces, batch_size):
    assert traces.is_right(batch_size)


def test_after_the_second_batch_size_nothing_is_traced():
    traces = Traces(networks.NORMED)
    for batch_size in (32, 64, 48, 65, 100, 128, 33):
        traces.by_batch.at(batch_size)
    assert traces.asked == [32, 129]
    assert traces.is_right(100)
    traces.by_batch.at(16)
    assert traces.asked == [32, 129, 3]
    assert traces.is_right(5)


def test_only_some_traces_are_kept():
    traces = Traces(lambda: keras.Sequential([keras.Input((8,)), Pairs(), keras.layers.Dense(1)]))
    for batch_size in (2, 3, 4, 5, 6, 7, 8, 9, 2):
        traces.by_batch.at(batch_size)
    assert traces.asked.count(2) == 2
    assert len(traces.by_batch._traced) <= 7
    assert traces.is_right(9)


class Pairs(keras.layers.Layer):
    """Every example beside every other: the square of the batch."""

    def call(self, x):
        distances = keras.ops.sum(keras.ops.square(x[:, None] - x[None]), axis=-1)
        return x + keras.ops.mean(keras.ops.reshape(distances, (-1,)))


class Halves(keras.layers.Layer):
    """One example for every two."""

    def call(self, x):
        batch_size = x.shape[0] or 2  # None while the model is built
        return keras.ops.repeat(x[: (batch_size + 1) // 2], 2, axis=0)[:batch_size]


class Differs(keras.layers.Layer):
    """Another graph for an odd batch."""

    def call(self, x):
        return keras.ops.concatenate([x, x], axis=1) if (x.shape[0] or 2) % 2 else keras.ops.tile(x, (1, 2))

    def compute_output_shape(self, shape):
        return (shape[0], 2 * shape[1])


@pytest.mark.parametrize("layer", [Pairs, Halves, Differs])
def test_sizes_that_are_in_no_proportion_to_the_batch_are_traced(layer):
    traces = Traces(lambda: keras.Sequential([keras.Input((8,)), layer(), keras.layers.Dense(1)]))
    assert traces.is_right(4)
    assert traces.is_right(6)
    assert traces.is_right(7)
    assert 7 in traces.asked


def pixels():
    """The gradient of its loss is the same in every step: the runtime keeps it as a constant, up to 10 MiB."""
    layers = [keras.layers.Conv2D(8, 3, padding="same"), keras.layers.Conv2D(3, 3, padding="same")]
    return keras.Sequential([keras.Input((64, 64, 3)), *layers])


def test_a_graph_that_changes_with_the_batch_is_traced_on_both_sides():
    traces = Traces(pixels)
    for batch_size in (64, 512, 128, 100, 400):
        assert traces.is_right(batch_size)
    assert {64, 512, 128, 400} <= set(traces.asked)


def test_a_batch_that_cannot_be_traced_is_no_obstacle_for_a_smaller_one():
    class AtMost(keras.layers.Layer):
        def call(self, x):
            if (x.shape[0] or 0) > 10:
                raise ValueError("too many")
            return x

    traces = Traces(lambda: keras.Sequential([keras.Input((8,)), AtMost(), keras.layers.Dense(1)]))
    assert traces.is_right(4)
    assert traces.is_right(8)
    with pytest.raises(ValueError, match="too many"):
        traces.by_batch.at(11)
    assert traces.is_right(9)
