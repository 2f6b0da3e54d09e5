"""Does it fit, and how large may it be: against trials, and against looking at every value."""

import keras
import pytest

import memviz
from memviz import presets
from memviz.units import MIB

ON = {"device": "reference"}


def lengthy(length=64, width=16):
    stack = [keras.layers.Conv1D(width, 3), keras.layers.Flatten(), keras.layers.Dense(32)]
    return keras.Sequential([keras.Input((length, 8)), *stack])


@pytest.mark.parametrize(("share", "verdict", "status"), [(1.1, "yes", "completed"), (0.9, "no", "out_of_memory")])
def test_the_verdict_is_what_a_trial_finds(share, verdict, status):
    required = memviz.estimate(presets.digits, batch_size=128, **ON).required_bytes
    budget = int(share * required)
    fit = memviz.fits(presets.digits, batch_size=128, budget=budget, **ON)
    assert fit.verdict == verdict
    assert bool(fit) == (verdict == "yes")
    assert fit.margin_bytes == budget - required
    assert memviz.measure(presets.digits, batch_size=128, budget=budget, **ON).status == status


def test_what_some_orders_of_execution_complete_is_close():
    required = memviz.estimate(presets.bird_audio_pooled, batch_size=4, **ON).required_bytes
    fit = memviz.fits(presets.bird_audio_pooled, batch_size=4, budget=required, **ON)
    assert 0 < fit.estimate.completing < 1
    assert fit.verdict == "close"
    assert not fit
    assert "orders of execution complete" in str(fit)


def test_a_card_has_the_memory_that_tensorflow_can_use():
    fit = memviz.fits(presets.bird_audio, batch_size=1, device="tesla t4")
    assert (fit.device, fit.budget_bytes) == ("T4", (15104 - 1050) * MIB)
    assert fit.verdict == "no"
    assert str(fit).startswith("No: batch 1 needs ")
    assert memviz.fits(presets.bird_audio, batch_size=1, device="RTX 3090").verdict == "yes"
    half = memviz.fits(presets.bird_audio, batch_size=1, device="RTX 3090", budget="50 %")
    assert half.budget_bytes == 24268 * MIB // 2
    estimate = memviz.estimate(presets.bird_audio, batch_size=1, device="T4")
    assert estimate.failure is not None
    assert "not verified on hardware" in " ".join(estimate.profile.not_counted)


def test_devices_are_this_machine_s_and_the_cards():
    table = memviz.devices()
    assert table.loc["reference", "here"]
    assert table.loc["H100", "usable"] == (81090 - 1800) * MIB
    assert (table["usable"] < table["memory"]).all()
    assert table[~table["here"]]["source"].str.startswith("https://").all()


def test_the_largest_batch_ran_and_one_more_did_not():
    def mlp():  # of which every order of execution needs the same
        stack = [keras.layers.Dense(512, "relu"), keras.layers.Dense(10, "softmax")]
        return keras.Sequential([keras.Input((784,)), *stack])

    found = memviz.max_batch_size(mlp, budget="16 MiB", measure=True, **ON)
    assert [trial.status for trial in found.trials[found.value]] == 5 * ["completed"]
    assert found.trials[found.value + 1][-1].status == "out_of_memory"
    assert found.batch_size == found.value
    assert 0 <= found.value - found.estimated <= 1
    assert "measured: it ran" in str(found)


def test_the_first_examples_may_need_next_to_nothing_more():
    def wide():  # the step's peak is its update, until the batch is large
        stack = [keras.layers.Dense(512, "relu"), keras.layers.Dense(512, "relu"), keras.layers.Dense(10, "softmax")]
        return keras.Sequential([keras.Input((784,)), *stack])

    required = memviz.estimate(wide, batch_size=64, jit_compile=False, **ON).required_bytes
    found = memviz.max_batch_size(wide, budget=int(1.2 * required), jit_compile=False, **ON)
    assert found.value > 64
    assert len(found.probes) < 25


