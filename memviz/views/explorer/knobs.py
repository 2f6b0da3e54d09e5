"""The explorer's controls: every knob labelled, reachable by keyboard, and grouped as a training script would be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ipywidgets as w

from memviz.child.machine import default_device
from memviz.models import presets
from memviz.models.convnet import HEADS
from memviz.setup import DTYPE_POLICIES, OPTIMIZERS, REFERENCE
from memviz.views.explorer.state import CUSTOM, ExplorerState, knobs_of, preset_name
from memviz.views.text import PHASE_TEXT

MOST_BLOCKS = 6
POOLINGS = ("none", "max 2", "max 3", "max 4", "average 2", "average 4")
ROW = {"description_width": "92px"}
FULL = {"width": "296px"}
DISPLAY = ("phase", "log", "units")


class Knobs:
    """The controls as one thing: `values` reads them all, `show` sets them all without a word to anybody.

    on_change is called, without arguments, after any knob was moved by hand; on_preset with a preset's name.
    """

    def __init__(self, state: ExplorerState, on_change: Callable[[], None], on_preset: Callable[[str], None]) -> None:
        self._on_change, self._on_preset, self._quiet = on_change, on_preset, False
        self.preset = w.Dropdown(description="preset", options=[*presets.ALL, CUSTOM], style=ROW, layout=FULL)
        self.fields: dict[str, w.Widget] = _fields()
        rows = max(MOST_BLOCKS, len(state.network.blocks))
        self.count = w.IntSlider(description="conv blocks", min=0, max=rows, style=ROW, layout=FULL)
        self.blocks = [_block_fields(number) for number in range(1, rows + 1)]
        self._rows = [_block_row(number, fields) for number, fields in enumerate(self.blocks, start=1)]
        self.show(state)
        for field in (*self.fields.values(), self.count, *(f for block in self.blocks for f in block.values())):
            field.observe(self._moved, names="value")
        self.preset.observe(self._chosen, names="value")
        self.box, self.display = self._layout(), w.HBox([self.fields[name] for name in DISPLAY])
        self.display.add_class("memviz-display")

    def values(self) -> dict[str, Any]:
        """The values as `knobs_of` gives them; the state may still refuse them."""
        values: dict[str, Any] = {name: field.value for name, field in self.fields.items()}
        shown = self.blocks[: self.count.value]
        values["blocks"] = [{name: field.value for name, field in block.items()} for block in shown]
        return values

    def show(self, state: ExplorerState) -> None:
        """Set every control from a state."""
        self._quiet = True
        try:
            values = knobs_of(state)
            blocks = values.pop("blocks")
            for name, value in values.items():
                _set(self.fields[name], value)
            self.count.value = len(blocks)
            for fields, block in zip(self.blocks, blocks, strict=False):
                for name, value in block.items():
                    _set(fields[name], value)
            self.mark(state)
        finally:
            self._quiet = False

    def mark(self, state: ExplorerState) -> None:
        """Follow a state in what is no knob of its own: the preset's name, the rows of blocks."""
        quiet, self._quiet = self._quiet, True
        self.preset.value = preset_name(state.network)
        self._quiet = quiet
        self._show_rows()

    def _show_rows(self) -> None:
        for number, row in enumerate(self._rows):
            row.layout.display = "" if number < self.count.value else "none"

    def _moved(self, change: dict[str, Any]) -> None:
        if not self._quiet:
            if change["owner"] is self.count:
                self._continue_blocks(change["old"], change["new"])
            self._on_change()

    def _continue_blocks(self, before: int, now: int) -> None:
        """A new block starts as a copy of the last one."""
        self._quiet = True
        for number in range(max(before, 1), now):
            for name, field in self.blocks[number].items():
                _set(field, self.blocks[number - 1][name].value)
        self._quiet = False
        self._show_rows()

    def _chosen(self, change: dict[str, Any]) -> None:
        if not self._quiet and change["new"] != CUSTOM:
            self._on_preset(change["new"])

    def _layout(self) -> w.VBox:
        f = self.fields
        sides = w.HBox([f["height"], f["width"], f["channels"]])
        sides.add_class("memviz-fields")
        knobs = w.VBox([
            self.preset,
            _heading("Input image"), sides,
            _heading("Convolutions"), self.count, *self._rows,
            _heading("Head"), f["head"], f["dense"], f["outputs"],
            _heading("Training"), f["batch_size"], f["optimizer"], f["dtype_policy"],
            _heading("Device"), f["budget"], f["device"], f["memory_growth"],
        ])  # fmt: skip
        knobs.add_class("memviz-knobs")
        return knobs


