import inspect
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from profiles import bird_audio

from memviz.estimation.result import Estimate
from memviz.measurement.result import Trial, TrialEvent, TrialStep
from memviz.models import presets
from memviz.models.convnet import ConvBlock, ConvNet
from memviz.profile import MemoryProfile, Phase
from memviz.units import GIB, MIB
from memviz.views.explorer import state as states
from memviz.views.explorer import words
from memviz.views.explorer.state import (
    OPTIMIZER_OPTIONS,
    ExplorerState,
    knobs_of,
    opening_state,
    restored,
    saved,
    state_of,
    with_preset,
)
from memviz.views.explorer.words import TrialRun, compared, layer_card, verdict, why

OPENED, _ = opening_state(None, 100 * GIB)


def estimate(required_bytes=14 * GIB, completing=0.0):
    phases = {p: Phase(p, bird_audio(p).peak_bytes, bird_audio(p)) for p in ("build", "first_step", "steady_step")}
    return Estimate(
        phases, required_bytes, "first_step", "binary_crossentropy", completing=completing,
        layers=presets.bird_audio.plan,
    )  # fmt: skip


def test_opens_on_the_founding_question():
    assert OPENED.network == presets.bird_audio
    assert OPENED.setup.budget_bytes == 9513 * MIB
    assert (OPENED.setup.batch_size, OPENED.setup.optimizer) == (1, "adam")


def test_with_little_memory_opens_smaller_and_says_why():
    state, notice = opening_state(None, 10 * GIB)
    assert state.network == presets.bird_audio_pooled
    assert "10.00 GiB" in notice
    assert "11.00 GiB" in notice
    assert opening_state(presets.digits, GIB)[0].network == presets.digits


blocks = st.builds(
    ConvBlock,
    filters=st.integers(1, 300),
    kernel=st.integers(1, 3),
    strides=st.integers(1, 2),
    padding=st.sampled_from(["valid", "same"]),
    batch_norm=st.booleans(),
    pooling=st.sampled_from([None, "max"]),
    dropout=st.sampled_from([0.0, 0.5]),
)
optimizers = st.sampled_from([
    "adam", "muon", {"class_name": "adam", "config": {"amsgrad": True, "gradient_accumulation_steps": 4}},
    {"class_name": "rmsprop", "config": {"momentum": 0.9, "centered": True, "use_ema": True}},
])  # fmt: skip


@st.composite
def states_of_the_panel(draw):
    network = ConvNet(
        input_shape=(300, 290, 3), blocks=tuple(draw(st.lists(blocks, max_size=3))),
        dense=tuple(draw(st.lists(st.integers(1, 900), max_size=2))), name="mine",
    )  # fmt: skip
    setup = replace(
        OPENED.setup, batch_size=7, budget_bytes=12345678, optimizer=draw(optimizers),
        jit_compile=draw(st.sampled_from([True, False, "auto"])), device=draw(st.sampled_from(["reference", "T4"])),
    )  # fmt: skip
    scale, order = draw(st.sampled_from(["linear", "log", "share"])), draw(st.sampled_from(["model", "size"]))
    return ExplorerState(network=network, setup=setup, scale=scale, order=order)


@given(states_of_the_panel())
def test_knobs_say_all_that_they_change(state):
    assert state_of(knobs_of(state), state) == state


@given(states_of_the_panel())
def test_a_saved_state_is_restored(state):
    assert restored(saved(state), OPENED) == state


@pytest.mark.parametrize(
    "text", ["", "nonsense", "[]", "{}", "null", saved(OPENED).replace("batch_size", "batch"), saved(OPENED)[:-9],
             saved(OPENED).replace('"steady_step"', "7").replace("flatten", "flattened"),
             saved(OPENED).replace('"batch_size": 1', '"batch_size": -1')],
)  # fmt: skip
def test_what_was_not_saved_is_refused_in_a_sentence(text):
    with pytest.raises(ValueError, match="no setup that memviz saved"):
        restored(text, OPENED)


