"""A user's model of each kind comes out of an estimate and a trial as it went in."""

import keras
import numpy as np
import pytest
from keras import layers
from keras.src.backend.common.global_state import get_global_attribute

import memviz


def functional():
    start = keras.Input((8,))
    shared = layers.Dense(8, "relu", name="shared")
    x = layers.Dropout(0.5, seed=3)(shared(layers.BatchNormalization()(shared(start))))
    return keras.Model(start, layers.Dense(3, name="head")(x))


def frozen():
    model = functional()
    model.get_layer("shared").trainable = False
    return model


def nested():
    start = keras.Input((8,))
    return keras.Model(start, layers.Dense(3)(functional()(start)))


def stateful():
    start = keras.Input(batch_shape=(8, 5, 4))
    return keras.Sequential([start, layers.LSTM(6, stateful=True), layers.Dense(3)])


def half():
    stack = [keras.Input((8,)), layers.Dense(16, dtype="mixed_float16"), layers.Dense(3, dtype="float64")]
    return keras.Sequential(stack)


def two_ends():
    one, two = keras.Input((8,), name="one"), keras.Input((4,), name="two")
    both = layers.Concatenate()([one, two])
    return keras.Model([one, two], {"a": layers.Dense(3, name="a")(both), "b": layers.Dense(3, name="b")(both)})


class Stepping(keras.Model):
    """With a training step of its own, which notes its runs."""

    def train_step(self, data):
        self.runs = getattr(self, "runs", 0) + 1
        return super().train_step(data)


def stepping():
    start = keras.Input((8,))
    return Stepping(start, layers.Dense(3)(start))


KINDS = {
    "sequential": lambda: keras.Sequential([keras.Input((8,)), layers.Dense(16), layers.Dense(3)]),
    "functional": functional, "frozen": frozen, "nested": nested, "stateful": stateful, "half": half,
    "two ends": two_ends,
}  # fmt: skip


def trained(name):
    """Compiled and trained for a step, so that its optimizer has slots."""
    model = KINDS[name]()
    losses = dict.fromkeys(model.output_names, "mse") if name == "two ends" else "mse"
    model.compile(keras.optimizers.Adam(0.01, use_ema=True), losses, metrics=None if name == "two ends" else ["mae"])
    features = [np.ones((8, *shape[1:]), "float32") for shape in np.atleast_2d(shapes_of(model))]
    labels = np.zeros((8, 3), "float32")
    model.fit(
        features if len(features) > 1 else features[0],
        {"a": labels, "b": labels} if name == "two ends" else labels, batch_size=8, verbose=0,
    )  # fmt: skip
    return model


def shapes_of(model):
    return model.input_shape if isinstance(model.input_shape, list) else [model.input_shape]


def state_of(model):
    variables = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    return {
        "values": [variable.value.numpy() for variable in variables],
        "same": [id(variable) for variable in variables],
        "names": [(variable.path, variable.name, variable.trainable, variable.dtype) for variable in variables],
        "layers": [(layer.name, layer.trainable, layer.dtype_policy.name, layer.built) for layer in model.layers],
        "compiled": [id(model.optimizer), id(model.loss), model.compiled, model.jit_compile, model.run_eagerly],
        "attributes": {key for key in vars(model) if not key.startswith("_")},
        "runs": getattr(model, "runs", None),
        "step": id(model.train_function),
        "policy": keras.config.dtype_policy().name,
        "names in use": dict(get_global_attribute("object_name_uids") or {}),
        "random": get_global_attribute("global_seed_generator"),
    }


def same(before, after):
    values = zip(before.pop("values"), after.pop("values"), strict=True)
    assert all(np.array_equal(one, other) for one, other in values)
    assert before == after


@pytest.mark.parametrize(
    ("name", "jit_compile"), [*((name, False) for name in KINDS), ("functional", True), ("stateful", True)]
)
def test_an_estimate_leaves_the_model_as_it_was(name, jit_compile):
    model = trained(name)
    before = state_of(model)
    memviz.estimate(model, batch_size=8, jit_compile=jit_compile, device="reference")
    same(before, state_of(model))


@pytest.mark.parametrize("name", ["frozen", "nested", "stateful"])
def test_so_does_a_trial(name):
    model = trained(name)
    before = state_of(model)
    trial = memviz.measure(model, batch_size=8, jit_compile=False, device="reference", budget="64 MiB", steps=3)
    assert trial.status == "completed", trial.error
    same(before, state_of(model))


def test_and_what_is_refused():
    """A class that the child cannot find by its name is one such."""
    model = stepping()
    model.compile("adam", "mse")
    model.fit(np.ones((8, 8)), np.ones((8, 3)), verbose=0)
    before = state_of(model)
    for arguments, says in [
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 2, "optimizer": "no_such"}, "no_such"),
        ({"batch_size": 2, "jit_compile": False, "device": "reference"}, "pass a function"),
    ]:
        with pytest.raises(ValueError, match=says):
            memviz.estimate(model, **arguments)
    same(before, state_of(model))