def _fields() -> dict[str, w.Widget]:
    def row(kind: Any, label: str, **options: Any) -> w.Widget:
        return kind(description=label, style=ROW, layout=FULL, **options)

    def small(label: str) -> w.Widget:
        field = w.IntText(description=label)
        field.add_class("memviz-field")
        return field

    fields = {name: small(name) for name in ("height", "width", "channels")}
    return fields | {
        "head": row(w.Dropdown, "head", options=[(head.replace("_", " "), head) for head in HEADS]),
        "dense": row(w.IntSlider, "dense units", min=0, max=512),
        "outputs": row(w.IntText, "outputs"),
        "batch_size": row(w.IntText, "batch size"),
        "optimizer": row(w.Dropdown, "optimizer", options=OPTIMIZERS),
        "dtype_policy": row(w.Dropdown, "dtype policy", options=DTYPE_POLICIES),
        "budget": row(w.Text, "budget", placeholder="9513 MiB, 11 GB, or empty", continuous_update=False),
        "device": row(w.Dropdown, "device", options=_devices()),
        "memory_growth": row(w.Checkbox, "memory growth", indent=False),
        "phase": _toggle("peak of", [(PHASE_TEXT[p], p) for p in ("build", "first_step", "steady_step")]),
        "log": _toggle("axis", [("linear", False), ("log", True)]),
        "units": _toggle("units", [("GiB", "binary"), ("GB", "decimal")]),
    }


def _devices() -> list[tuple[str, str]]:
    """The reference device, and this machine's GPU where there is one."""
    reference = [("reference (CPU, as a GPU)", REFERENCE)]
    return reference if default_device() == REFERENCE else [*reference, (default_device(), default_device())]


def _toggle(label: str, options: list[tuple[str, Any]]) -> w.Widget:
    return w.ToggleButtons(
        description=label, options=options, style={"button_width": "auto", "description_width": "auto"}
    )


def _block_fields(number: int) -> dict[str, w.Widget]:
    fields = {
        "filters": w.IntSlider(description=f"{number}: filters", min=1, max=128, style=ROW, layout=FULL),
        "kernel": w.IntText(description="kernel"),
        "strides": w.IntText(description="stride"),
        "pooling": w.Dropdown(description="pool", options=POOLINGS),
        "batch_norm": w.Checkbox(description="norm", indent=False),
    }
    for name in ("kernel", "strides", "pooling", "batch_norm"):
        fields[name].add_class("memviz-field")
        fields[name].tooltip = f"block {number}: {name.replace('_', ' ')}"
    return fields


def _block_row(number: int, fields: dict[str, w.Widget]) -> w.VBox:
    line = w.HBox([fields[name] for name in ("kernel", "strides", "pooling", "batch_norm")])
    line.add_class("memviz-fields")
    return w.VBox([fields["filters"], line])


def _heading(text: str) -> w.HTML:
    return w.HTML(f'<div class="memviz-heading">{text}</div>')


def _set(field: w.Widget, value: Any) -> None:
    """Set a value the control may not have known: a larger number, another choice."""
    if isinstance(field, w.IntSlider):
        field.max = max(field.max, value)
    elif isinstance(field, w.Dropdown) and value not in [
        option[1] if isinstance(option, tuple) else option for option in field.options
    ]:
        field.options = (*field.options, value)
    field.value = value
