import itertools
from dataclasses import replace

import plotly.graph_objects as go
import pytest
from profiles import bird_audio, block

from memviz.measurement.result import TrialEvent, TrialStep
from memviz.profile import Category, MemoryProfile
from memviz.units import GIB
from memviz.views import figures
from memviz.views.figures import STYLES, layer_figure, trial_figure
from memviz.views.text import category_text, error_text, percent_text


def bars(figure):
    return {trace.name: list(trace.x) for trace in figure.data if trace.type == "bar"}


def marks(figure):
    return {trace.name: list(trace.x) for trace in figure.data if getattr(trace, "mode", None) == "markers"}


def test_bars_are_the_numbers_of_by_layer():
    profile = bird_audio()
    figure = layer_figure(profile)
    table = profile.by_layer()
    assert bars(figure) == {category_text(c): table[c].tolist() for c in table}
    assert sum(map(sum, bars(figure).values())) == profile.peak_bytes
    assert list(figure.layout.yaxis.ticktext) == table.index.tolist()


def test_marks_on_the_log_axis_are_the_same_numbers_without_zeros():
    profile = bird_audio()
    figure = layer_figure(profile, scale="log")
    table = profile.by_layer()
    assert marks(figure) == {category_text(c): [n or None for n in table[c].tolist()] for c in table}
    assert figure.layout.xaxis.type == "log"
    assert "do not stack" in figure.layout.title.text
    assert not any(trace.visible for trace in figure.data if trace.type == "bar")


@pytest.mark.parametrize("log", [False, True])
def test_the_legend_names_the_categories_that_hold_something(log):
    profile = bird_audio()
    shown = [trace.name for trace in layer_figure(profile, scale="log" if log else "linear").data if trace.showlegend]
    held = [category_text(name) for name, size in profile.by_category().items() if size]
    assert shown == held


def test_every_input_gives_the_same_traces_and_a_size():
    many = MemoryProfile(
        "build", "measured", (block((9,), "float32", "l0", Category.BUFFER),), tuple(f"l{i}" for i in range(40))
    )
    nothing = MemoryProfile("build", "estimated", ())
    expected = [(t.type, t.name) for t in layer_figure(bird_audio()).data]
    for layers in (
        layer_figure(nothing),
        layer_figure(nothing, scale="log"),
        layer_figure(many, scale="log", units="decimal"),
    ):
        assert [(t.type, t.name) for t in layers.data] == expected
        assert layers.layout.width == figures.WIDTH
        assert layers.layout.height >= 29 * len(bars(layers)["buffer"])
    for trial in (trial_figure(), trial_figure(events(), estimated={"build": 5}, budget_bytes=7, ended="cancelled")):
        assert [t.name for t in trial.data] == ["in use", "peak of the phase", "estimated peak", "budget", "loss"]
        assert (trial.layout.width, trial.layout.height) == (figures.WIDTH, figures.TRIAL_HEIGHT)


def test_every_category_has_its_own_look():
    assert set(STYLES) == set(Category)
    assert len({color for color, _, _ in STYLES.values()}) == len({mark for _, _, mark in STYLES.values()}) == 9
    looks = [(color, pattern) for color, pattern, _ in STYLES.values()]
    assert all(a != b for a, b in itertools.combinations(looks, 2))


def test_hover_says_how_the_bytes_come_about():
    figure = layer_figure(bird_audio())
    dense = figure.layout.yaxis.ticktext.index("dense1")
    text = next(trace.hovertext[dense] for trace in figure.data if trace.name == "gradient")
    assert "6,019,376 x 128 x 4 B (float32, MatMul)" in text
    assert "2.87 GiB (3,081,920,512 B)" in text


def test_long_names_are_shortened_on_the_axis_only():
    name = "encoder/block_03/attention/multi_head_projection"
    profile = MemoryProfile("build", "measured", (block((9,), "float32", name, Category.PARAMETER),), (name,))
    figure = layer_figure(profile)
    assert len(figure.layout.yaxis.ticktext[0]) <= 30
    assert name in figure.data[0].hovertext[0]


@pytest.mark.parametrize(("units", "unit"), [("binary", "GiB"), ("decimal", "GB")])
def test_one_axis_one_unit(units, unit):
    axis = layer_figure(bird_audio(), units=units).layout.xaxis
    assert all(text == "0" or text.endswith(f" {unit}") for text in axis.ticktext)
    assert list(axis.tickvals) == sorted(axis.tickvals)


