import copy

import keras
import numpy as np
import pytest
import tensorflow as tf

from memviz.models import presets
from memviz.models.abstract import abstract_weights, is_abstract
from memviz.models.network import Network
from memviz.models.training import batch_specs, build_slots, compiled_model, loss_name, make_optimizer, step_function
from memviz.setup import TrainingSetup

SETUP = TrainingSetup(batch_size=4, jit_compile=False)


def model_with(*layers, shape=(6,)):
    return keras.Sequential([keras.Input(shape), *layers])


@pytest.mark.parametrize(
    ("last", "loss", "label"),
    [
        (lambda: keras.layers.Dense(3, activation="sigmoid"), "binary_crossentropy", ((4, 3), "float32")),
        (lambda: keras.layers.Dense(3, activation="softmax"), "sparse_categorical_crossentropy", ((4,), "int64")),
        (lambda: keras.layers.Softmax(), "sparse_categorical_crossentropy", ((4,), "int64")),
        (lambda: keras.layers.Activation("sigmoid"), "binary_crossentropy", ((4, 6), "float32")),
        (
            lambda: model_with(keras.layers.Dense(2, activation="softmax")),
            "sparse_categorical_crossentropy",
            ((4,), "int64"),
        ),
        (lambda: keras.layers.Dense(3), "mean_squared_error", ((4, 3), "float32")),
    ],
)
def test_the_loss_suits_the_output_and_a_real_step_takes_the_batch(last, loss, label):
    model = compiled_model(Network.of(lambda: model_with(keras.layers.Dense(6), last())), SETUP)
    assert loss_name(model) == loss
    features, labels = batch_specs(model, 4)
    assert (tuple(features.shape), features.dtype.name) == ((4, 6), "float32")
    assert (tuple(labels.shape), labels.dtype.name) == label
    batch = np.ones(features.shape, "float32"), np.ones(labels.shape, label[1])
    assert np.isfinite(model.train_on_batch(*batch))


def test_the_batch_has_a_weight_per_example_if_asked_for():
    model = compiled_model(Network.of(lambda: model_with(keras.layers.Dense(3))), SETUP)
    *_, weights = specs = batch_specs(model, 4, sample_weight=True)
    assert len(specs) == 3
    assert (tuple(weights.shape), weights.dtype.name) == ((4,), "float32")
    from_fit = keras.src.trainers.data_adapters.data_adapter_utils.class_weight_to_sample_weights
    assert from_fit(np.zeros(4, "int64"), {0: 2.0}).dtype == weights.dtype.as_numpy_dtype


def metered():
    metrics = ["mae", keras.metrics.AUC(num_thresholds=50)]
    model = model_with(keras.layers.Dense(1, activation="sigmoid"))
    model.compile("sgd", "mse", loss_weights=[0.5], metrics=metrics, weighted_metrics=["mse"])
    return model


@pytest.mark.parametrize("network", [metered, metered()], ids=["function", "model"])
def test_metrics_and_the_losses_weight_come_along_anew(network):
    model = compiled_model(Network.of(network), SETUP)
    theirs = network if isinstance(network, keras.Model) else network()
    batch = np.arange(24, dtype="float32").reshape(4, 6) / 24, np.array([[0], [1], [0], [1]], "float32")
    model.set_weights(theirs.get_weights())
    assert model.train_on_batch(*batch) == pytest.approx(theirs.train_on_batch(*batch))
    own = {id(variable) for variable in theirs.metrics_variables}
    assert own.isdisjoint(id(variable) for variable in model.metrics_variables)
    assert len(own) == len(model.metrics_variables)


def test_another_loss_leaves_the_metrics_and_forgets_the_losses_weight():
    model = compiled_model(Network.of(metered), TrainingSetup(batch_size=4, jit_compile=False, loss="mae"))
    batch = np.ones((4, 6), "float32"), np.zeros((4, 1), "float32")
    loss, mae, *_ = model.train_on_batch(*batch)
    assert loss == pytest.approx(mae)


