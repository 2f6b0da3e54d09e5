"""The figures: functions from profiles and trial events to a `plotly.graph_objects.Figure`, never displayed here.

The only file that builds plotly figures. Every function returns the same set of traces for every input, so that a
`FigureWidget` made from one result can be updated in place from the next. Positions along a memory axis are bytes.
"""

from __future__ import annotations

import html
import itertools
import json
import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec

import plotly.graph_objects as go
from plotly.colors import qualitative

from memviz.profile import Allocation, Category, MemoryProfile, checked_profile
from memviz.units import KIB, UnitSystem, format_bytes, shape_text, unit_for
from memviz.views.text import category_text, percent_text

if TYPE_CHECKING:
    import pandas as pd

    from memviz.measurement.result import TrialEvent
    from memviz.measurement.waterfall import Waterfall

# Okabe and Ito's palette, told apart by colour-blind readers too, and a pattern each for print and projectors.
_LOOK = json.loads(Path(__file__).with_name("look.json").read_text())
STYLES = {Category(name): tuple(style) for name, style in _LOOK["categories"].items()}  # colour, pattern, marker
_STAGES = _LOOK["stages"]  # of a `Waterfall`: what it is called, and its colour
LOOK = _LOOK["template"]  # plotly's template of every figure
Given = ParamSpec("Given")
Scale = Literal["linear", "log", "share"]
Order = Literal["model", "size"]
Chart = dict[str, Any]  # "data" and "layout", as plotly's JSON
INK, QUIET, BUDGET, ESTIMATE, IN_USE = "#1f2328", "#57606a", "#B22222", "#D55E00", "#0072B2"
WIDTH, ROW_HEIGHT, TRIAL_HEIGHT = 690, 29, 340
_LONGEST_NAME = 30  # in letters
_TOTAL_WIDTH, _LEGEND_WIDTH = 145, 160  # in pixels: "123.45 MiB  (100.0 %)", "activation gradient" with its mark


def _checked(chart: Callable[Given, Chart]) -> Callable[Given, go.Figure]:
    """What the functions below return: figures. plotly checks each value, which takes longer than all the rest."""

    @wraps(chart)
    def figure(*args: Given.args, **options: Given.kwargs) -> go.Figure:
        return go.Figure(chart(*args, **options))

    return figure


def chart_of(figure: Callable[Given, go.Figure]) -> Callable[Given, Chart]:
    """One of the functions below without these checks: for a widget that shows another figure at once."""
    return figure.__wrapped__  # type: ignore[attr-defined]


@_checked
def layer_figure(
    profile: MemoryProfile, *, scale: Scale = "linear", order: Order = "model", chosen: str | None = None,
    units: UnitSystem = "binary",
) -> Chart:  # fmt: skip
    """Bytes at the peak per layer, by category: stacked bars, or on a log axis one mark per category.

    The bars' numbers are those of `MemoryProfile.by_layer`, in bytes; on the scale "share" the axis and the labels are
    in per cent of the peak. A log axis has no zero, so neither a bar's length nor a stack means anything on it: there,
    marks at the bytes themselves. order: the layers as in the model, or the largest first. chosen: a layer that stands
    out, the others being pale.
    """
    frame, log = checked_profile(profile).by_layer(), scale == "log"
    if order == "size":
        frame = frame.loc[frame.sum(axis=1).sort_values(ascending=False, kind="stable").index]
    table: dict[str, dict[str, int]] = frame.T.to_dict()  # type: ignore[assignment]
    held: dict[tuple[str, str], list[Allocation]] = defaultdict(list)
    for block in profile.at_peak():
        held[block.layer, block.category].append(block)
    totals = [sum(row.values()) for row in table.values()]
    longest = max(totals, default=0) or 1
    traces = [trace for category in Category for trace in _category_traces(category, table, held, longest, log, units)]
    if chosen in table:
        for trace in traces:
            trace["marker"]["opacity"] = [1 if name == chosen else 0.3 for name in table]
    shares = [percent_text(t / sum(totals)) if t else "" for t in totals]
    pairs = [(format_bytes(t, units), s) for t, s in zip(totals, shares, strict=True)]
    pairs = [(share or size, size if share else "") for size, share in pairs] if scale == "share" else pairs
    texts = [f" {first}  ({second})" if second else f" {first}" for first, second in pairs]
    traces.append({
        "type": "scatter", "name": "total", "mode": "text", "x": totals, "text": texts, "textfont": {"size": 12},
        "textposition": "middle right", "cliponaxis": False, "hoverinfo": "skip", "showlegend": False,
        "visible": not log,
    })  # fmt: skip
    for trace in traces:
        trace["y"] = list(range(len(table)))
    cells = [size for row in table.values() for size in row.values() if size]
    left = _left_margin(list(table))
    room = 1 / (1 - _TOTAL_WIDTH / (WIDTH - left))  # for the totals beside the longest bar
    axis = _log_axis(cells, units) if log else _linear_axis(longest, room, units)
    if scale == "share":
        axis = _share_axis(longest, sum(totals), room)
    return {"data": traces, "layout": _layer_layout(profile, list(table), axis, units)}


