import functools
import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from memviz.models import presets
from memviz.models.abstract import abstract_weights, is_abstract
from memviz.models.convnet import ConvBlock, ConvNet
from memviz.models.network import Network, packed, unpacked
from memviz.models.training import (
    batch_specs,
    build_slots,
    compiled_model,
    loss_name,
    make_loss,
    make_optimizer,
    step_function,
    trained_with,
)
from memviz.setup import TrainingSetup


def classifier(activation="softmax"):
    return keras.Sequential(
        [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(4, activation=activation)],
        name="classifier",
    )


def shapes(model):
    return [(v.name, tuple(v.shape), v.dtype) for v in model.variables]


def built(network, dtype_policy=None):
    return network.build(dtype_policy)[0]


def travelled(network):
    return unpacked(json.loads(json.dumps(packed(network, TrainingSetup(batch_size=1)))))[0]


def travelled_setup(**options):
    return unpacked(packed(Network.of(presets.digits), TrainingSetup(batch_size=1, **options)))[1]


def test_a_convnet_travels_and_builds():
    net = ConvNet(input_shape=(8, 8, 1), blocks=(ConvBlock(filters=2, pooling="max", dropout=0.5),), dense=(3, 2))
    assert travelled(Network.of(net)).source == net
    assert built(Network.of(net), "mixed_float16").layers[1].dtype_policy.name == "mixed_float16"
    assert travelled(Network.of(presets.bird_audio)).source == presets.bird_audio


def test_a_function_travels_and_builds_a_fresh_model_each_time():
    network = travelled(Network.of(functools.partial(classifier, "sigmoid")))
    first, second = built(network), built(network)
    assert first is not second
    assert first.layers[-1].activation is keras.activations.sigmoid


def test_a_model_travels_as_its_config():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Lambda(lambda x: 2 * x), keras.layers.Dense(3)])
    model.layers[-1].trainable = False
    network = travelled(Network.of(model))
    rebuilt = built(network)
    assert rebuilt is not model
    assert shapes(rebuilt) == shapes(model)
    assert rebuilt.trainable_variables == []
    assert rebuilt(np.ones((1, 8))).shape == (1, 3)


def test_a_nested_model_keeps_its_frozen_part_and_gets_no_slots():
    base = classifier()
    base.compile(optimizer="adam", loss="sparse_categorical_crossentropy")
    base.trainable = False
    model = keras.Sequential([keras.Input((8, 8, 1)), base, keras.layers.Dense(1)])
    model.compile(optimizer="adam", loss="mse")
    model.optimizer.build(model.trainable_variables)
    rebuilt, compiled = travelled(Network.of(model)).build()
    assert shapes(rebuilt) == shapes(model)
    assert len(rebuilt.trainable_variables) == len(model.trainable_variables) == 2
    assert compiled.loss == "mse"
    assert not rebuilt.compiled
    assert not rebuilt.layers[0].compiled


@pytest.mark.parametrize(
    "loss",
    ["mse", keras.losses.huber, keras.losses.BinaryCrossentropy(from_logits=True), {"dense": "mae"}, [None]],
    ids=["name", "function", "instance", "mapping", "list"],
)
def test_the_compiled_loss_comes_along(loss):
    model = classifier()
    model.compile(loss=loss)
    found = make_loss(travelled(Network.of(model)).build()[1].loss)
    assert found == loss or found.get_config() == loss.get_config()


def test_a_loss_that_cannot_be_made_anew_is_said():
    def mine(y_true, y_pred):
        return keras.ops.mean(y_true - y_pred, axis=-1)

    model = classifier()
    model.compile(loss=mine)
    with pytest.raises(ValueError, match=r"The loss 'mine' cannot be made anew .* or compile the model with your own"):
        compiled_model(Network.of(model), TrainingSetup(batch_size=1))
    assert compiled_model(Network.of(model), TrainingSetup(batch_size=1, loss="mse")).loss == "mse"


