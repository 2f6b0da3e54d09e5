import dataclasses
import json
import re

import numpy as np
import pytest

from memviz.setup import LOSSES, OPTIMIZERS, TrainingSetup


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"batch_size": 0}, ValueError, "batch_size=0 is not possible; it is a whole number from 1 to 2,147,483,647."),
        ({"batch_size": -8}, ValueError, "batch_size=-8 is not possible"),
        ({"batch_size": 2**31}, ValueError, "batch_size=2147483648 is not possible"),
        ({"batch_size": 2.5}, TypeError, "batch_size is a whole number, not 2.5."),
        ({"batch_size": True}, TypeError, "batch_size is a whole number, not True."),
        ({"batch_size": np.array([1, 2])}, TypeError, "batch_size is a whole number, not array([1, 2])."),
        ({"optimizer": "adm"}, ValueError, "optimizer 'adm' is not known. Did you mean 'adam'? Known: sgd, adam,"),
        ({"optimizer": 3}, TypeError, "optimizer is a name, a keras.optimizers.Optimizer or its serialized config"),
        ({"optimizer": []}, TypeError, "optimizer is a name"),
        ({"optimizer": dict}, TypeError, "optimizer=dict is a class; give an instance of it: dict()."),
        ({"loss": "cross_entropy"}, ValueError, "loss 'cross_entropy' is not known."),
        ({"loss": ["mse", "msee"]}, ValueError, "loss 'msee' is not known. Did you mean 'mse'?"),
        ({"loss": 3}, TypeError, "loss is a name, a function, a keras.losses.Loss or its serialized config, not 3."),
        ({"loss": int}, TypeError, "loss=int is a class"),
        ({"dtype_policy": "float31"}, ValueError, "dtype_policy 'float31' is not known. Did you mean 'float32'?"),
        ({"dtype_policy": "float31"}, ValueError, "None means the network's own policy."),
        ({"jit_compile": "yes"}, ValueError, "jit_compile='yes' is not known; it is True, False or 'auto'."),
        ({"jit_compile": 1}, ValueError, "jit_compile=1 is not known"),
        ({"memory_growth": "yes"}, TypeError, "memory_growth is True or False, not 'yes'."),
        ({"device": "TPU:0"}, ValueError, "device='TPU:0' is not known; it is 'reference'"),
        ({"budget": "9 GBB"}, ValueError, "'9 GBB' is not a size: write a number and a unit"),
        ({"budget": 0}, ValueError, "at least 1 byte"),
        ({"budget": 1000}, ValueError, "A budget of 1,000 B is not possible; it is from 1.00 MiB to 64.00 TiB"),
        ({"budget": 2**62}, ValueError, "A budget of 4,611,686,018,427,387,904 B is not possible"),
        ({"inputs": 3}, ValueError, "inputs=3 is not possible; give an array of a batch, or tf.TensorSpec"),
        ({"inputs": [np.float32(3)]}, ValueError, "inputs=np.float32(3.0) is not possible"),
        ({"steps_per_epoch": 3}, TypeError, "steps_per_epoch"),
    ],
)
def test_refusals_name_the_value_and_the_way_out(options, error, says):
    with pytest.raises(error, match=re.escape(says)):
        TrainingSetup.create(**{"batch_size": 1, **options})


def test_budget_is_bytes_or_text():
    assert TrainingSetup.create(batch_size=1, budget="9513 MiB").budget_bytes == 9_975_103_488
    assert TrainingSetup.create(batch_size=1, budget=2**30).budget_bytes == 2**30
    with pytest.raises(ValueError, match="at least 1 byte"):
        TrainingSetup(batch_size=1, budget_bytes=-3)


def test_numpy_s_integers_are_taken():
    assert type(TrainingSetup(batch_size=np.int64(3)).batch_size) is int


def test_inputs_are_kept_as_text_for_one_example():
    inputs = {"image": np.zeros((8, 32, 32, 3), "float32"), "words": (np.zeros((8, 5), "int64"),)}
    kept = {"image": "float32[32,32,3]", "words": ["int64[5]"]}
    assert TrainingSetup(batch_size=1, inputs=inputs).inputs == kept
    assert TrainingSetup(batch_size=1, inputs=kept).inputs == kept


def test_keras_spellings_are_taken():
    setup = TrainingSetup(batch_size=1, optimizer="AdamW", loss="BinaryCrossentropy")
    assert (setup.optimizer, setup.loss) == ("adamw", "binary_crossentropy")
    assert TrainingSetup(batch_size=1, loss=["MSE", "Huber"]).loss == ["mse", "huber"]


def test_optimizers_are_those_of_keras():
    import keras

    helpers = {"optimizer", "lossscaleoptimizer", "multioptimizer", "optimizermap"}  # bases and wrappers
    theirs = {
        name.lower()
        for name, value in vars(keras.optimizers).items()
        if isinstance(value, type) and not name.startswith("_")
    } - helpers
    assert_same_names("OPTIMIZERS", OPTIMIZERS, theirs)


def test_losses_are_those_of_keras():
    from keras.src.losses import ALL_OBJECTS_DICT

    assert_same_names("LOSSES", LOSSES, {name for name in ALL_OBJECTS_DICT if name == name.lower()})
    for name in set(ALL_OBJECTS_DICT) - {"Loss", "LossFunctionWrapper"}:
        assert TrainingSetup(batch_size=1, loss=name).loss in LOSSES, name


def assert_same_names(what, ours, theirs):
    assert not theirs - set(ours), f"Keras has {theirs - set(ours)}, {what} has not"
    assert not set(ours) - theirs, f"{what} has {set(ours) - theirs}, Keras has not"


def test_describe_is_plain_data():
    import keras

    def my_loss(y_true, y_pred):
        return keras.ops.mean(y_true - y_pred)

    setup = TrainingSetup.create(batch_size=np.int32(4), optimizer=keras.optimizers.Adam(), loss=my_loss, budget="1 GB")
    assert json.loads(json.dumps(setup.describe())) == {
        "batch_size": 4, "optimizer": "Adam", "loss": "my_loss", "dtype_policy": None, "jit_compile": "auto",
        "device": None, "budget_bytes": 10**9, "memory_growth": False, "inputs": None,
        "sample_weight": False,
    }  # fmt: skip


def test_a_setup_does_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        TrainingSetup(batch_size=1).batch_size = 2
