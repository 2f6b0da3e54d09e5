"""The tables: the numbers of the figures as plain data, and that data as HTML.

Data first: a DataFrame of integers (bytes, counts) that tests and lessons read; text only in `table_html`.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from memviz.profile import PHASES, Category, MemoryProfile, Phase
from memviz.units import UnitSystem, format_bytes
from memviz.views.text import PHASE_TEXT, category_text, error_text, percent_text

if TYPE_CHECKING:
    from memviz.models.convnet import ConvNet

CATEGORIES = [str(category) for category in Category]


def layer_table(profile: MemoryProfile, network: ConvNet | None = None) -> pd.DataFrame:
    """`MemoryProfile.by_layer` with what each layer is: a row per layer and per thing beside the layers.

    Columns: ``output_shape`` (of one example), ``parameters`` (trainable values), ``largest_weight``
    (``6,019,376 x 128``), bytes at the peak per category, ``total`` (bytes) and ``share`` of the peak (0 to 1).
    Without a network the first three stay empty.
    """
    by_layer = profile.by_layer()
    plans = {} if network is None else {layer.name: layer for layer in network.plan}
    rows = [plans.get(name) for name in by_layer.index]
    shapes = ["" if p is None else " x ".join(f"{n:,}" for n in p.output_shape) for p in rows]
    table = by_layer.copy()
    table.insert(0, "output_shape", shapes)
    table.insert(1, "parameters", [0 if p is None else p.parameters for p in rows])
    table.insert(2, "largest_weight", ["" if p is None else p.formula for p in rows])
    table["total"] = by_layer.sum(axis=1)
    table["share"] = table["total"] / max(profile.peak_bytes, 1)
    return table


def phase_table(estimated: Mapping[str, Phase], measured: Mapping[str, Phase]) -> pd.DataFrame:
    """Peaks per phase: ``estimated`` and ``measured`` bytes, ``error`` = (estimated - measured) / measured.

    A row per phase that the estimate has; without a measurement of it the last two are missing (NA, NaN).
    """
    phases = [p for p in PHASES if p in estimated]
    table = pd.DataFrame(index=pd.Index(phases, name="phase"))
    table["estimated"] = pd.array([estimated[p].peak_bytes for p in phases], dtype="Int64")
    table["measured"] = pd.array([measured[p].peak_bytes if p in measured else None for p in phases], dtype="Int64")
    gap = (table["estimated"] - table["measured"]).astype("Float64")
    table["error"] = (gap / table["measured"]).astype("float64")
    return table


def layer_table_html(table: pd.DataFrame, units: UnitSystem = "binary") -> str:
    """`layer_table` as HTML with a row of sums; a category that holds nothing is named below instead of a column."""
    shown = [c for c in CATEGORIES if table[c].any()]
    empty = [category_text(c) for c in CATEGORIES if c not in shown]
    head = ["layer", "output shape", "parameters", "largest weight", "total", "share", *map(category_text, shown)]

    def cells(name: object, row: Any, share: str) -> list[str]:
        about = [_text(name), _text(row["output_shape"]), _count(row["parameters"]), _text(row["largest_weight"])]
        return [*about, _size(row["total"], units), _cell(share), *(_size(row[c], units) for c in shown)]

    body = [cells(name, row, percent_text(row["share"])) for name, row in table.iterrows()]
    sums = table[["parameters", *shown, "total"]].sum().to_dict()
    total = cells("all", {"output_shape": "", "largest_weight": "", **sums}, "100 %")
    note = f"Nothing at the peak: {', '.join(empty)}." if empty else ""
    return _table(head, body, total, note, texts=(0, 1, 3))


def phase_table_html(table: pd.DataFrame, units: UnitSystem = "binary") -> str:
    """`phase_table` as HTML."""
    body = [
        [_text(PHASE_TEXT[str(name)]), _size(row["estimated"], units),
         _cell("not measured") if pd.isna(row["measured"]) else _size(row["measured"], units),
         _cell("" if pd.isna(row["error"]) else error_text(row["error"]))]
        for name, row in table.iterrows()
    ]  # fmt: skip
    return _table(["phase", "estimated peak", "measured peak", "error"], body, texts=(0,))


def _table(
    head: list[str], body: list[list[str]], foot: list[str] | None = None, note: str = "", texts: tuple[int, ...] = ()
) -> str:
    heads = "".join(f'<th scope="col"{"" if i in texts else _RIGHT}>{html.escape(h)}</th>' for i, h in enumerate(head))
    rows = "".join(f"<tr>{''.join(row)}</tr>" for row in body)
    last = f"<tfoot><tr>{''.join(foot)}</tr></tfoot>" if foot else ""
    caption = f'<p class="memviz-note">{html.escape(note)}</p>' if note else ""
    return f'<table class="memviz-table"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody>{last}</table>{caption}'


_RIGHT = ' class="memviz-number"'


def _text(text: object) -> str:
    return f"<td>{html.escape(str(text))}</td>"


def _cell(text: str, title: str = "") -> str:
    about = f' title="{html.escape(title)}"' if title else ""
    return f"<td{_RIGHT}{about}>{html.escape(text)}</td>"


def _count(number: int) -> str:
    return _cell(f"{number:,}" if number else "")


def _size(nbytes: int, units: UnitSystem) -> str:
    return _cell(format_bytes(nbytes, units), f"{nbytes:,} B") if nbytes else _cell("\N{EN DASH}", "0 B")