@pytest.mark.parametrize("policy", ["float64", "mixed_bfloat16"])
@pytest.mark.parametrize("form", [lambda: classifier, classifier], ids=["function", "model"])
def test_another_policy_reaches_every_layer(form, policy):
    before = keras.config.dtype_policy().name
    network = Network.of(form())
    assert {layer.dtype_policy.name for layer in built(network, policy).layers} == {policy}
    assert {layer.dtype_policy.name for layer in built(network).layers} == {"float32"}
    assert keras.config.dtype_policy().name == before


@pytest.mark.parametrize("network", [presets.digits, classifier], ids=["convnet", "function"])
def test_the_callers_global_policy_travels(network):
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        network = Network.of(network)
    finally:
        keras.config.set_dtype_policy("float32")
    for each in (network, travelled(network)):
        assert {layer.dtype_policy.name for layer in built(each).layers[1:]} == {"mixed_bfloat16"}
        assert {layer.dtype_policy.name for layer in built(each, "float64").layers[1:]} == {"float64"}


def test_a_setup_by_names_comes_back_equal():
    options = {"optimizer": "SGD", "loss": {"kind": "mse", "size": "mae"}, "inputs": {"x": ["int32[5]"]}}
    assert travelled_setup(**options) == TrainingSetup(batch_size=1, **options)


def test_optimizers_travel_as_their_configs_and_losses_as_they_are():
    def made_here(y_true, y_pred):
        return keras.ops.mean(keras.ops.abs(y_true - y_pred), axis=-1)

    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    optimizer = keras.optimizers.SGD(schedule, momentum=0.5, use_ema=True)
    losses = {"huber": keras.losses.Huber(delta=2.0), "of keras": keras.losses.mean_squared_error, "mine": made_here}
    back = travelled_setup(optimizer=optimizer, loss=losses)
    assert make_optimizer(back.optimizer).get_config() == make_optimizer(optimizer).get_config()
    assert back.loss["huber"].get_config() == losses["huber"].get_config()
    assert back.loss["of keras"] is losses["of keras"]
    assert back.loss["mine"](np.ones((1, 2)), np.zeros((1, 2))) == 1


def snapshot(model):
    return {
        "weights": [w.tolist() for w in model.get_weights()],
        "compiled": model.compiled,
        "optimizer": [v.name for v in model.optimizer.variables] if model.compiled else None,
        "policies": [layer.dtype_policy.name for layer in model.layers],
        "train_function": model.train_function,
        "abstract": [is_abstract(v) for v in model.variables],
    }


@pytest.mark.parametrize("form", [lambda model: lambda: model, lambda model: model], ids=["function", "model"])
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("policy", [None, "mixed_float16"])
def test_the_users_own_model_stays_as_it_is(form, compiled, policy):
    mine = classifier()
    if compiled:
        mine.compile(optimizer="adam", loss="mae")
    before = snapshot(mine)
    setup = TrainingSetup(batch_size=2, dtype_policy=policy, jit_compile=False)
    with abstract_weights():
        model = compiled_model(Network.of(form(mine)), setup)
        build_slots(model)
        step_function(model).get_concrete_function(batch_specs(model, 2))
        assert all(is_abstract(v) for v in (*model.variables, *model.optimizer.variables))
    assert loss_name(model) == ("mae" if compiled else "sparse_categorical_crossentropy")
    assert snapshot(mine) == before
    assert mine.predict(np.zeros((1, 8, 8, 1)), verbose=0).shape == (1, 4)


def test_a_part_made_before_is_made_anew():
    base = classifier()
    before = snapshot(base)
    with abstract_weights():
        model = built(Network.of(lambda: keras.Sequential([base, keras.layers.Dense(2)])))
        assert all(is_abstract(v) for v in model.variables)
        assert len(model.variables) == 4
    assert snapshot(base) == before


# Keras copies weights for a pickle with np.array(x), which numpy 2 wants to be given a copy keyword.
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning")
def test_a_captured_model_costs_nothing_in_a_child_and_is_built_there_for_real():
    base = classifier()
    network = travelled(Network.of(lambda: keras.Sequential([base, keras.layers.Dense(2)])))
    captured = network.source.__closure__[0].cell_contents
    assert all(is_abstract(v) for v in captured.variables)
    model = built(network)
    assert len(model.get_weights()) == 4


