from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from profiles import bird_audio

from memviz.estimation.result import Estimate
from memviz.measurement.result import Trial, TrialEvent
from memviz.models import presets
from memviz.models.convnet import ConvBlock, ConvNet
from memviz.profile import Phase
from memviz.units import GIB, MIB
from memviz.views.explorer import state as words
from memviz.views.explorer.state import ExplorerState, TrialRun, knobs_of, opening_state, state_of, verdict

OPENED, _ = opening_state(None, 100 * GIB)


def estimate(required_bytes=14 * GIB, completing=0.0):
    phases = {p: Phase(p, bird_audio(p).peak_bytes, bird_audio(p)) for p in ("build", "first_step", "steady_step")}
    return Estimate(phases, required_bytes, "first_step", "binary_crossentropy", completing=completing)


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


@given(st.lists(blocks, max_size=3), st.lists(st.integers(1, 900), max_size=2), st.booleans())
def test_knobs_say_all_that_they_change(its_blocks, dense, log):
    network = ConvNet(input_shape=(90, 80, 3), blocks=tuple(its_blocks), dense=tuple(dense), name="mine")
    state = replace(OPENED, network=network, log=log, setup=replace(OPENED.setup, batch_size=7, budget_bytes=12345678))
    assert state_of(knobs_of(state), network) == state


def test_a_knob_keeps_what_no_knob_shows():
    base = replace(presets.digits, blocks=(ConvBlock(filters=8, padding="same", dropout=0.2),), dense=(64, 32))
    knobs = knobs_of(replace(OPENED, network=base)) | {"dense": 100}
    knobs["blocks"] = [*knobs["blocks"], {**knobs["blocks"][0], "pooling": "average 4"}]
    network = state_of(knobs, base).network
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
        state_of(knobs_of(OPENED) | {knob: value}, OPENED.network)


def test_presets_are_recognised():
    assert words.preset_name(presets.bird_audio_pooled) == "bird_audio_pooled"
    assert words.preset_name(replace(presets.bird_audio, dense=(64,))) == words.CUSTOM


def test_the_verdict_is_one_sentence_with_the_numbers():
    text = verdict(OPENED, estimate())
    for part in (
        "770,482,865 parameters", "14.00 GiB", "first step decides", "does not fit into 9.29 GiB", "4.71 GiB",
        "optimizer state is", "6,019,376 x 128", "holds 99.99 % of the parameters",
    ):  # fmt: skip
        assert part in text
    assert text.count(". ") == 0
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
    assert words.trial_title(run, replace(OPENED, log=True, units="decimal")).startswith("Trial: bird_audio, adam")
    moved = ExplorerState(network=presets.digits, setup=OPENED.setup)
    assert words.trial_title(run, moved).startswith("Earlier trial, not of these knobs: bird_audio")
