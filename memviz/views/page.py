"""A profile as one HTML file that needs nothing else: its figures and its numbers."""

from __future__ import annotations

import html
from pathlib import Path

from memviz.failure import Failure, failure_sentences
from memviz.profile import MemoryProfile
from memviz.units import UnitSystem
from memviz.views import figures


def save_html(
    profile: MemoryProfile, path: str | Path, *, estimate: MemoryProfile | None = None,
    budget_bytes: int | None = None, failure: Failure | None = None, units: UnitSystem = "binary",
) -> None:  # fmt: skip
    """Write the timelines, the bars per layer and, where addresses are known, the address map to one file.

    estimate, budget_bytes: as in `figures.timeline`. failure: with what was alive when memory ran out, the request that
    could not be served, in words. plotly's script (4.7 MB) is in the file, once.
    """
    drawn = [
        figures.timeline(profile, budget_bytes=budget_bytes, estimate=estimate, units=units),
        figures.layer_figure(profile, units=units),
        figures.timeline(profile, by="layer", units=units),
    ]
    if any(a.address is not None for a in profile.allocations):
        drawn.append(figures.address_map(profile, units=units))
    parts = [figure.to_html(full_html=False, include_plotlyjs=number == 0) for number, figure in enumerate(drawn)]
    setup = "".join(f"<li>{html.escape(f'{name}: {value}')}</li>" for name, value in profile.setup.items())
    omitted = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in profile.not_counted)
    batch_size = profile.setup.get("batch_size")
    said = "" if failure is None else failure_sentences(failure, batch_size if isinstance(batch_size, int) else 1)
    title = html.escape(f"memviz: {profile.phase.replace('_', ' ')} ({profile.source})")
    Path(path).write_text(
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{title}</title>"
        f"<body style='font-family: system-ui, sans-serif'><h1>{title}</h1><p>{html.escape(said)}</p>{''.join(parts)}"
        f"<h2>Setup</h2><ul>{setup}</ul><h2>Not counted</h2><ul>{omitted}</ul></body></html>",
        encoding="utf-8",
    )
