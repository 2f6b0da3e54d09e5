"""Words and shares as every view writes them."""

from __future__ import annotations

import math

from memviz.units import UnitSystem, unit_for


def category_text(category: str) -> str:
    """The name of a category, a phase or a column for people: ``optimizer state``, ``first step``."""
    return str(category).replace("_", " ")


def percent_text(share: float) -> str:
    """A share as text that rounds neither to the whole nor to nothing: 0.999997 reads ``99.99 %``."""
    if 0.999 < share < 1:
        return f"{math.floor(share * 10_000) / 100:.2f} %"
    return "< 0.1 %" if 0 < share < 0.001 else f"{share * 100:.1f} %"


def error_text(error: float) -> str:
    """A signed share as text: ``+1.3 %``; above zero the estimate is too high. Empty for NaN."""
    if math.isnan(error):
        return ""
    percent = round(error * 100, 1)
    return f"{percent:+,.1f} %".replace("-", "\N{MINUS SIGN}") if percent else "\N{PLUS-MINUS SIGN}0.0 %"


def range_text(lowest: int, highest: int, units: UnitSystem) -> str:
    """Where an estimated peak lies: ``102.00 to 125.00 MiB, by TensorFlow's start order``; empty if within 2 %."""
    if highest - lowest <= 0.02 * highest:
        return ""
    factor, unit = unit_for(highest, units)
    return f"{lowest / factor:,.2f} to {highest / factor:,.2f} {unit}, by TensorFlow's start order"