def test_shares_are_per_cent_of_the_peak_over_the_same_bytes():
    profile = bird_audio()
    figure = layer_figure(profile, scale="share")
    assert bars(figure) == bars(layer_figure(profile))
    for value, text in zip(figure.layout.xaxis.tickvals, figure.layout.xaxis.ticktext, strict=True):
        assert 100 * value / profile.peak_bytes == pytest.approx(float(text.removesuffix(" %")))
    total = next(trace for trace in figure.data if trace.name == "total")
    assert total.text[list(profile.by_layer().index).index("dense1")] == " 99.8 %  (11.48 GiB)"
    assert layer_figure(MemoryProfile("build", "estimated", ()), scale="share").layout.xaxis.ticktext


def test_by_size_the_largest_come_first_and_every_layer_keeps_its_bytes():
    profile = bird_audio()
    figure = layer_figure(profile, order="size")
    totals = profile.by_layer().sum(axis=1)
    drawn = dict(zip(figure.layout.meta, map(sum, zip(*bars(figure).values(), strict=True)), strict=True))
    assert drawn == totals.to_dict()
    assert list(drawn.values()) == sorted(totals, reverse=True)


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_a_chosen_layer_stands_out(scale):
    profile = bird_audio()
    figure = layer_figure(profile, scale=scale, chosen="dense1")
    chosen = figure.layout.meta.index("dense1")
    for trace in figure.data:
        if trace.name != "total":
            assert trace.marker.opacity[chosen] == 1
            assert max(o for n, o in enumerate(trace.marker.opacity) if n != chosen) < 0.5
    assert layer_figure(profile, chosen="no such layer") == layer_figure(profile)


def events():
    step = TrialStep(1, 3 * GIB, 5 * GIB, 0.7, 0.5, 6 * GIB)
    return [
        TrialEvent("phase", "import", 0.0),
        TrialEvent("phase", "build", 4.0),
        TrialEvent("sample", "build", 4.25, 1 * GIB, 2 * GIB),
        TrialEvent("phase", "first_step", 5.0),
        TrialEvent("step", "first_step", 5.5, 3 * GIB, 5 * GIB, step=step),
    ]


def test_a_trial_is_drawn_as_it_was_told():
    figure = trial_figure(events(), estimated={"build": 2, "first_step": 6}, budget_bytes=4 * GIB)
    drawn = {trace.name: (list(trace.x), list(trace.y)) for trace in figure.data}
    assert drawn["in use"] == ([0.25, 1.5], [1 * GIB, 3 * GIB])
    assert drawn["peak of the phase"][1] == [2 * GIB, 5 * GIB]
    assert drawn["estimated peak"] == ([0.0, 1.0, None, 1.0, 1.5], [2, 2, None, 6, 6])
    assert drawn["budget"] == ([0, 1.5], [4 * GIB, 4 * GIB])
    assert drawn["loss"] == ([1.5], [0.7])


def test_before_a_trial_the_levels_and_what_will_come():
    figure = trial_figure(estimated={"build": 2, "first_step": 6, "steady_step": 5}, budget_bytes=4)
    assert list(figure.data[2].y) == [2, 2, None, 6, 6, None, 5, 5]
    assert any(a.visible is not False and "Run trial" in a.text for a in figure.layout.annotations)
    assert isinstance(figure, go.Figure)


def test_shares_never_round_to_all_or_nothing():
    assert percent_text(0.9999966) == "99.99 %"
    assert percent_text(1.0) == "100.0 %"
    assert percent_text(0.0004) == "< 0.1 %"
    assert error_text(-0.0123) == "\N{MINUS SIGN}1.2 %"
    assert error_text(-0.0001) == "\N{PLUS-MINUS SIGN}0.0 %"


def test_a_budget_far_above_is_named_but_does_not_flatten_the_rest():
    figure = trial_figure(events(), estimated={"build": 2 * GIB}, budget_bytes=90 * GIB)
    assert figure.layout.yaxis.range[1] < 10 * GIB
    assert any("90.00 GiB" in a.text and "above" in a.text for a in figure.layout.annotations)


def test_a_layer_s_name_is_text_in_every_figure():
    name, least = "<img src=x onerror=alert(1)>", {"address": 0, "end": 2}
    kernel = replace(block((64, 64), "float32", name, Category.PARAMETER, f"{name}/kernel"), **least)
    profile = MemoryProfile("steady_step", "measured", (kernel,), (name,))
    drawn = [layer_figure(profile, chosen=name), layer_figure(profile, scale="log"), figures.address_map(profile)]
    drawn += [figures.timeline(profile, by=by, chosen=name) for by in ("category", "layer")]
    drawn.append(trial_figure(title=name))
    for figure in drawn:
        figure.layout.meta = None  # for a click; never drawn
        assert "&lt;img" in figure.to_json().replace("\\u003c", "<").replace("\\u003e", ">") or figure is drawn[3]
        assert "<img" not in figure.to_json().replace("\\u003c", "<")
