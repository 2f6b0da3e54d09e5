"""The figures: functions from profiles and trial events to a `plotly.graph_objects.Figure`, never displayed here.

The only file that builds plotly figures. Every function returns the same set of traces for every input, so that a
`FigureWidget` made from one result can be updated in place from the next. Positions along a memory axis are bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from memviz.profile import Allocation, Category, MemoryProfile
from memviz.units import KIB, UnitSystem, dtype_bytes, format_bytes, unit_for
from memviz.views.text import PHASE_TEXT, category_text, percent_text

if TYPE_CHECKING:
    from memviz.measurement.trial import TrialEvent

# Okabe and Ito's palette, told apart by colour-blind readers too, and a pattern each for print and projectors.
STYLES: dict[Category, tuple[str, str, str]] = {  # colour, bar pattern, marker symbol
    Category.PARAMETER: ("#0072B2", "", "circle"),
    Category.BUFFER: ("#56B4E9", ".", "circle-open"),
    Category.GRADIENT: ("#D55E00", "/", "triangle-up"),
    Category.OPTIMIZER_STATE: ("#009E73", "\\", "square"),
    Category.INPUT: ("#222222", "+", "star"),
    Category.ACTIVATION: ("#E69F00", "-", "diamond"),
    Category.ACTIVATION_GRADIENT: ("#F0E442", "|", "triangle-down"),
    Category.TEMPORARY: ("#CC79A7", "x", "x"),
    Category.ALLOCATOR_SLACK: ("#999999", "", "cross"),
}
INK, GRID, BUDGET, ESTIMATE, IN_USE, LOSS = "#1f2328", "#e6e8eb", "#B22222", "#D55E00", "#0072B2", "#6f42c1"
IN_USE_FILL = "rgba(0,114,178,0.18)"
FONT = {"family": "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif", "size": 13, "color": INK}
WIDTH, ROW_HEIGHT, TRIAL_HEIGHT = 700, 29, 340
NO_BUTTONS = ["zoom", "pan", "select", "lasso", "zoomIn", "zoomOut", "autoScale", "resetScale"]


def layer_figure(
    profile: MemoryProfile | None, *, log: bool = False, units: UnitSystem = "binary", width: int = WIDTH
) -> go.Figure:
    """Bytes at the peak per layer, by category: stacked bars, or on a log axis one mark per category.

    The bars' numbers are those of `MemoryProfile.by_layer`, in bytes. A log axis has no zero, so neither a bar's
    length nor a stack means anything on it: there, marks at the bytes themselves. None: the empty figure.
    """
    table: dict[str, dict[str, int]] = {} if profile is None else profile.by_layer().T.to_dict()  # type: ignore[assignment]
    layers = list(table)
    hover = {} if profile is None else _hover_texts(profile, units)
    present = [c for c in Category if any(row[c] for row in table.values())]
    totals = [sum(row.values()) for row in table.values()]
    traces: list[dict[str, Any]] = []
    for category in Category:
        shown = category in present
        common = {
            "name": category_text(category), "legendgroup": str(category),
            "hovertext": [hover.get((layer, category), "") for layer in layers],
            "hovertemplate": "%{hovertext}<extra></extra>",
        }  # fmt: skip
        sizes = [table[layer][category] for layer in layers]
        lane = (present.index(category) + 0.5) / len(present) - 0.5 if shown else 0.0
        traces.append(common | _bar(category, sizes, max(totals, default=0), units, show=shown and not log))
        traces.append(common | _marks(category, sizes, lane, show=shown and log))
    traces.append(_total_labels(totals, units, show=not log))
    cells = [size for row in table.values() for size in row.values() if size]
    axis = _log_axis(cells, units) if log else _linear_axis(max(totals, default=0) or 1, 1.27, units)
    return go.Figure({"data": traces, "layout": _layer_layout(profile, layers, axis, log, units, width)})


def _bar(category: Category, sizes: list[int], longest: int, units: UnitSystem, show: bool) -> dict[str, Any]:
    color, pattern, _ = STYLES[category]
    return {
        "type": "bar", "orientation": "h", "x": sizes, "y": list(range(len(sizes))), "width": 0.74,
        "visible": show, "showlegend": show,
        "text": [format_bytes(size, units) if size > 0.11 * longest else "" for size in sizes],
        "textposition": "inside", "insidetextanchor": "middle", "textangle": 0, "textfont": {"size": 12},
        "marker": {
            "color": color, "line": {"color": "white", "width": 1},
            "pattern": {"shape": pattern, "fillmode": "overlay", "fgcolor": "white", "fgopacity": 0.45, "size": 7,
                        "solidity": 0.22},
        },
    }  # fmt: skip


def _marks(category: Category, sizes: list[int], lane: float, show: bool) -> dict[str, Any]:
    color, _, symbol = STYLES[category]
    return {
        "type": "scatter", "mode": "markers", "x": [size or None for size in sizes],
        "y": [row + 0.7 * lane for row in range(len(sizes))], "visible": show, "showlegend": show,
        "marker": {"color": color, "symbol": symbol, "size": 9, "line": {"color": INK, "width": 0.6}},
    }  # fmt: skip


def _total_labels(totals: list[int], units: UnitSystem, show: bool) -> dict[str, Any]:
    whole = sum(totals) or 1
    texts = [f" {format_bytes(t, units)}" + (f"  ({percent_text(t / whole)})" if t else "") for t in totals]
    return {
        "type": "scatter", "name": "total", "mode": "text", "x": totals, "y": list(range(len(totals))), "text": texts,
        "textposition": "middle right", "textfont": {"size": 12, "color": INK}, "cliponaxis": False,
        "hoverinfo": "skip", "visible": show, "showlegend": False,
    }  # fmt: skip


def _layer_layout(
    profile: MemoryProfile | None, layers: list[str], axis: dict[str, Any], log: bool, units: UnitSystem, width: int
) -> dict[str, Any]:
    labels = [_shortened(layer) for layer in layers]
    height = 132 + ROW_HEIGHT * max(len(layers), 5)
    left = 24 + 7 * max([len(label) for label in labels] + [6])
    return _frame(width, height, -34 / (height - 134)) | {
        "title": _title(_layer_title(profile, units)),
        "barmode": "stack",
        "margin": {"l": left, "r": 12, "t": 58, "b": 76},
        "xaxis": axis | {"visible": profile is not None},
        "yaxis": {
            "range": [len(layers) - 0.4, -0.6], "tickvals": list(range(len(layers))), "ticktext": labels,
            "showgrid": log, "gridcolor": GRID, "zeroline": False, "fixedrange": True, "visible": profile is not None,
        },
        "annotations": [
            _below_title(_LOG_NOTE if log else _LINEAR_NOTE, left),
            _centre_note("The estimate of each layer's memory appears here.", show=profile is None),
        ],
    }  # fmt: skip


_LINEAR_NOTE = "a bar's length is the bytes a layer holds at the peak, stacked by what they are held for"
_LOG_NOTE = "log scale: one mark per category at its bytes; marks do not stack, and zero is not shown"


def _layer_title(profile: MemoryProfile | None, units: UnitSystem) -> str:
    if profile is None:
        return "Memory at the peak, by layer"
    phase = PHASE_TEXT[profile.phase].capitalize()
    return f"{phase}: {format_bytes(profile.peak_bytes, units)} at the peak, by layer ({profile.source})"


def _hover_texts(profile: MemoryProfile, units: UnitSystem) -> dict[tuple[str, str], str]:
    """Text per (layer, category): bytes, and the largest blocks as shape times element size."""
    blocks: dict[tuple[str, str], list[Allocation]] = {}
    for a in profile.at_peak():  # largest first
        blocks.setdefault((a.layer, a.category), []).append(a)
        if a.nbytes > a.requested_nbytes:
            blocks.setdefault((a.layer, Category.ALLOCATOR_SLACK), [])
    by_layer = profile.by_layer().stack().to_dict()
    texts = {}
    for (layer, category), held in blocks.items():
        size = by_layer[layer, category]
        head = f"<b>{layer}</b>: {category_text(category)}<br>{format_bytes(size, units)} ({size:,} B)"
        more = [f"and {len(held) - 3} more"] if len(held) > 3 else []
        texts[layer, category] = "<br>".join([head, *(block_text(a) for a in held[:3]), *more])
    return texts


def block_text(block: Allocation) -> str:
    """How a block's bytes come about: ``6,019,376 x 128 x 4 B (float32, Adam/Mul)``."""
    about = ", ".join(part for part in (block.dtype, block.op) if part)
    about = f" ({about})" if about else ""
    try:
        item = dtype_bytes(block.dtype)
    except ValueError:
        item = 0
    if block.shape is None or item == 0 or math.prod(block.shape) * item != block.requested_nbytes:
        return f"{block.requested_nbytes:,} B{about}"
    return " x ".join([*(f"{n:,}" for n in block.shape), f"{item} B"]) + about


