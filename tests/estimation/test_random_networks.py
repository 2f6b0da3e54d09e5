"""Random networks: an estimate that agrees with Keras' own variables and with training, or a clear refusal."""

from functools import partial
from statistics import median_low

import keras
import pytest
import random_networks
from hypothesis import HealthCheck, given, settings

import memviz
from memviz.models.network import Network
from memviz.units import tensor_bytes

MOST_BYTES = 1 << 30
# As in benchmarks/accuracy.py: a process draws its order, and where these differ, one training says little.
WIDE, DRAWS = 1.05, 5


def estimate_or_refusal(training):
    """The estimate, or the sentence that says why there is none; anything else fails."""
    network, (name, arguments), options = training
    optimizer = getattr(keras.optimizers, name)(**arguments)
    try:
        estimate = memviz.estimate(
            partial(random_networks.build, *network),
            optimizer=optimizer,
            jit_compile=False,
            device="reference",
            **options,
        )
    except ValueError as refusal:
        return str(refusal)
    return estimate


def on_random_trainings(count, check):
    every = [*HealthCheck]
    settings(max_examples=count, deadline=None, derandomize=True, database=None, suppress_health_check=every)(
        given(random_networks.trainings())(check)
    )()


@pytest.mark.parametrize("count", [50, pytest.param(1_000, marks=pytest.mark.soak)])
def test_an_estimate_with_keras_own_bytes_or_a_clear_refusal(count):
    estimated = []

    def check(training):
        estimate = estimate_or_refusal(training)
        if isinstance(estimate, str):
            assert "\n" not in estimate
            assert estimate[0].isupper()
            assert "Traceback" not in estimate
            return
        estimated.append(training)
        network, _, options = training
        model, _ = Network.of(partial(random_networks.build, *network)).build(options["dtype_policy"])
        held = estimate.profile.by_category()
        assert held["parameter"] == sum(tensor_bytes(v.shape, v.dtype) for v in model.trainable_variables)
        assert estimate.peak_bytes == held.sum() >= held["parameter"]
        assert estimate.required_bytes > 0

    on_random_trainings(count, check)
    assert len(estimated) >= count / 3  # else the refusals hide what is to be tested


def peak_of_training(training):
    network, (name, arguments), options = training
    trial = memviz.measure(
        partial(random_networks.build, *network), optimizer=getattr(keras.optimizers, name)(**arguments),
        jit_compile=False, device="reference", budget=2 * MOST_BYTES, **options,
    )  # fmt: skip
    assert trial.status == "completed", trial.error
    return trial.peak_bytes


@pytest.mark.soak
def test_nine_of_ten_random_trainings_peak_within_five_percent_of_the_estimate():
    errors = []

    def check(training):
        estimate = estimate_or_refusal(training)
        if isinstance(estimate, str) or estimate.required_bytes > MOST_BYTES:
            return
        low, high = estimate.peak_ranges["steady_step"]
        drawn = [peak_of_training(training) for _ in range(DRAWS if high > WIDE * low else 1)]
        errors.append((estimate.peak_bytes / median_low(drawn) - 1, training))

    on_random_trainings(90, check)
    far = [(f"{error:+.1%}", training) for error, training in errors if abs(error) > 0.05]
    assert len(errors) >= 50
    assert len(far) <= len(errors) / 10, far
