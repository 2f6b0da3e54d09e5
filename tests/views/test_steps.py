"""The timeline, the address map and the page, as the plain data that plotly is given."""

import math
import re
from dataclasses import replace

import pytest

from memviz.failure import Failure
from memviz.profile import Allocation, Category, MemoryProfile
from memviz.views import figures
from memviz.views.page import save_html
from memviz.views.tables import layer_table
from memviz.views.text import category_text

C = Category
STEP = MemoryProfile(
    "steady_step", "measured", layers=("conv", "dense"),
    allocations=(
        Allocation(4096, 4000, 0, None, "dense", C.PARAMETER, "AddV2", (1000,), "float32", 0),
        Allocation(1024, 1024, 1, 5, "conv", C.ACTIVATION, "model/conv/Relu", (256,), "float32", 4096, 0.001, 0.003),
        Allocation(2048, 2048, 2, 4, "dense", C.ACTIVATION_GRADIENT, "gradient_tape/dense/MatMul", None, "", 5120),
        Allocation(4096, 4000, 3, 7, "dense", C.GRADIENT, "gradient_tape/dense/MatMul_1", (1000,), "float32", 1 << 40),
        Allocation(4096, 4000, 6, 8, "dense", C.TEMPORARY, "adam/Square", (1000,), "float32", (1 << 40) + 4096),
    ),
)  # fmt: skip


def areas(figure):
    return {trace.name: list(trace.y) for trace in figure.data if trace.stackgroup and trace.visible}


def drawn(figure, name):
    return next(trace for trace in figure.data if trace.name == name)