def trial_figure(
    events: Sequence[TrialEvent] = (), *, estimated: Mapping[str, int] | None = None, budget_bytes: int | None = None,
    units: UnitSystem = "binary", title: str = "", ended: str = "", width: int = WIDTH,
) -> go.Figure:  # fmt: skip
    """Memory over a trial's seconds beside the estimate and the budget, and the loss of its steps below.

    events: what the trial has told so far; seconds count from the start of the build. estimated: peak bytes per phase.
    ended: how it ended, written at its last sample. Without events: the levels that the trial will be held against.
    """
    estimated = estimated or {}
    told = [e for e in events if e.phase != "import"]
    zero = told[0].seconds if told else 0.0
    samples = [(e.seconds - zero, e.bytes_in_use, e.peak_bytes) for e in told if e.kind in ("sample", "step")]
    losses = [(e.seconds - zero, e.step.loss) for e in told if e.step is not None]
    spans = _phase_spans(told, zero) if told else _phases_to_come(estimated)
    levels = _levels(spans, estimated)
    last = spans[-1][2] if spans else 1.0
    at, in_use, peak = (list(column) for column in zip(*samples, strict=True)) if samples else ([], [], [])
    highest = _highest([*peak, *estimated.values()], budget_bytes)
    traces = [
        _line("in use", at, in_use, IN_USE) | {"fill": "tozeroy", "fillcolor": IN_USE_FILL},
        _line("peak of the phase", at, peak, INK, width=1.5, dash="dot"),
        _line("estimated peak", [x for x, _ in levels], [y for _, y in levels], ESTIMATE, width=3, dash="dash"),
        _line("budget", [0, last], [budget_bytes] * 2, BUDGET, width=2.5),
        _line("loss", [x for x, _ in losses], [y for _, y in losses], LOSS) | _IN_LOSS_PANEL,
    ]
    layout = _trial_layout(title, highest, last, units, width, bool(told)) | {
        "shapes": _phase_bands(spans),
        "annotations": [
            *_phase_names(spans, last),
            _level_label("budget", budget_bytes, highest, BUDGET, "left", units),
            _level_label("estimate", levels[-1][1] if levels else None, highest, ESTIMATE, "right", units),
            _ending(samples, ended),
            _centre_note(_STARTING if events else _TO_COME, show=not told) | {"y": 0.52, "bgcolor": "white"},
        ],
    }
    return go.Figure({"data": traces, "layout": layout})