class NeedsMore(keras.metrics.Metric):
    def __init__(self, something, **options):
        super().__init__(**options)


def test_a_metric_that_cannot_be_made_anew_is_said():
    model = model_with(keras.layers.Dense(1))
    model.compile("sgd", "mse", metrics=[NeedsMore(1)])
    with pytest.raises(ValueError, match=r"metrics .* cannot be made anew"):
        compiled_model(Network.of(model), SETUP)


def test_several_inputs_and_outputs_keep_their_structure():
    def build():
        a, b = keras.Input((3,), name="a"), keras.Input((5,), name="b", dtype="int32")
        joined = keras.layers.Concatenate()([a, keras.layers.Embedding(7, 1)(b)[..., 0]])
        outputs = {
            "kind": keras.layers.Dense(4, activation="softmax", name="kind")(joined),
            "size": keras.layers.Dense(1, name="size")(joined),
        }
        model = keras.Model({"a": a, "b": b}, outputs)
        model.compile(loss={"kind": "sparse_categorical_crossentropy", "size": "mse"})
        return model

    with abstract_weights():
        model = compiled_model(Network.of(build), SETUP)
        build_slots(model)
        specs = batch_specs(model, 4)
        step_function(model).get_concrete_function(specs)
    features, labels = specs
    assert {k: (tuple(v.shape), v.dtype.name) for k, v in features.items()} == {
        "a": ((4, 3), "float32"), "b": ((4, 5), "int32"),
    }  # fmt: skip
    assert {k: tuple(v.shape) for k, v in labels.items()} == {"kind": (4,), "size": (4, 1)}
    assert loss_name(model) == "sparse_categorical_crossentropy, mse"


class Subclassed(keras.Model):
    """Takes {"words", "amounts"}, and says so nowhere."""

    def __init__(self):
        super().__init__()
        self.embedding, self.last = keras.layers.Embedding(7, 3), keras.layers.Dense(5)

    def call(self, x):
        return {"kind": self.last(x["amounts"]), "size": keras.ops.mean(self.embedding(x["words"]), axis=1)}


class Unsaid(keras.Model):
    def __init__(self):
        super().__init__()
        self.last = keras.layers.Dense(1, activation="sigmoid")

    def call(self, x):
        return self.last(x)


def test_inputs_tell_a_subclassed_model_what_it_takes():
    inputs = {"amounts": np.zeros((9, 2), "float32"), "words": tf.TensorSpec((None, 6), "int32")}
    loss = {"kind": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "size": "mse"}
    setup = TrainingSetup(batch_size=4, jit_compile=False, inputs=inputs, loss=loss)
    with abstract_weights():
        model = compiled_model(Network.of(lambda: Subclassed()), setup)
        build_slots(model)
        features, labels = specs = batch_specs(model, 4, setup.inputs)
        step_function(model).get_concrete_function(specs)
        assert all(is_abstract(v) for v in model.variables)
    assert {name: (tuple(s.shape), s.dtype.name) for name, s in features.items()} == {
        "amounts": ((4, 2), "float32"), "words": ((4, 6), "int32"),
    }  # fmt: skip
    assert {name: tuple(s.shape) for name, s in labels.items()} == {"kind": (4,), "size": (4, 3)}
    with pytest.raises(ValueError, match=r"The output of .* does not say which loss suits it; give loss="):
        compiled_model(Network.of(lambda: Unsaid()), TrainingSetup(batch_size=4, inputs=np.zeros((1, 3), "float32")))
    with pytest.raises(ValueError, match=r"does not take inputs='float32\[3\]': "):
        compiled_model(
            Network.of(lambda: Subclassed()), TrainingSetup(batch_size=4, inputs=np.zeros((1, 3), "float32"))
        )