def _category_traces(
    category: Category, table: Mapping[str, Mapping[str, int]], held: Mapping[tuple[str, str], list[Allocation]],
    longest: int, log: bool, units: UnitSystem,
) -> list[dict[str, Any]]:  # fmt: skip
    """A category's bars, and its marks for a log axis; of the two, and of all categories, some are hidden."""
    color, pattern, symbol = STYLES[category]
    sizes = [row[category] for row in table.values()]
    bars = {
        "type": "bar", "x": sizes, "width": 0.74, "textposition": "inside", "insidetextanchor": "middle",
        "text": [format_bytes(size, units) if size > 0.11 * longest else "" for size in sizes],
        "textangle": 0, "textfont": {"size": 12},
        "marker": {
            "color": color, "line": {"color": "white", "width": 1},
            "pattern": {"shape": pattern, "fillmode": "overlay", "fgcolor": "white", "fgopacity": 0.45, "size": 7,
                        "solidity": 0.22},
        },
    }  # fmt: skip
    mark = {"color": color, "symbol": symbol, "size": 9, "line": {"color": INK, "width": 0.6}}
    marks = {"type": "scatter", "mode": "markers", "x": [size or None for size in sizes] if log else [], "marker": mark}
    texts = [_hover_text(name, category, row[category], held[name, category], units) for name, row in table.items()]
    common = {"name": category_text(category), "orientation": "h", "hoverinfo": "text"}
    shown = (bars, any(sizes) and not log), (marks, any(sizes) and log)  # what is hidden travels to no browser
    return [
        common | trace | {"visible": visible, "showlegend": visible, "hovertext": texts if visible else []}
        for trace, visible in shown
    ]


def _hover_text(layer: str, category: str, size: int, blocks: list[Allocation], units: UnitSystem) -> str:
    lines = [f"<b>{_escaped(layer)}</b>: {category_text(category)}", f"{format_bytes(size, units)} ({size:,} B)"]
    more = [f"and {len(blocks) - 3} more"] if len(blocks) > 3 else []
    return "<br>".join([*lines, *map(block_text, blocks[:3]), *more]) if size else ""


