"""The tables: the numbers of the figures as plain data, and that data as HTML.

Data first: a DataFrame of integers (bytes, counts) that tests and lessons read; text only in the functions for HTML.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from memviz.profile import PHASES, Category, MemoryProfile, Phase, checked_profile
from memviz.units import UnitSystem, format_bytes, shape_text
from memviz.views.text import category_text, error_text, percent_text, range_text

if TYPE_CHECKING:
    from memviz.models.convnet import LayerPlan

CATEGORIES = [str(category) for category in Category]
Columns = dict[str, Callable[[Any], str] | None]  # a column's name to its cells' text; None: sizes


def layer_table(profile: MemoryProfile, layers: Sequence[LayerPlan] = ()) -> pd.DataFrame:
    """`MemoryProfile.by_layer` with what each layer is: a row per layer and per thing beside the layers.

    Columns: ``output_shape`` (of one example), ``parameters`` (trainable values), ``largest_weight``
    (``6,019,376 x 128``), bytes at the peak per category, ``total`` (bytes) and ``share`` of the peak (0 to 1).
    layers: what each is, as `Estimate.layers`; without it the first three stay empty.
    """
    table = checked_profile(profile).by_layer()
    plans = {layer.name: layer for layer in layers}
    rows = [plans.get(name) for name in table.index]
    total = table.sum(axis=1)
    table.insert(0, "output_shape", ["" if p is None else shape_text(p.output_shape) for p in rows])
    table.insert(1, "parameters", [0 if p is None else p.parameters for p in rows])
    table.insert(2, "largest_weight", ["" if p is None else p.formula for p in rows])
    return table.assign(total=total, share=total / max(profile.peak_bytes, 1))


def phase_table(
    estimated: Mapping[str, Phase], measured: Mapping[str, Phase], ranges: Mapping[str, tuple[int, int]] | None = None
) -> pd.DataFrame:
    """Peaks per phase: ``estimated`` and ``measured`` bytes, ``error`` = (estimated - measured) / measured.

    A row per phase that the estimate has. ranges: `Estimate.peak_ranges`, shown as ``lowest`` and ``highest`` bytes.
    What is not known is missing (NA, NaN).
    """
    columns = {
        "estimated": {name: phase.peak_bytes for name, phase in estimated.items()},
        "measured": {name: phase.peak_bytes for name, phase in measured.items()},
        "lowest": {name: low for name, (low, _) in (ranges or {}).items()},
        "highest": {name: high for name, (_, high) in (ranges or {}).items()},
    }
    phases = pd.Index([name for name in PHASES if name in estimated], name="phase")
    table = pd.DataFrame(columns, index=phases, dtype="Int64")
    return table.assign(error=((table["estimated"] - table["measured"]) / table["measured"]).astype("float64"))


def difference_table(before: MemoryProfile, after: MemoryProfile) -> pd.DataFrame:
    """Bytes at the peak of ``after`` less those of ``before``: a row per layer of either, a column per category."""
    new, old = (checked_profile(each).by_layer() for each in (after, before))
    rows = list(dict.fromkeys([*new.index, *old.index]))
    both = (each.reindex(rows, fill_value=0) for each in (new, old))
    return next(both) - next(both)


def difference_table_html(table: pd.DataFrame, units: UnitSystem = "binary") -> str:
    """`difference_table` as HTML, with a row and a column of sums; what does not differ is left out."""

    def signed(nbytes: Any) -> str:
        sign = "+" if nbytes > 0 else "\N{MINUS SIGN}" if nbytes < 0 else ""
        return f"{sign}{format_bytes(abs(nbytes), units)}" if nbytes else ""

    table = table.loc[table.any(axis=1), table.any(axis=0)]
    table = table.assign(total=table.sum(axis=1))
    sums = pd.DataFrame([table.sum()], index=["all"], dtype="int64")
    return _table("B less A", pd.concat([table, sums]), dict.fromkeys(map(str, table), signed), units, "memviz-sums")


def layer_table_html(table: pd.DataFrame, units: UnitSystem = "binary", chosen: str | None = None) -> str:
    """`layer_table` as HTML with a row of sums; a category that holds nothing is named below instead of a column.

    chosen: a row that stands out.
    """
    shown = [c for c in CATEGORIES if table[c].any()]
    sums = {**table.sum(numeric_only=True), "share": 1.0, "output_shape": "", "largest_weight": ""}
    rows = pd.concat([table, pd.DataFrame([sums], index=["all"])])
    columns: Columns = {
        "output_shape": str, "parameters": lambda n: f"{n:,.0f}" if n else "", "largest_weight": str,
        "total": None, "share": percent_text, **dict.fromkeys(shown),
    }  # fmt: skip
    empty = ", ".join(category_text(c) for c in CATEGORIES if c not in shown)
    note = paragraph(f"Nothing at the peak: {empty}." if empty else "")
    return _table("layer", rows, columns, units, "memviz-sums", chosen) + note


def phase_table_html(table: pd.DataFrame, units: UnitSystem = "binary") -> str:
    """`phase_table` as HTML; where an estimated peak can lie only if that is a wide range."""
    rows = table.rename(index=category_text, columns={"estimated": "estimated_peak", "measured": "measured_peak"})
    columns: Columns = {"estimated_peak": None, "measured_peak": None, "error": error_text}
    ends = table[["lowest", "highest"]].fillna(0).itertuples(index=False)
    rows["range_of_the_estimate"] = [range_text(low, high, units) for low, high in ends]
    if rows["range_of_the_estimate"].any():
        columns["range_of_the_estimate"] = str
    return _table("phase", rows, columns, units)


def lines(texts: Sequence[str], kind: str) -> str:
    """HTML of some sentences, each on a line; nothing for none."""
    return f'<p class="memviz-{kind}" role="status">{"<br>".join(map(html.escape, texts))}</p>' if texts else ""


def paragraph(text: str, kind: str = "note") -> str:
    """HTML of a sentence; nothing for no text. Screen readers announce every kind but "note", "alert" at once."""
    role = {"note": "", "alert": ' role="alert"'}.get(kind, ' role="status"')
    return f'<p class="memviz-{kind}"{role}>{html.escape(text)}</p>' if text else ""


def _table(
    corner: str, table: pd.DataFrame, columns: Columns, units: UnitSystem, kind: str = "", chosen: str | None = None
) -> str:
    def size(nbytes: Any) -> str:
        return f'<span title="{nbytes:,.0f} B">{format_bytes(nbytes, units) if nbytes else "&ndash;"}</span>'

    names = [html.escape(str(name)) for name in table.index]
    marked = [f'<span class="memviz-chosen">{n}</span>' if n == html.escape(chosen or "") else n for n in names]
    cells = pd.DataFrame(index=marked)
    for name, text in columns.items():
        cells[category_text(name)] = [
            html.escape(text(v)) if text else "not measured" if pd.isna(v) else size(v) for v in table[name]
        ]
    return cells.rename_axis(columns=corner).to_html(escape=False, border=0, classes=["memviz-table", kind])
