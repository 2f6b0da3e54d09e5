"""The panel's looks, and what its controls need to be used by keyboard inside JupyterLab."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import anywidget


class Manners(anywidget.AnyWidget):
    """An invisible part of the panel that brings its style sheet and its manners at the keyboard.

    reached is called with the number of a knob on which the pointer rests or that takes the focus.
    """

    def __init__(self, reached: Callable[[int], None]) -> None:
        super().__init__()
        self.on_msg(lambda _, content, __: reached(content["knob"]))

    _esm = Path(__file__).with_name("manners.js")
    _css = Path(__file__).with_name("panel.css")