def test_out_of_memory_is_not_hidden_by_a_rebuild():
    class Exhausted(keras.layers.Layer):
        def build(self, shape):
            raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")

    keras.saving.register_keras_serializable("memviz_tests")(Exhausted)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    of_config = Network.of(model)
    layer = of_config.source["config"]["layers"][1]
    layer.update(class_name="Exhausted", registered_name="memviz_tests>Exhausted", module=None, config={"name": "x"})
    for network in (of_config, Network.of(lambda: Exhausted()(keras.Input((2,))))):
        with pytest.raises(tf.errors.ResourceExhaustedError, match="OOM when allocating"):
            network.build()
    unbuilt, inputs = Network.of(lambda: keras.Sequential([Exhausted()])), np.zeros((1, 2))
    with pytest.raises(tf.errors.ResourceExhaustedError, match="OOM when allocating"):
        compiled_model(unbuilt, TrainingSetup(batch_size=1, inputs=inputs))


def raises():
    raise RuntimeError("no such file")


def reads_weights():
    model = classifier()
    model.predict(np.zeros((1, 8, 8, 1)), verbose=0)
    return model


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (raises, r"^The function raises raised RuntimeError while building: no such file$"),
        (lambda x: x, r"^The function <lambda> raised TypeError while building: .*missing 1 required positional"),
        (lambda: None, r"^The function <lambda> returned None; it must return a keras.Model\.$"),
        (lambda: keras.layers.Dense(3), r"returned <Dense .*>; it must return a keras.Model\.$"),
        (
            reads_weights,
            r"^The function reads_weights raised InvalidArgumentError while building: .* its weights' values\.$",
        ),
    ],
)
def test_a_function_that_does_not_build_is_said_in_a_sentence(function, says):
    policy = keras.config.dtype_policy().name
    with abstract_weights(), pytest.raises(ValueError, match=says):
        Network.of(function).build("float16")
    assert keras.config.dtype_policy().name == policy


@pytest.mark.parametrize("other", [None, 3, "bird_audio", keras.Model, object()])
def test_what_is_no_network_is_refused(other):
    with pytest.raises(
        TypeError, match=r"A network is a keras.Model, a function without arguments .* or a memviz ConvN"
    ):
        Network.of(other)


def test_a_model_without_a_config_is_refused_with_the_way_out():
    class Mine(keras.Model):
        def __init__(self, units):
            super().__init__()
            self.units = units

    with pytest.raises(ValueError, match=r"(no usable|from its) config .* pass a function without arguments that buil"):
        Network.of(Mine(object())).build()


@pytest.mark.parametrize("as_function", [False, True])
def test_the_compiled_optimizer_is_the_one_that_trains(as_function):
    def compiled():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
        model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse")
        return model

    network = travelled(Network.of(compiled if as_function else compiled()))
    own, chosen = (compiled_model(network, TrainingSetup(batch_size=2, optimizer=o)) for o in (None, "adagrad"))
    assert (type(own.optimizer), own.optimizer.momentum) == (keras.optimizers.SGD, 0.9)
    assert type(chosen.optimizer) is keras.optimizers.Adagrad
    assert trained_with(own, TrainingSetup(batch_size=2))["optimizer"] == "sgd"
    usual = compiled_model(Network.of(presets.digits), TrainingSetup(batch_size=2))
    assert isinstance(usual.optimizer, keras.optimizers.Adam)


def test_a_class_of_ones_own_is_a_function_that_returns_a_model():
    class Mine(keras.Sequential):
        def __init__(self):
            super().__init__([keras.Input((4,)), keras.layers.Dense(3)])

    assert Network.of(Mine).build()[0].count_params() == 15


def test_strings_are_refused_with_the_way_out():
    word = keras.Input((3,), dtype="string")
    model = keras.Model(word, keras.layers.Dense(2)(keras.layers.Hashing(10, output_mode="multi_hot")(word)))
    with pytest.raises(ValueError, match=r"takes strings, .*encode them in the data pipeline"):
        batch_specs(model, 2)