def test_inputs_tell_the_size_that_a_model_leaves_open():
    def build():
        return model_with(keras.layers.GlobalAveragePooling2D(), keras.layers.Softmax(), shape=(None, None, 3))

    setup = TrainingSetup(batch_size=4, inputs=tf.TensorSpec((None, 5, 6, 3)))
    model = compiled_model(Network.of(build), setup)
    assert loss_name(model) == "sparse_categorical_crossentropy"
    assert [tuple(spec.shape) for spec in batch_specs(model, 4, setup.inputs)] == [(4, 5, 6, 3), (4,)]


def test_a_given_loss_goes_before_the_compiled_one():
    mine = model_with(keras.layers.Dense(1))
    mine.compile(loss="mae")
    assert loss_name(compiled_model(Network.of(mine), SETUP)) == "mae"
    setup = TrainingSetup(batch_size=4, loss=keras.losses.Huber())
    assert loss_name(compiled_model(Network.of(mine), setup)) == "huber_loss"
    config = keras.losses.serialize(keras.losses.BinaryFocalCrossentropy(gamma=3.0))
    before = copy.deepcopy(config)
    model = compiled_model(Network.of(mine), TrainingSetup(batch_size=4, loss=config))
    assert model.loss.get_config()["gamma"] == 3.0
    assert config == before
    assert mine.loss == "mae"


def test_an_optimizer_is_made_anew_with_its_settings():
    mine = keras.optimizers.SGD(learning_rate=0.5, momentum=0.9)
    config = keras.optimizers.serialize(mine)
    before = copy.deepcopy(config)
    for source in (mine, config):
        with abstract_weights():
            assert is_abstract(make_optimizer(source).learning_rate)
        made = make_optimizer(source)
        assert made is not mine
        assert made.get_config() == mine.get_config()
    assert config == before
    assert [v.name for v in mine.variables] == ["iteration", "learning_rate"]
    assert not is_abstract(mine.learning_rate)


@pytest.mark.parametrize("config", [{"class_name": "Dense", "config": {"units": 3}}, {}])
def test_a_config_of_no_optimizer_is_said(config):
    with pytest.raises(ValueError, match=r"The optimizer .* cannot be made anew: "):
        make_optimizer(config)


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (
            lambda: keras.Sequential([keras.layers.Dense(1)], name="open"),
            r"shape of the model 'open' is not known \(none yet\); start it with",
        ),
        (
            lambda: model_with(keras.layers.GlobalAveragePooling2D(), shape=(None, None, 3)),
            r"is not known \(\[\(None, None, None, 3\)\]\); start .* every size but the batch known, or pass inputs=",
        ),
        (lambda: _two_outputs(), r"The model has 2 outputs and no compiled loss; give loss= or compile it with one"),
    ],
)
def test_what_cannot_be_traced_is_said(build, says):
    model = build()
    with pytest.raises(ValueError, match=says):
        compiled_model(Network.of(lambda: model), SETUP)
    assert not model.compiled or model.outputs


def _two_outputs():
    x = keras.Input((3,))
    return keras.Model(x, [keras.layers.Dense(1)(x), keras.layers.Dense(1)(x)])


def test_bird_audio_is_traced_without_storage():
    with abstract_weights():
        model = compiled_model(Network.of(presets.bird_audio), TrainingSetup(batch_size=1, jit_compile=False))
        build_slots(model)
        graph = step_function(model).get_concrete_function(batch_specs(model, 1)).graph
    kinds = {op.type for op in graph.get_operations()}
    assert {"Conv2D", "Conv2DBackpropFilter", "MatMul", "AssignSubVariableOp"} <= kinds


@pytest.mark.parametrize("network", [presets.digits, presets.digits.build], ids=["ConvNet", "function"])
def test_half_precision_scales_the_loss_as_keras_does_under_a_global_policy(network):
    setup = TrainingSetup(batch_size=4, jit_compile=False, dtype_policy="mixed_float16")
    with abstract_weights():
        model = compiled_model(Network.of(network), setup)
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    assert keras.config.dtype_policy().name == "float32"