_IN_LOSS_PANEL = {"mode": "lines+markers", "xaxis": "x2", "yaxis": "y2"}
_STARTING = "TensorFlow is starting in the child process."
_TO_COME = "Run trial draws memory and loss of real training steps here, as they happen."


def _phase_spans(events: Sequence[TrialEvent], zero: float) -> list[tuple[str, float, float]]:
    """(phase, from, to) in seconds after ``zero``, in order."""
    starts: list[tuple[str, float]] = []
    for event in events:
        if not starts or starts[-1][0] != event.phase:
            starts.append((event.phase, event.seconds - zero))
    ends = [start for _, start in starts[1:]] + [max(events[-1].seconds - zero, 0.1)]
    return [(phase, start, end) for (phase, start), end in zip(starts, ends, strict=True)]


def _phases_to_come(estimated: Mapping[str, int]) -> list[tuple[str, float, float]]:
    return [(phase, i / len(estimated), (i + 1) / len(estimated)) for i, phase in enumerate(estimated)]


def _levels(
    spans: Iterable[tuple[str, float, float]], estimated: Mapping[str, int]
) -> list[tuple[float | None, int | None]]:
    """The estimate's level over each phase's span, as one line with a gap (None) between phases."""
    points: list[tuple[float | None, int | None]] = []
    for phase, start, end in spans:
        if phase in estimated:
            points += [(None, None)] if points else []
            points += [(start, estimated[phase]), (end, estimated[phase])]
    return points