@pytest.mark.parametrize("budget", ["26 MiB", "41 MiB", "333 MiB"])
def test_the_search_finds_the_edge(budget):
    told = []
    found = memviz.max_batch_size(presets.digits, budget=budget, on_probe=told.append, **ON)
    assert tuple(told) == found.probes
    assert len(told) < 25
    for batch_size, complete in ((found.value, True), (found.value + 1, False)):
        fit = memviz.fits(presets.digits, batch_size=batch_size, budget=budget, **ON)
        assert (fit.estimate.completing == 1) == complete


def test_the_longest_input_and_the_widest_layer():
    longest = memviz.max_argument(lengthy, "length", batch_size=4, budget="48 MiB", **ON)
    assert (longest.argument, longest.batch_size) == ("length", 4)
    for length, complete in ((longest.value, True), (longest.value + 1, False)):
        fit = memviz.fits(lambda length=length: lengthy(length), batch_size=4, budget="48 MiB", **ON)
        assert (fit.estimate.completing == 1) == complete
    assert memviz.max_argument(lengthy, "width", batch_size=4, budget="48 MiB", **ON).value > 16


def test_a_search_ends_where_the_network_does():
    def halving(times=1):
        x = start = keras.Input((64, 64, 1))
        for _ in range(times):
            x = keras.layers.MaxPooling2D()(x)
        return keras.Model(start, keras.layers.Dense(1)(keras.layers.Flatten()(x)))

    found = memviz.max_argument(halving, "times", batch_size=1, budget="64 MiB", **ON)
    assert found.value == 6
    assert found.note.startswith("times=7 was refused: ")


def test_a_search_can_be_cancelled_and_another_goes_on():
    class EnoughError(Exception):
        pass

    def stop(probe):
        raise EnoughError

    with pytest.raises(EnoughError):
        memviz.max_batch_size(presets.digits, budget="64 MiB", on_probe=stop, **ON)
    assert memviz.max_batch_size(presets.digits, budget="64 MiB", **ON).value > 100


@pytest.mark.parametrize(
    ("ask", "error", "said"),
    [
        (lambda: memviz.max_batch_size(presets.bird_audio, budget="1 GiB", **ON), ValueError, "Not even batch_size=1"),
        (lambda: memviz.max_argument(lengthy, "depth", batch_size=1, **ON), TypeError, "length, width"),
        (lambda: memviz.max_argument(lengthy(), "length", batch_size=1, **ON), TypeError, "no argument"),
        (lambda: memviz.max_argument(lengthy, "length", batch_size=0, **ON), ValueError, "batch_size=0"),
        (lambda: memviz.fits(presets.digits, batch_size=1, device="RTX 3099"), ValueError, "Did you mean 'RTX 3090'"),
        (lambda: memviz.fits(presets.digits, batch_size=1, device="GPU:0"), ValueError, "give budget="),
        (lambda: memviz.measure(presets.digits, batch_size=1, device="T4"), ValueError, "not in this machine"),
        (lambda: memviz.fits(presets.digits, batch_size=1, budget="0 %", **ON), ValueError, "above 0 to 100"),
    ],
)  # fmt: skip
def test_what_cannot_be_answered_is_said_in_one_sentence(ask, error, said):
    with pytest.raises(error, match=said) as raised:
        ask()
    assert "\n" not in str(raised.value)


def test_a_fixed_batch_and_one_that_does_not_matter_are_said():
    def stateful():
        start = keras.Input(batch_shape=(16, 8, 4))
        return keras.Sequential([start, keras.layers.LSTM(4, stateful=True), keras.layers.Dense(1)])

    with pytest.raises(ValueError, match="takes batches of 16 only, not of 1"):
        memviz.max_batch_size(stateful, budget="8 MiB", **ON)

    def unread(seed=1):
        return keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])

    with pytest.raises(ValueError, match="seed does not decide here"):
        memviz.max_argument(unread, "seed", batch_size=1, budget="8 MiB", **ON)
