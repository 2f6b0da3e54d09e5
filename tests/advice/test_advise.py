"""Advice: each piece is what it promises, and none is given that would not help."""

import keras
import pytest

import memviz
from memviz.models.edits import edited
from memviz.units import MIB

ON = {"device": "reference"}


def flattening():
    stack = [
        keras.layers.Conv2D(16, 3, activation="relu"), keras.layers.Conv2D(16, 3, activation="relu"),
        keras.layers.Flatten(), keras.layers.Dense(64, "relu"), keras.layers.Dense(5, "softmax"),
    ]  # fmt: skip
    return keras.Sequential([keras.Input((64, 64, 3)), *stack])


def averaging():
    stack = [keras.layers.Conv2D(16, 3, activation="relu"), keras.layers.Conv2D(16, 3, activation="relu")]
    head = [keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(5, "softmax")]
    return keras.Sequential([keras.Input((64, 64, 3)), *stack, *head])


def kinds(advice):
    return {kind for change in advice.changes for kind in change.kinds}


@pytest.fixture(scope="module")
def advice():
    return memviz.advise(flattening, batch_size=16, budget="60 MiB", jit_compile=False, **ON)


def test_every_piece_gives_what_it_promises(advice):
    assert len(advice.changes) >= 5
    for change in advice.changes + advice.combinations:
        applied = memviz.estimate(change.network, **change.options)
        assert applied.required_bytes == pytest.approx(change.required_bytes, rel=0.01)
        assert change.saved_bytes == advice.now.required_bytes - change.required_bytes > 0


def test_the_best_piece_really_trains_in_what_it_promises(advice):
    best = advice.changes[0]
    assert best.fit
    within = best.options | {"budget": int(1.02 * best.required_bytes) // MIB * MIB}
    trial = memviz.measure(best.network, **within)
    assert trial.status == "completed", trial.error
    assert memviz.estimate(best.network, **within).peak_bytes == pytest.approx(trial.peak_bytes, rel=0.05)


def test_what_fits_comes_first_and_the_table_has_it_all(advice):
    order = [["yes", "close", "no"].index(change.fit.verdict) for change in advice.changes]
    assert order == sorted(order)
    table = advice.table()
    assert list(table["required"]) == [c.required_bytes for c in advice.changes + advice.combinations]
    assert str(advice).startswith("No: batch 16 needs ")


def test_flatten_is_what_makes_it_large(advice):
    assert {"head", "pooling", "stride", "dense", "optimizer"} <= kinds(advice)


def test_a_smaller_batch_only_where_the_batch_is_the_cause():
    def wide():
        stack = [keras.layers.Dense(2_000, "relu"), keras.layers.Dense(10)]
        return keras.Sequential([keras.Input((2_000,)), *stack])

    weights = memviz.advise(wide, batch_size=8, budget="30 MiB", jit_compile=False, **ON)
    assert weights.now.verdict == "no"
    assert "batch" not in kinds(weights)
    batch = memviz.advise(averaging, batch_size=64, budget="60 MiB", jit_compile=False, **ON)
    (smaller,) = (change for change in batch.changes if change.kinds == ("batch",))
    assert smaller.fit
    assert smaller.options["batch_size"] * smaller.options["optimizer"]["config"]["gradient_accumulation_steps"] == 64
    assert "one copy of the weights" in smaller.cost


def test_several_changes_where_no_single_one_suffices():
    advice = memviz.advise(flattening, batch_size=16, budget="8 MiB", jit_compile=False, **ON)
    assert not any(change.fit for change in advice.changes)
    assert advice.combinations
    for change in advice.combinations:
        assert len(change.kinds) == len({*change.kinds}) >= 2
        assert memviz.estimate(change.network, **change.options).required_bytes == change.required_bytes


def test_where_nothing_helps_nothing_is_said():
    def dense():
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])

    advice = memviz.advise(dense, batch_size=1, optimizer="sgd", budget="64 MiB", jit_compile=True, **ON)
    assert advice.changes == ()
    assert advice.now.verdict == "yes"


def test_the_compiled_optimizer_is_the_one_that_accumulates():
    def compiled():
        model = averaging()
        model.compile(keras.optimizers.Adam(amsgrad=True), "sparse_categorical_crossentropy")
        return model

    model = compiled()
    advice = memviz.advise(model, batch_size=64, budget="60 MiB", jit_compile=False, **ON)
    (smaller,) = (change for change in advice.changes if change.kinds == ("batch",))
    assert smaller.options["optimizer"]["config"]["amsgrad"] is True
    assert [layer.name for layer in model.layers][2].startswith("global_average")  # the user's own is left as it was
    assert model.optimizer.amsgrad is True


def test_an_edit_leaves_the_given_model_alone_and_changes_one_thing():
    model = flattening()
    before = model.to_json(), [w.tobytes() for w in model.get_weights()]
    pooled = edited(model, ["global_average"])
    assert (model.to_json(), [w.tobytes() for w in model.get_weights()]) == before
    assert type(pooled.layers[2]).__name__ == "GlobalAveragePooling2D"
    assert edited(model, ["half_dense"]).layers[3].units == 32
    assert edited(model, ["stride"]).layers[0].strides == (2, 2)
    assert edited(model, ["pool_first", "pool_first"]).layers[2].input.shape[1:] == (14, 14, 16)
    with pytest.raises(ValueError, match=r"'global_average' is not possible: nothing in"):
        edited(pooled, ["global_average"])