def _highest(levels: list[int], budget_bytes: int | None) -> int:
    """The top of the axis: the budget too, unless it is so far above that everything else would be flat."""
    top = max(levels, default=0)
    return max(top, budget_bytes) if budget_bytes is not None and (budget_bytes < 3 * top or not top) else top or 1


def _line(name: str, x: list, y: list, color: str, *, width: float = 2, dash: str = "solid") -> dict[str, Any]:
    line = {"color": color, "width": width, "dash": dash}
    return {"type": "scatter", "mode": "lines", "name": name, "x": x, "y": y, "line": line}


def _trial_layout(
    title: str, highest: int, last: float, units: UnitSystem, width: int, running: bool
) -> dict[str, Any]:
    """Two panels over one time axis: memory above, loss below."""
    time = {"range": [0, last], "showgrid": False, "zeroline": False, "fixedrange": True}
    return _frame(width, TRIAL_HEIGHT, -0.17) | {
        "title": _title(title or "Estimate, and the measured trial"),
        "margin": {"l": 78, "r": 24, "t": 60, "b": 64},
        "hovermode": "x unified" if running else False,
        "xaxis": time | {"anchor": "y", "matches": "x2", "showticklabels": False},
        "yaxis": _linear_axis(highest, 1.2, units, ticks=4) | {"anchor": "x", "domain": [0.335, 1]},
        "xaxis2": time | {"anchor": "y2", "ticksuffix": " s", "ticklabelstandoff": 5, "showticklabels": running},
        "yaxis2": {
            "anchor": "x2", "domain": [0, 0.235], "title": {"text": "loss", "font": {"size": 12}}, "gridcolor": GRID,
            "rangemode": "tozero", "nticks": 3, "fixedrange": True, "zeroline": False, "showticklabels": running,
        },
    }  # fmt: skip


def _phase_bands(spans: list[tuple[str, float, float]]) -> list[dict[str, Any]]:
    return [
        {"type": "rect", "xref": "x", "yref": "paper", "x0": start, "x1": end, "y0": 0, "y1": 1, "layer": "below",
         "line": {"width": 0}, "fillcolor": "#f6f7f9" if i % 2 else "#eceff2"}
        for i, (_, start, end) in enumerate(spans)
    ]  # fmt: skip


def _phase_names(spans: list[tuple[str, float, float]], last: float) -> list[dict[str, Any]]:
    """Names above the bands; one too narrow for its name goes without."""
    return [
        {"xref": "x", "yref": "paper", "x": (start + end) / 2, "y": 1, "yanchor": "bottom", "showarrow": False,
         "text": PHASE_TEXT.get(phase, phase), "font": {"size": 12, "color": "#57606a"}}
        for phase, start, end in spans
        if end - start > 0.09 * last
    ]  # fmt: skip


def _level_label(
    name: str, level: int | None, highest: int, color: str, side: str, units: UnitSystem
) -> dict[str, Any]:
    """A level's name and size on its line; at the top, with an arrow, where it lies above the axis."""
    above = level is not None and level > highest
    return {
        "xref": "x domain", "yref": "y domain" if above else "y", "x": 0.005 if side == "left" else 0.995,
        "xanchor": side, "y": 1 if above else level or 0, "yanchor": "top" if above else "bottom", "showarrow": False,
        "font": {"size": 12, "color": color}, "bgcolor": "rgba(255,255,255,0.75)", "visible": level is not None,
        "text": f"{name} {format_bytes(level or 0, units)}" + (" \N{UPWARDS ARROW} above this axis" if above else ""),
    }  # fmt: skip


