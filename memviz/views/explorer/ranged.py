"""A number to type with a slider beside it whose places lie closer together where numbers are small."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Any

import ipywidgets as w


def ladder(low: int, high: int) -> list[int]:
    """Whole numbers from ``low`` to ``high``: 0, 1, 2, 3, 4, 6, 8, 12, 16, 24, ..., two per doubling."""
    steps = [0, 1, *(m << power for power in range(high.bit_length()) for m in (2, 3))]
    return sorted({low, high, *(step for step in steps if low <= step <= high)})


class Ranged:
    """The number is the knob; the slider sets it, and follows it to the place nearest below."""

    def __init__(self, field: w.IntText, places: list[int]) -> None:
        self._field, self._places, self._following = field, places, False
        self._slider = w.SelectionSlider(options=places, value=self._nearest(field.value), readout=False)
        self._slider.observe(self._slid, names="value")
        field.observe(self._follow, names="value")
        self.box = w.HBox([field, self._slider]).add_class("memviz-ranged")

    def beside(self, value: int) -> list[int]:
        """The slider's places next to a value, the higher one first."""
        up, down = bisect_right(self._places, value), bisect_left(self._places, value) - 1
        return [self._places[at] for at in (up, down) if 0 <= at < len(self._places)]

    def _nearest(self, value: int) -> int:
        return self._places[max(0, bisect_right(self._places, value) - 1)]

    def _slid(self, change: dict[str, Any]) -> None:
        if not self._following:
            self._field.value = change["new"]

    def _follow(self, change: dict[str, Any]) -> None:
        self._following = True
        try:
            self._slider.value = self._nearest(change["new"])
        finally:
            self._following = False