def _layer_layout(profile: MemoryProfile, layers: list[str], axis: dict[str, Any], units: UnitSystem) -> dict[str, Any]:
    phase, peak = category_text(profile.phase).capitalize(), format_bytes(profile.peak_bytes, units)
    title, log = f"{phase}: {peak} at the peak, by layer ({profile.source})", axis["type"] == "log"
    note = "a bar's length is the bytes a layer holds at the peak, stacked by what they are held for"
    if log:
        note = "log scale: one mark per category at its bytes; marks do not stack, and zero is not shown"
    labels, left = [_escaped(_shortened(name)) for name in layers], _left_margin(layers)
    # Beside long names the chart is narrow, and so is the legend below it, which plotly wraps.
    named = len({block.category for block in profile.at_peak()} | {Category.ALLOCATOR_SLACK})
    legend = 39 + 19 * max(3, math.ceil(named / max(1, (WIDTH - left - 12) // _LEGEND_WIDTH)))
    return _frame(60 + legend + ROW_HEIGHT * max(len(layers), 5)) | _title(title, note) | {
        "meta": layers,  # which layer a bar that is clicked belongs to
        "barmode": "stack", "scattermode": "group", "scattergap": 0.3,  # a layer's marks lie beside each other
        "margin": {"l": left, "r": 12, "t": 58, "b": legend},
        "xaxis": axis,
        "yaxis": {"range": [len(layers) - 0.4, -0.6], "tickvals": list(range(len(layers))), "ticktext": labels,
                  "showgrid": log},
    }  # fmt: skip


def _shortened(name: str) -> str:
    """A name beside its bar; the hover has it whole."""
    return name if len(name) <= _LONGEST_NAME else f"{name[:14]}…{name[-15:]}"


def _left_margin(layers: Sequence[str]) -> int:
    """Pixels for the layers' names."""
    return 24 + 7 * max(len(_shortened(name)) for name in layers)


def block_text(block: Allocation) -> str:
    """How a block's bytes come about: ``6,019,376 x 128 x 4 B (float32, Adam/Mul)``."""
    about = _escaped(", ".join(part for part in (block.dtype, block.op) if part))
    item, rest = divmod(block.requested_nbytes, math.prod(block.shape or ()) or 1)
    factors = [block.requested_nbytes] if rest else [*(block.shape or ()), item]
    return shape_text(factors) + f" B ({about})" * bool(about)


@_checked
def timeline(
    profile: MemoryProfile, *, by: Literal["category", "layer"] = "category", budget_bytes: int | None = None,
    estimate: MemoryProfile | None = None, chosen: str | None = None, units: UnitSystem = "binary",
) -> Chart:  # fmt: skip
    """Memory over one phase, allocation by allocation: stacked areas by category, or by the layers that hold most.

    estimate: of the same phase; its areas are drawn, and the (recorded) profile as a line over them. chosen: a layer
    whose bytes are drawn as a line too. The horizontal axis is the share of the allocations and releases that change
    the picture; long phases are thinned, peaks stay.
    """
    areas = checked_profile(estimate or checked_profile(profile))
    table = _fewer_columns(areas.timeline(by))
    points, line = _thinned(table), _thinned(profile.timeline())
    at, total = _shares(points), line.sum(axis=1)
    peak = _shares(line)[line.index.tolist().index(profile.peak_position)]
    highest = _highest([profile.peak_bytes, areas.peak_bytes], budget_bytes)
    # Layers have colours of their own, as colour-blind-safe, so that none is taken for a category.
    colors = [color for color, _, _ in STYLES.values()] if by == "category" else qualitative.Safe
    styles = [(color, pattern) for color, (_, pattern, _) in zip(colors, STYLES.values(), strict=False)]
    named = category_text if by == "category" else _escaped
    traces = [
        {"type": "scatter", "mode": "lines", "stackgroup": "held", "name": named(str(name)), "x": at,
         "y": points[name].tolist(), "line": {"shape": "hv", "width": 0, "color": color}, "fillcolor": color,
         "fillpattern": {"shape": pattern, "fillmode": "overlay", "fgcolor": "white", "fgopacity": 0.45, "size": 7},
         "hovertemplate": "%{customdata}", "customdata": [format_bytes(size, units) for size in points[name]],
         "visible": bool(points[name].any())}
        for name, (color, pattern) in zip(points, styles, strict=True)
    ]  # fmt: skip
    texts = _what_happens(profile, line, units)
    course = _line(profile.source, _shares(line), total.tolist(), units, INK, width=1.2 if estimate else 0)
    course["line"]["shape"] = "hv"
    traces.append(course | {"hovertext": texts, "showlegend": estimate is not None})
    held: list[int] = []
    if chosen is not None and chosen in (by_layer := areas.timeline("layer")):
        held = by_layer[chosen].loc[points.index].tolist()
    one = _line(_escaped(chosen or ""), at if held else [], held, units, "#CC3311", width=2.5, dash="dot")
    one["line"]["shape"] = "hv"
    traces.append(one | {"visible": bool(held)})
    capacity = _line("budget", [0, 100], [budget_bytes] * 2, units, BUDGET, width=2.5)
    traces.append(capacity | {"visible": budget_bytes is not None})
    top = f"{category_text(profile.phase).capitalize()}: {format_bytes(profile.peak_bytes, units)} at the peak"
    layout = _frame(TRIAL_HEIGHT + 60) | _title(f"{top} ({profile.source})", _TIMELINE_NOTE)
    layout |= {
        "hovermode": "x unified", "margin": {"l": 78, "r": 30, "t": 74, "b": 100},
        "xaxis": {"range": [0, 100], "showgrid": False, "ticksuffix": " %", "hoverformat": ".1f"},
        "yaxis": _linear_axis(highest, 1.15, units),
        "shapes": [_phase_band(number, *span, 100) for number, span in enumerate(_parts_of_step(areas, points))],
        "annotations": [
            _level_label("budget", budget_bytes, highest, BUDGET, "left" if peak > 50 else "right", units),
            {"x": peak, "y": profile.peak_bytes, "text": "<b>peak</b>", "showarrow": True, "arrowhead": 2, "ax": 0,
             "ay": -22, "font": {"color": INK}},
        ],
    }  # fmt: skip
    return {"data": traces, "layout": layout}


_TIMELINE_NOTE = "bytes the allocator has handed out, after each allocation and release"
_BOXES = 5_000  # of an address map, the largest
_POINTS = 600  # of a timeline; as many as there are pixels to tell them apart


def _fewer_columns(table: pd.DataFrame) -> pd.DataFrame:
    """As many columns as there are styles: the largest, in their order, and the others as one."""
    if len(table.columns) > len(STYLES):
        largest = table.max().nlargest(len(STYLES) - 1).index
        others = table.drop(columns=largest).sum(axis=1)
        table = table[[name for name in table if name in largest]].assign(**{"other layers": others})
    for spare in range(len(STYLES) - len(table.columns)):
        table[" " * (spare + 1)] = 0
    return table


def _thinned(table: pd.DataFrame) -> pd.DataFrame:
    """The rows that differ visibly from the one before; of many, each stretch's highest and lowest."""
    whole = table.sum(axis=1)
    kept = table.diff().abs().max(axis=1) >= whole.max() / 2000
    kept.iloc[[0, -1]] = kept[whole.idxmax()] = True
    table, total = table[kept], whole[kept].to_numpy()
    stretch = -(-len(table) // (_POINTS // 2))
    if stretch <= 2:
        return table
    parts = [total[start : start + stretch] for start in range(0, len(table), stretch)]
    found = [i * stretch + int(at) for i, part in enumerate(parts) for at in (part.argmax(), part.argmin())]
    return table.iloc[sorted({0, len(table) - 1, *found})]


def _shares(table: pd.DataFrame) -> list[float]:
    """How far along each row is, in per cent."""
    return [round(100 * number / max(1, len(table) - 1), 3) for number in range(len(table))]


def _what_happens(profile: MemoryProfile, points: pd.DataFrame, units: UnitSystem) -> list[str]:
    """Per point: what is in use, and the block that is allocated or released there."""
    starts = {a.start: a for a in profile.allocations}
    ends = {a.end: a for a in profile.allocations if a.end is not None}
    texts = []
    for position, size in zip(points.index, points.sum(axis=1), strict=True):
        block = starts.get(position) if position else None
        verb, block = ("+", block) if block else ("-", ends.get(position))
        what = f"<br>{verb} {_escaped(block.layer)}: {block_text(block)}<br>{_lifetime(block)}" if block else ""
        texts.append(f"{format_bytes(size, units)}{what}")
    return texts


def _lifetime(block: Allocation) -> str:
    """``alive from 12 to 40 (1.25 ms)``, in positions."""
    known = block.start_seconds is not None and block.end_seconds is not None
    took = f" ({(block.end_seconds - block.start_seconds) * 1e3:.2f} ms)" if known else ""  # type: ignore[operator]
    return f"alive from {block.start:,} to {'the end' if block.end is None else f'{block.end:,}'}{took}"


def _parts_of_step(profile: MemoryProfile, points: pd.DataFrame) -> list[tuple[str, float, float]]:
    """Forward, backward, update and where they lie in per cent, told by the first and last large gradient."""
    gradients = (Category.GRADIENT, Category.ACTIVATION_GRADIENT)
    visible = profile.peak_bytes / 2000
    starts = [a.start for a in profile.allocations if a.category in gradients and a.start and a.nbytes >= visible]
    if not starts:
        return []
    ends = [0, *(100 * points.index.searchsorted(at) / len(points) for at in (min(starts), max(starts) + 1)), 100]
    spans = zip(("forward", "backward", "update"), itertools.pairwise(ends), strict=True)
    return [(name, start, end) for name, (start, end) in spans]


@_checked
def address_map(profile: MemoryProfile, *, units: UnitSystem = "binary") -> Chart:
    """Where each block lies over the phase: addresses upwards, positions to the right, a rectangle per block.

    What the allocator charged beyond a request is drawn in the colour of the slack; what no block covers is free.
    Blocks too small to be seen are left out, and counted below the title. Needs a profile with addresses.
    """
    placed = [(a, a.address) for a in checked_profile(profile).allocations if a.address is not None]
    if not placed:
        raise ValueError("This profile has no addresses; record a trial (record=True), or estimate it anew.")
    place, height = _without_gaps([(address, address + a.nbytes) for a, address in placed])
    last = max(max(a.start, a.end or 0) for a, _ in placed) + 1
    seen = [(a, place(address)) for a, address in placed if a.nbytes > height / 1500]
    shown = sorted(seen, key=lambda held: -held[0].nbytes)[:_BOXES]
    boxes: dict[Category, list[tuple[int, int, int, int]]] = {category: [] for category in Category}
    for a, low in shown:
        end = last if a.end is None else a.end
        boxes[a.category].append((a.start, end, low, low + a.requested_nbytes))
        if a.nbytes - a.requested_nbytes > height / 1500:
            boxes[Category.ALLOCATOR_SLACK].append((a.start, end, low + a.requested_nbytes, low + a.nbytes))
    traces = [_boxes(category, held) for category, held in boxes.items()]
    traces.append(
        {"type": "scatter", "mode": "markers", "marker": {"opacity": 0}, "showlegend": False,
         "x": [(a.start + (last if a.end is None else a.end)) / 2 for a, _ in shown[:_POINTS]],
         "y": [low + a.nbytes / 2 for a, low in shown[:_POINTS]],
         "hovertext": [f"<b>{_escaped(a.layer)}</b>: {category_text(a.category)}<br>{format_bytes(a.nbytes, units)}: "
                       f"{block_text(a)}<br>{_lifetime(a)}" for a, _ in shown[:_POINTS]],
         "hovertemplate": "%{hovertext}<extra></extra>"}
    )  # fmt: skip
    least = format_bytes(shown[-1][0].nbytes if shown else height, units)
    note = f"{len(shown):,} blocks; {len(placed) - len(shown):,} smaller than {least} are not drawn"
    layout = _frame(TRIAL_HEIGHT + 160) | _title(f"Addresses over the {category_text(profile.phase)}", note) | {
        "margin": {"l": 78, "r": 24, "t": 74, "b": 100}, "hovermode": "closest",
        "xaxis": {"range": [0, last], "showgrid": False,
                  "title": {"text": "allocations and releases", "font": {"size": 12}}},
        "yaxis": _linear_axis(height, 1.02, units),
    }  # fmt: skip
    return {"data": traces, "layout": layout}


def _boxes(category: Category, boxes: Sequence[tuple[int, int, int, int]]) -> dict[str, Any]:
    """All rectangles of a category as one filled path: a trace per block would be slow."""
    import numpy as np

    gap = math.nan
    return {
        "type": "scatter", "mode": "lines", "fill": "toself", "fillcolor": STYLES[category][0], "hoverinfo": "skip",
        "line": {"width": 0.5, "color": "white"}, "name": category_text(category), "visible": bool(boxes),
        "x": np.array([(x0, x1, x1, x0, gap) for x0, x1, _, _ in boxes], np.float32).ravel(),
        "y": np.array([(y0, y0, y1, y1, gap) for _, _, y0, y1 in boxes], np.float32).ravel(),
    }  # fmt: skip


def _without_gaps(spans: list[tuple[int, int]]) -> tuple[Callable[[int], int], int]:
    """From addresses to positions upwards, and their height: what lies between regions is left out, told by gaps that
    are larger than all that is used.
    """
    merged: list[list[int]] = []
    for low, high in sorted(spans):
        if not merged or low > merged[-1][1]:
            merged.append([low, high])
        merged[-1][1] = max(merged[-1][1], high)
    used = sum(high - low for low, high in merged)
    lows = [low for low, _ in merged]
    shifts = [lows[0]]
    for (_, before), (low, _) in itertools.pairwise(merged):
        shifts.append(shifts[-1] + (low - before - used // 50 if low - before > used else 0))
    return lambda address: address - shifts[bisect_right(lows, address) - 1], merged[-1][1] - shifts[-1]


@_checked
def trial_figure(
    events: Sequence[TrialEvent] = (), *, estimated: Mapping[str, int] | None = None, budget_bytes: int | None = None,
    units: UnitSystem = "binary", title: str = "", ended: str = "",
) -> Chart:  # fmt: skip
    """Memory over a trial's seconds beside the estimate and the budget, and the loss of its steps below.

    events: what the trial has told so far; seconds count from the start of the build. estimated: peak bytes per phase.
    ended: how it ended, written at its last sample. Without events: the levels that the trial will be held against.
    """
    estimated = estimated or {}
    told = [e for e in events if e.phase != "import"]
    zero = told[0].seconds if told else 0.0
    samples = [e for e in told if e.kind in ("sample", "step")]
    at = [e.seconds - zero for e in samples]
    steps = [e for e in told if e.step is not None]
    spans = _phase_spans(told, zero) if told else [(phase, i, i + 1) for i, phase in enumerate(estimated)]
    known = [(estimated[phase], start, end) for phase, start, end in spans if phase in estimated]
    level_at = [x for _, start, end in known for x in (start, end, None)][:-1]  # a gap between phases
    levels = [y for level, _, _ in known for y in (level, level, None)][:-1]
    last = spans[-1][2] if spans else 1
    highest = _highest([*(e.peak_bytes for e in samples), *estimated.values()], budget_bytes)
    traces = [
        _line("in use", at, [e.bytes_in_use for e in samples], units, IN_USE)
        | {"fill": "tozeroy", "fillcolor": "rgba(0,114,178,0.18)"},
        _line("peak of the phase", at, [e.peak_bytes for e in samples], units, INK, width=1.5, dash="dot"),
        _line("estimated peak", level_at, levels, units, ESTIMATE, width=3, dash="dash") | {"showlegend": bool(levels)},
        _line("budget", [0, last], [budget_bytes] * 2, units, BUDGET, width=2.5)
        | {"showlegend": budget_bytes is not None},
        {"type": "scatter", "mode": "lines+markers", "name": "loss", "x": [e.seconds - zero for e in steps],
         "y": [e.step.loss for e in steps if e.step], "xaxis": "x2", "yaxis": "y2", "line": {"color": "#6f42c1"},
         "hovertemplate": "%{y:.4g} (mean so far)"},
    ]  # fmt: skip
    title = _escaped(title or "Estimate, and the measured trial")
    layout = _trial_layout(highest, last, units, bool(told)) | _title(title)
    layout["shapes"] = [_phase_band(number, *span, last) for number, span in enumerate(spans)]
    layout["annotations"] = [
        _level_label("budget", budget_bytes, highest, BUDGET, "left", units),
        _level_label("estimate", levels[-1] if levels else None, highest, ESTIMATE, "right", units),
        {"x": at[-1] if at else 0, "y": samples[-1].bytes_in_use if samples else 0, "text": f"<b>{ended}</b>",
         "visible": bool(ended and samples), "font": {"color": BUDGET}, "xanchor": "right", "showarrow": True,
         "arrowhead": 2, "ax": -24, "ay": 30, "bgcolor": "white", "bordercolor": BUDGET, "borderpad": 3},
        {"text": "loss: Keras' mean of the steps so far, as fit prints it",
         "xref": "paper", "yref": "y2 domain", "x": 0, "y": 1, "yanchor": "bottom"},
        {"text": f"The trial ended before anything was measured: {ended}." if ended else
                 "TensorFlow is starting in the child process." if events else
                 "Run trial draws memory and loss of real training steps here, as they happen.",
         "xref": "paper", "yref": "paper", "x": 0.5, "y": 0.52, "visible": not told, "font": {"size": 14},
         "bgcolor": "white"},
    ]  # fmt: skip
    return {"data": traces, "layout": layout}


@_checked
def waterfall_figure(waterfall: Waterfall, *, units: UnitSystem = "binary") -> Chart:
    """From live bytes to what the card holds, a bar each: different quantities, which are never added here.

    waterfall: `Trial.waterfall`. What does not exist on the device, or is told by nobody, is named below the title.
    """
    known = [(*_STAGES[name], size) for name in _STAGES if (size := getattr(waterfall, name)) is not None]
    names, colors, sizes = zip(*known, strict=True) if known else ((), (), ())
    unknown = ", ".join(_STAGES[f"{name}_bytes"][0] for name in waterfall.unknown)
    bars = {
        "type": "bar", "orientation": "h", "x": sizes, "y": names, "marker": {"color": colors},
        "text": [f" {format_bytes(size, units)}" for size in sizes], "textposition": "outside", "cliponaxis": False,
        "hoverinfo": "skip",
    }  # fmt: skip
    layout = _frame(TRIAL_HEIGHT) | _title(
        "From live bytes to the card", f"Not told here: {unknown}" if unknown else ""
    )
    layout |= {
        "margin": {"l": 180, "r": 24, "t": 74, "b": 50},
        "xaxis": _linear_axis(max(sizes, default=0) or 1, 1.2, units),
        "yaxis": {"autorange": "reversed", "showgrid": False, "ticklabelstandoff": 6},
    }
    return {"data": [bars], "layout": layout}


def _phase_spans(events: Sequence[TrialEvent], zero: float) -> list[tuple[str, float, float]]:
    """(phase, from, to) in seconds after ``zero``, in order."""
    firsts = [next(group) for _, group in itertools.groupby(events, key=lambda event: event.phase)]
    ends = [*(first.seconds for first in firsts[1:]), max(events[-1].seconds, zero + 0.1)]
    return [(first.phase, first.seconds - zero, end - zero) for first, end in zip(firsts, ends, strict=True)]


def _highest(levels: list[int], budget_bytes: int | None) -> int:
    """The top of the axis: the budget too, unless it is so far above that everything else would be flat."""
    top = max(levels, default=0)
    return max(top, budget_bytes) if budget_bytes is not None and (budget_bytes < 3 * top or not top) else top or 1


def _line(name: str, x: list, y: list, units: UnitSystem, color: str, *, width: float = 2, dash: str = "solid") -> dict:
    """Bytes over seconds."""
    return {
        "type": "scatter", "mode": "lines", "name": name, "x": x, "y": y,
        "line": {"color": color, "width": width, "dash": dash},
        "hovertext": [format_bytes(size or 0, units) for size in y], "hovertemplate": "%{hovertext}",
    }  # fmt: skip


def _trial_layout(highest: int, last: float, units: UnitSystem, running: bool) -> dict[str, Any]:
    """Two panels over one time axis: memory above, loss below."""
    time = {"range": [0, last], "showgrid": False, "ticksuffix": " s", "hoverformat": ".1f"}
    return _frame(TRIAL_HEIGHT) | {
        "margin": {"l": 78, "r": 24, "t": 60, "b": 64},
        "hovermode": "x unified" if running else False,
        "xaxis": time | {"anchor": "y", "matches": "x2", "showticklabels": False},
        "yaxis": _linear_axis(highest, 1.2, units, ticks=4) | {"anchor": "x", "domain": [0.335, 1]},
        "xaxis2": time | {"anchor": "y2", "ticklabelstandoff": 5, "showticklabels": running},
        "yaxis2": {"anchor": "x2", "domain": [0, 0.235], "rangemode": "tozero", "nticks": 3, "showticklabels": running},
    }


def _phase_band(number: int, phase: str, start: float, end: float, last: float) -> dict[str, Any]:
    """A band behind both panels with the phase's name above it; one too narrow for its name goes without."""
    name = category_text(phase) if end - start > 0.09 * last else ""
    return {
        "type": "rect", "xref": "x", "yref": "paper", "x0": start, "x1": end, "y0": 0, "y1": 1, "layer": "below",
        "line": {"width": 0}, "fillcolor": "#f6f7f9" if number % 2 else "#eceff2",
        "label": {"text": name, "textposition": "top center", "yanchor": "bottom", "padding": 0,
                  "font": {"size": 12, "color": QUIET}},
    }  # fmt: skip


def _level_label(name: str, level: int | None, highest: int, color: str, side: str, units: UnitSystem) -> dict:
    """A level's name and size on its line; at the top, with an arrow, where it lies above the axis."""
    above = level is not None and level > highest
    return {
        "xref": "x domain", "yref": "y domain" if above else "y", "x": 0.005 if side == "left" else 0.995,
        "xanchor": side, "y": 1 if above else level or 0, "yanchor": "top" if above else "bottom",
        "font": {"color": color}, "bgcolor": "rgba(255,255,255,0.75)", "visible": level is not None,
        "text": f"{name} {format_bytes(level or 0, units)}" + (" \N{UPWARDS ARROW} above this axis" if above else ""),
    }  # fmt: skip


def _escaped(text: str) -> str:
    """Somebody's text, such as a layer's name, for plotly, which reads a kind of HTML."""
    return html.escape(text, quote=False)


def _frame(height: int) -> dict[str, Any]:
    """What every layout begins with. The size is always given: resizing by itself is broken (plotly#5208)."""
    return {"template": LOOK, "width": WIDTH, "height": height}


def _title(text: str, note: str = "") -> dict[str, Any]:
    """A title, and a quiet sentence below it; plotly's own subtitle moves into the title on an update."""
    note = f"<br><span style='font-size:12px;color:{QUIET}'>{note}</span>" if note else ""
    return {"title": {"text": f"<b>{text}</b>{note}"}}


def _linear_axis(highest: int, room: float, units: UnitSystem, ticks: int = 6) -> dict[str, Any]:
    """An axis from 0 with round steps of one unit; plotly's own ticks know neither GiB nor GB."""
    factor, label = unit_for(highest, units)
    end = highest * room / factor
    power = 10.0 ** math.floor(math.log10(end / ticks))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= 0.999 * end / ticks)
    steps = [i * step for i in range(int(end / step) + 1)]
    texts = [f"{s:,g} {label}" if s else "0" for s in steps]
    return {"type": "linear", "range": [0, end * factor], "tickvals": [s * factor for s in steps], "ticktext": texts}


def _share_axis(longest: int, peak: int, room: float) -> dict[str, Any]:
    """An axis from 0 in bytes whose ticks are per cent of a peak."""
    end = longest * room
    step = next(s for s in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 25, 50) if 100 * end / max(peak, 1) / s <= 7)
    ticks = [number * step for number in range(int(100 * end / max(peak, 1) / step) + 1)]
    values = [tick / 100 * peak for tick in ticks]
    return {"type": "linear", "range": [0, end], "tickvals": values, "ticktext": [f"{tick:g} %" for tick in ticks]}


def _log_axis(sizes: list[int], units: UnitSystem) -> dict[str, Any]:
    """A log axis with ticks at whole units: 1 B, 1 KiB, 1 MiB, ..."""
    values = [(KIB if units == "binary" else 1000) ** power for power in range(6)]
    ends = [math.log10(min(sizes, default=1)) - 0.4, math.log10(max(sizes, default=1000)) + 0.5]
    return {"type": "log", "range": ends, "tickvals": values, "ticktext": [format_bytes(v, units, 0) for v in values]}