@pytest.mark.parametrize("knob", OPTIMIZER_OPTIONS)
def test_the_options_of_optimizers_are_keras_s(knob):
    from memviz.models.training import make_optimizer
    from memviz.setup import OPTIMIZERS

    argument, value, _ = OPTIMIZER_OPTIONS[knob]
    for name in OPTIMIZERS:
        known = inspect.signature(type(make_optimizer(name))).parameters
        off = argument in known and not known[argument].default  # Muon's momentum is always on
        assert states.takes(name, knob) == off, name
        if off:
            assert make_optimizer({"class_name": name, "config": {argument: value}}).get_config()[argument] == value


def test_a_preset_brings_its_training_and_leaves_device_and_display():
    state = replace(OPENED, units="decimal")
    gesture = with_preset(state, presets.gesture_cnn)
    assert (gesture.setup.batch_size, gesture.setup.optimizer) == (32, "adadelta")
    assert gesture.setup.budget_bytes == state.setup.budget_bytes
    assert gesture.units == "decimal"
    assert with_preset(gesture, presets.bird_audio) == state


def test_a_card_s_budget_is_what_tensorflow_can_use():
    from memviz.cards import card

    knobs = knobs_of(OPENED) | {"device": "T4", "budget": states.default_budget("T4")}
    assert state_of(knobs, OPENED).setup.budget_bytes == card("T4").usable_bytes


def test_a_knob_keeps_what_no_knob_shows():
    base = replace(presets.digits, blocks=(ConvBlock(filters=8, padding="same", dropout=0.2),), dense=(64, 32))
    knobs = knobs_of(replace(OPENED, network=base)) | {"dense": 100}
    knobs["blocks"] = [*knobs["blocks"], {**knobs["blocks"][0], "pooling": "average 4"}]
    network = state_of(knobs, replace(OPENED, network=base)).network
    assert network.dense == (100, 32)
    assert network.blocks[1] == replace(base.blocks[0], pooling="average", pool_size=4)


@pytest.mark.parametrize(
    ("knob", "value", "word"),
    [
        ("budget", "9 GBB", "9513 MiB"),
        ("batch_size", 0, "batch_size=0"),
        ("batch_size", -3, "from 1"),
        ("height", 2, "does not fit"),
        ("outputs", 0, "outputs=0"),
        ("channels", 0, "input channels"),
    ],
)
def test_what_is_not_possible_is_said_in_words(knob, value, word):
    with pytest.raises(ValueError, match=word):
        state_of(knobs_of(OPENED) | {knob: value}, OPENED)


def test_presets_are_recognised():
    assert states.preset_name(presets.bird_audio_pooled) == "bird_audio_pooled"
    assert states.preset_name(replace(presets.bird_audio, dense=(64,))) == states.CUSTOM


