import math

import keras
import pytest
from convnets import convnets
from hypothesis import given, settings

from memviz.models import presets
from memviz.models.abstract import abstract_weights
from memviz.models.network import Network
from memviz.models.script import keras_script
from memviz.models.training import compiled_model
from memviz.setup import TrainingSetup


def run(script):
    """What the script makes, without storage; the global policy is put back."""
    before, namespace = keras.config.dtype_policy(), {}
    try:
        with abstract_weights():
            exec(compile(script, "script", "exec"), namespace)
    finally:
        keras.config.set_dtype_policy(before)
    return namespace["model"]


def described(model):
    """Layers, weights and training as plain data."""
    layers = [(type(each).__name__, each.name, each.dtype_policy.name, each.output.shape) for each in model.layers]
    layers = [each for each in layers if each[0] != "InputLayer"]
    weights = [(v.path.rpartition("/")[2], tuple(v.shape), v.dtype, v.trainable) for v in model.variables]
    settings = {k: v for k, v in vars(model.optimizer).items() if isinstance(v, bool | int | float | None)}
    compiled = type(model.optimizer), settings, model.loss, model.jit_compile
    return layers, weights, compiled


def assert_the_same(network, setup):
    with abstract_weights():
        own = compiled_model(Network.of(network), setup)
    found = run(keras_script(network, setup))
    assert described(found) == described(own)
    assert sum(math.prod(v.shape) for v in found.trainable_variables) == network.parameters


@pytest.mark.parametrize("network", presets.ALL.values(), ids=presets.ALL)
def test_the_presets_script_makes_the_presets_model(network):
    training = {"batch_size": 1, "optimizer": "adam"} | presets.TRAINING.get(network.name, {})
    assert_the_same(network, TrainingSetup.create(**training, jit_compile=False))


@given(convnets())
@settings(max_examples=15)
def test_so_does_that_of_any_network(network):
    policy = network.dtype_policy or "mixed_float16"
    optimizer = {"class_name": "adam", "config": {"amsgrad": True, "use_ema": True}}
    assert_the_same(network, TrainingSetup.create(batch_size=3, optimizer=optimizer, dtype_policy=policy))


def test_what_has_no_text_is_said():
    for wrong in ({"optimizer": keras.optimizers.SGD()}, {"loss": lambda y, z: z}):
        with pytest.raises(ValueError, match="has no text"):
            keras_script(presets.digits, TrainingSetup.create(batch_size=1, **wrong))