def _ending(samples: Sequence[tuple[float, int, int]], text: str) -> dict[str, Any]:
    x, y = samples[-1][:2] if samples else (0.0, 0)
    return {
        "xref": "x", "yref": "y", "x": x, "y": y, "text": f"<b>{text}</b>", "visible": bool(text and samples),
        "showarrow": True, "arrowhead": 2, "ax": -24, "ay": 30, "xanchor": "right", "bgcolor": "white",
        "bordercolor": BUDGET, "borderpad": 3, "font": {"size": 12, "color": BUDGET},
    }  # fmt: skip


def _frame(width: int, height: int, legend_y: float) -> dict[str, Any]:
    """What every figure shares. Width and height are always given: resizing by itself is broken (plotly#5208)."""
    return {
        "width": width, "height": height, "font": FONT, "template": "none", "paper_bgcolor": "white",
        "plot_bgcolor": "white", "dragmode": False,
        "hoverlabel": {"bgcolor": "white", "font": {"color": INK}, "align": "left"}, "modebar": {"remove": NO_BUTTONS},
        "legend": {"orientation": "h", "x": 0, "xanchor": "left", "y": legend_y, "yanchor": "top", "font": {"size": 12},
                   "traceorder": "normal", "itemclick": False, "itemdoubleclick": False},
    }  # fmt: skip


def _title(text: str) -> dict[str, Any]:
    return {
        "text": f"<b>{text}</b>", "x": 0, "xref": "container", "xanchor": "left", "y": 1, "yref": "container",
        "yanchor": "top", "pad": {"l": 12, "t": 10}, "font": {"size": 15},
    }  # fmt: skip


def _below_title(text: str, left_margin: int) -> dict[str, Any]:
    """A sentence below the title; plotly's own subtitle moves into the title on an update."""
    return {
        "text": text, "xref": "paper", "yref": "paper", "x": 0, "y": 1, "xanchor": "left", "yanchor": "bottom",
        "xshift": 12 - left_margin, "yshift": 4, "showarrow": False, "font": {"size": 12, "color": "#57606a"},
    }  # fmt: skip


def _centre_note(text: str, *, show: bool) -> dict[str, Any]:
    return {"text": text, "xref": "paper", "yref": "paper", "x": 0.5, "y": 0.5, "showarrow": False, "visible": show,
            "font": {"size": 14, "color": "#57606a"}}  # fmt: skip


def _linear_axis(highest: int, room: float, units: UnitSystem, ticks: int = 6) -> dict[str, Any]:
    """An axis from 0 with round steps of one unit; plotly's own ticks know neither GiB nor GB."""
    factor, label = unit_for(highest, units)
    raw = highest * room / factor / ticks
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
    steps = [i * step for i in range(int(highest * room / factor / step) + 1)]
    return {
        "type": "linear", "range": [0, highest * room], "tickvals": [round(s * factor) for s in steps],
        "ticktext": [f"{s:,g} {label}" if s else "0" for s in steps], "gridcolor": GRID, "zeroline": False,
        "fixedrange": True,
    }  # fmt: skip


def _log_axis(sizes: list[int], units: UnitSystem) -> dict[str, Any]:
    """A log axis with ticks at whole units: 1 B, 1 KiB, 1 MiB, ..."""
    base = KIB if units == "binary" else 1000
    low, high = min(sizes, default=1), max(sizes, default=base)
    values = [base**power for power in range(6)]
    return {
        "type": "log", "range": [math.log10(low) - 0.4, math.log10(high) + 0.5], "tickvals": values, "zeroline": False,
        "ticktext": [format_bytes(v, units, 0) for v in values], "gridcolor": GRID, "fixedrange": True,
    }  # fmt: skip


def _shortened(name: str, longest: int = 30) -> str:
    """A long name with its middle left out; the hover has it whole."""
    return name if len(name) <= longest else f"{name[: longest // 2 - 1]}…{name[-(longest // 2) :]}"