def test_the_verdict_is_one_sentence_with_the_numbers():
    text = verdict(OPENED, estimate())
    for part in (
        "770,482,865 parameters", "14.00 GiB", "first step decides", "does not fit into 9.29 GiB", "4.71 GiB",
        "Most is held by flatten \N{RIGHTWARDS ARROW} dense1: 6,019,376 x 128 = 2.87 GiB, held four times",
        "weight, gradient and 2 x optimizer state",
    ):  # fmt: skip
        assert part in text
    assert text.count(". ") == 1
    roomy = verdict(replace(OPENED, units="decimal"), estimate(5 * 10**9, completing=1.0))
    assert "5.00 GB" in roomy
    assert "fits into 9.98 GB with 4.98 GB to spare" in roomy
    close = verdict(OPENED, estimate(9513 * MIB - GIB // 4, completing=0.6))
    assert "may fit into 9.29 GiB, with 256.00 MiB to spare: 60.0 % of the orders" in close
    assert "fit" not in verdict(replace(OPENED, setup=replace(OPENED.setup, budget_bytes=None)), estimate())


def test_a_trial_is_told_in_sentences():
    run = TrialRun(state=OPENED, steps=5, estimate=estimate())
    assert "child process" in words.trial_sentence(TrialRun(state=OPENED), "binary")
    assert words.trial_sentence(run, "binary").startswith("TensorFlow is starting")
    going = replace(run, events=(TrialEvent("sample", "build", 4.2, 3 * GIB, 6 * GIB),))
    assert words.trial_sentence(going, "binary") == "Build: 0 of 5 steps, 3.00 GiB in use, 4 s."
    steps = [TrialStep(number, GIB, GIB, 0.5, 1.5, 0) for number in (1, 2, 3)]
    done = [TrialEvent("step", "steady_step", 5.0 + step.index, GIB, GIB, step=step) for step in steps]
    assert words.trial_sentence(replace(run, events=tuple(done)), "binary") == (
        "Steady step: 3 of 5 steps, 1.00 GiB in use, 8 s, loss 0.500, about 3 s left."
    )
    peak = run.estimate.phases["build"].peak_bytes
    trial = Trial(
        "out_of_memory", OPENED.setup, "reference", None, (), {"build": Phase("build", peak)}, "", 9.0, "Out of memory."
    )
    ended = replace(going, trial=trial)
    assert words.trial_sentence(ended, "binary") == "Out of memory."
    assert words.ending_text(ended) == "out of memory"
    assert ended.error_of("build") == 0
    assert ended.error_of("steady_step") is None


def test_a_measurement_of_other_knobs_is_called_so():
    run = TrialRun(state=OPENED, steps=5)
    assert words.trial_title(run, replace(OPENED, scale="log", units="decimal")).startswith("Trial: bird_audio, adam")
    moved = ExplorerState(network=presets.digits, setup=OPENED.setup)
    assert words.trial_title(run, moved).startswith("Earlier trial, not of these knobs: bird_audio")


def test_a_layer_s_card_says_shapes_weights_what_is_kept_and_the_bytes():
    shapes, weights, kept, held = layer_card(presets.bird_audio.plan, "dense1", bird_audio(), "binary")
    assert shapes == "dense1 (Dense): 6,019,376 in, 128 out, per example."
    assert weights == "Weights: 6,019,376 x 128 and 128, 770,480,256 parameters."
    assert "its input: the gradient of the kernel is made from it; its output" in kept
    assert held.startswith("At the peak: parameter 2.87 GiB, gradient 2.87 GiB, optimizer state 5.74 GiB")
    assert (
        "nothing: it is its input in another shape"
        in layer_card(presets.bird_audio.plan, "flatten", bird_audio(), "binary")[1]
    )
    assert layer_card(presets.bird_audio.plan, "input", bird_audio(), "binary")[0] == "input: no layer of the network."


@pytest.mark.parametrize("network", presets.ALL.values(), ids=presets.ALL)
def test_every_layer_has_a_card(network):
    profile = MemoryProfile("steady_step", "estimated", (), tuple(layer.name for layer in network.plan))
    for layer in network.plan:
        assert "Kept for the backward pass: " in " ".join(layer_card(network.plan, layer.name, profile, "binary"))


def test_why_names_the_largest_with_their_share_of_the_peak():
    first, second, _ = why(presets.bird_audio.plan, bird_audio(), "binary")
    assert first.endswith(f"({400 * 3081920512 / bird_audio().peak_bytes:.1f} % of the peak)")
    assert second.startswith("conv1: 1 x 1,489 x 255 x 16 = 23.17 MiB, held once: activation")


def test_a_comparison_says_what_was_changed_and_where_the_bytes_went():
    after = replace(OPENED, setup=replace(OPENED.setup, optimizer="sgd", batch_size=2))
    fewer = replace(bird_audio(), allocations=tuple(a for a in bird_audio().allocations if "adam" not in a.op))
    now = Estimate({"steady_step": Phase("steady_step", fewer.peak_bytes, fewer)}, 8 * GIB, "steady_step", "")
    text = compared(OPENED, estimate(), after, now)
    assert text == (
        "B needs 8.00 GiB, 6.00 GiB less than A. Changed: optimizer adam \N{RIGHTWARDS ARROW} sgd, "
        "batch size 1 \N{RIGHTWARDS ARROW} 2. Most at the peak: dense1, optimizer state, 5.74 GiB less."
    )
    assert compared(OPENED, estimate(), OPENED, estimate()) == "B needs 14.00 GiB, as much as A. Changed: nothing."
    fewer_blocks = replace(OPENED, network=replace(presets.bird_audio, blocks=presets.bird_audio.blocks[:1]))
    assert "blocks 2 \N{RIGHTWARDS ARROW} 1" in words.changes(OPENED, fewer_blocks)