def long_profile(count):
    """Up and down, with one peak of its own, and many blocks at the same time."""
    blocks = [
        Allocation(1000 * (1 + i % 7), 1000 * (1 + i % 7), 2 * i + 1, 2 * i + 60, f"l{i % 30}", C.ACTIVATION, address=i)
        for i in range(count)
    ]
    blocks.append(Allocation(50_000, 50_000, 2 * (count // 3), 2 * (count // 3) + 1, "l0", C.TEMPORARY, address=0))
    return MemoryProfile("steady_step", "measured", tuple(blocks))


def test_the_areas_are_the_numbers_of_the_timeline():
    figure, table = figures.timeline(STEP), STEP.timeline()
    wanted = {category_text(c): table[c].tolist() for c in table if table[c].any()}
    assert areas(figure) == wanted
    assert list(drawn(figure, "measured").y) == table.sum(axis=1).tolist()
    assert max(drawn(figure, "measured").y) == STEP.peak_bytes


def test_by_layer_the_areas_sum_to_the_same_course():
    figure, table = figures.timeline(STEP, by="layer"), STEP.timeline("layer")
    assert areas(figure) == {"conv": table["conv"].tolist(), "dense": table["dense"].tolist()}
    assert table.sum(axis=1).tolist() == STEP.timeline().sum(axis=1).tolist()


def test_of_many_layers_the_largest_are_named_and_none_is_lost():
    profile = long_profile(400)
    named = areas(figures.timeline(profile, by="layer"))
    assert len(named) == len(figures.STYLES)
    assert "other layers" in named
    assert max(map(sum, zip(*named.values(), strict=True))) == profile.peak_bytes


def test_forward_backward_and_update_are_marked():
    bands = [shape.label.text for shape in figures.timeline(STEP).layout.shapes]
    assert bands == ["forward", "backward", "update"]
    ends = [(shape.x0, shape.x1) for shape in figures.timeline(STEP).layout.shapes]
    assert ends[0][0] == 0
    assert ends[-1][1] == 100
    assert [end for _, end in ends[:-1]] == [start for start, _ in ends[1:]]


def test_peak_and_capacity_are_marked():
    figure = figures.timeline(STEP, budget_bytes=20_000)
    budget, peak = figure.layout.annotations
    assert "budget" in budget.text
    assert list(drawn(figure, "budget").y) == [20_000, 20_000]
    assert peak.y == STEP.peak_bytes
    at = list(drawn(figure, "measured").x).index(peak.x)
    assert drawn(figure, "measured").y[at] == STEP.peak_bytes


def test_a_recording_lies_as_a_line_over_the_estimates_areas():
    estimate = MemoryProfile("steady_step", "estimated", STEP.allocations[:2], STEP.layers)
    figure = figures.timeline(STEP, estimate=estimate)
    assert set(areas(figure)) == {"parameter", "activation", "allocator slack"}
    assert drawn(figure, "measured").line.width > 0
    assert drawn(figure, "measured").showlegend
    assert max(drawn(figure, "measured").y) == STEP.peak_bytes


def test_the_hover_tells_op_shape_bytes_and_lifetime():
    texts = "\n".join(drawn(figures.timeline(STEP), "measured").hovertext)
    assert "256 x 4 B (float32, model/conv/Relu)" in texts
    assert "alive from 1 to 5 (2.00 ms)" in texts


def test_a_chosen_layer_is_a_line_of_its_own():
    line = drawn(figures.timeline(STEP, chosen="dense"), "dense")
    assert list(line.y) == STEP.timeline("layer")["dense"].tolist()
    assert line.visible
    assert not drawn(figures.timeline(STEP, chosen="no such layer"), "no such layer").visible


def test_every_timeline_has_the_same_number_of_traces():
    empty = MemoryProfile("build", "estimated", ())
    counts = {
        len(figures.timeline(p, by=by).data) for p in (STEP, empty, long_profile(9)) for by in ("category", "layer")
    }
    assert len(counts) == 1


def test_thinning_keeps_the_peak():
    profile = long_profile(20_000)
    y = drawn(figures.timeline(profile), "measured").y
    assert len(y) < 2 * figures._POINTS
    assert max(y) == profile.peak_bytes


def rectangles(trace):
    x, y = list(trace.x), list(trace.y)
    gaps = [i for i, value in enumerate(x) if math.isnan(value)]
    return [(min(x[i - 4 : i]), max(x[i - 4 : i]), min(y[i - 4 : i]), max(y[i - 4 : i])) for i in gaps]


def test_the_address_map_has_a_rectangle_per_block_at_its_address():
    figure = figures.address_map(STEP)
    assert rectangles(drawn(figure, "activation")) == [(1, 5, 4096, 5120)]
    assert rectangles(drawn(figure, "parameter")) == [(0, 9, 0, 4000)]
    assert rectangles(drawn(figure, "allocator slack"))[0] == (0, 9, 4000, 4096)
    # Between the regions there are a million MiB: they are closed up.
    (gradient,), (temporary,) = rectangles(drawn(figure, "gradient")), rectangles(drawn(figure, "temporary"))
    assert 7168 < gradient[2] < 20_000
    assert temporary[2] - gradient[2] == 4096
    hover = "\n".join(t for trace in figure.data for t in trace.hovertext or ())
    assert "<b>dense</b>: temporary" in hover


def test_ten_thousand_blocks_are_a_trace_per_category():
    figure = figures.address_map(long_profile(10_000))
    assert len(figure.data) == len(Category) + 1
    assert sum(len(rectangles(t)) for t in figure.data if t.fill) == figures._BOXES
    assert "5,001 smaller than" in figure.layout.title.text


def test_without_addresses_there_is_no_map():
    with pytest.raises(ValueError, match=r"no addresses; record a trial \(record=True\)"):
        figures.address_map(MemoryProfile("build", "estimated", (Allocation(1, 1, 0, None, "a", C.INPUT),)))


def test_the_page_needs_nothing_else_and_is_small(tmp_path):
    path = tmp_path / "step.html"
    failure = Failure("first_step", "MatMul", (3, 4), "float32", 48, 1 << 20)
    save_html(replace(STEP, setup={"optimizer": "<adam>"}, not_counted=("a & b",)), path, failure=failure)
    text = path.read_text()
    assert len(text) < 6_000_000
    assert text.count("plotly.js v") == 1
    assert not re.search(r"<(script|link)[^>]+(src|href)=", text)
    assert "&lt;adam&gt;" in text
    assert "a &amp; b" in text
    assert "Out of memory in the first step: MatMul asked for 48 B" in text
    assert text.count("Plotly.newPlot(") >= 4


@pytest.mark.parametrize("show", [figures.timeline, figures.layer_figure, figures.address_map, layer_table])
@pytest.mark.parametrize("wrong", [None, Failure("build")])
def test_what_is_no_profile_is_refused_with_where_one_is_found(show, wrong):
    with pytest.raises(TypeError, match=r"such as estimate\.profile, trial\.profile \(with record=True\)"):
        show(wrong)
