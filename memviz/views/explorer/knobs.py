"""The explorer's controls: every knob labelled, reachable by keyboard, and grouped as a training script would be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ipywidgets as w

from memviz.child.machine import default_device
from memviz.models import presets
from memviz.models.convnet import HEADS
from memviz.setup import DTYPE_POLICIES, OPTIMIZERS, REFERENCE
from memviz.views.explorer.state import CUSTOM, DISPLAY, ExplorerState, knobs_of, preset_name
from memviz.views.text import category_text

MOST_BLOCKS = 6
POOLINGS = ("none", "max 2", "max 3", "max 4", "average 2", "average 4")


class Knobs:
    """The controls as one thing: `values` reads them all, `show` sets them all without a word to anybody.

    moved is called after a control was moved by hand, with the name of the preset where one was chosen.
    """

    def __init__(self, state: ExplorerState, moved: Callable[[str | None], None]) -> None:
        self._moved, self._quiet = moved, False
        self.reached: w.Widget | None = None  # the control that is likely to move next
        self._last: tuple[w.Widget, Any] | None = None  # the control moved last, and its value before
        values = knobs_of(state)
        self.fields = f = _fields(values)
        rows = max(MOST_BLOCKS, len(values["blocks"]))
        self.blocks = [_block_fields(number, values["blocks"]) for number in range(1, rows + 1)]
        lines = [w.HBox([*fields.values()][1:]).add_class("memviz-fields") for fields in self.blocks]
        self._rows = [w.VBox([fields["filters"], line]) for fields, line in zip(self.blocks, lines, strict=True)]
        self.preset = w.Dropdown(description="preset", options=[*presets.ALL, CUSTOM])
        self.count = w.IntSlider(description="conv blocks", max=rows)
        self.show(state)
        self.all = (self.preset, self.count, *(f for fields in (self.fields, *self.blocks) for f in fields.values()))
        for number, field in enumerate(self.all):
            field.observe(self._heard, names="value")
            field.add_class(f"memviz-knob-{number}")
        self.display = w.HBox([f[name] for name in DISPLAY]).add_class("memviz-display")
        sides = w.HBox([f["height"], f["width"], f["channels"]]).add_class("memviz-fields")
        self.box = w.VBox([
            self.preset, _heading("Input image"), sides,
            _heading("Convolutions"), self.count, *self._rows,
            _heading("Head"), f["head"], f["dense"], f["outputs"],
            _heading("Training"), f["batch_size"], f["optimizer"], f["dtype_policy"],
            _heading("Device"), f["budget"], f["device"], f["memory_growth"],
        ]).add_class("memviz-knobs")  # fmt: skip

    def values(self, instead: Mapping[w.Widget, Any] | None = None) -> dict[str, Any]:
        """The values as `knobs_of` gives them, some ``instead`` of a control's own; the state may still refuse them."""

        def read(fields: Mapping[str, w.Widget]) -> dict[str, Any]:
            return {name: (instead or {}).get(field, field.value) for name, field in fields.items()}

        last = max(self.count.value - 1, 0)
        count = read({"count": self.count})["count"]
        return read(self.fields) | {"blocks": [read(self.blocks[min(number, last)]) for number in range(count)]}

    def ahead(self) -> list[dict[str, Any]]:
        """The values after each move that is near for the control reached, the likeliest first; none for a text."""
        field = self.reached
        if field is None or field is self.preset:
            return []
        if isinstance(field, w.Checkbox):
            return [self.values({field: not field.value})]
        before = self._last[1] if self._last and self._last[0] is field else None
        if isinstance(field, w.Dropdown):
            options = [each[1] if isinstance(each, tuple) else each for each in field.options]
            at = options.index(field.value)
            back = before in options and options.index(before) > at
            order = sorted(range(len(options)), key=lambda index: (abs(index - at), (index > at) == back))
            return [self.values({field: options[index]}) for index in order[1:]]
        if type(getattr(field, "value", None)) is not int:
            return []
        step = field.value - before if before is not None and before != field.value else 1
        low, high = getattr(field, "min", 1), getattr(field, "max", None)
        near = [field.value + step, field.value - step]
        return [self.values({field: value}) for value in near if low <= value and (high is None or value <= high)]

    def show(self, state: ExplorerState) -> None:
        """Set every control from a state."""
        values = knobs_of(state)
        blocks = values.pop("blocks")
        rows = [(self.fields, values), *zip(self.blocks, blocks, strict=False)]
        self._set([(fields[name], value) for fields, knobs in rows for name, value in knobs.items()])
        self._set([(self.count, len(blocks)), (self.preset, preset_name(state.network))])
        self._show_rows()

    def mark(self, state: ExplorerState) -> None:
        """Name the preset that a state's network equals."""
        self._set([(self.preset, preset_name(state.network))])

    def _set(self, values: list[tuple[w.Widget, Any]]) -> None:
        self._quiet = True
        try:
            for field, value in values:
                field.value = value
        finally:
            self._quiet = False

    def _heard(self, change: dict[str, Any]) -> None:
        if self._quiet:
            return
        self._last = None if change["owner"] is self.preset else (change["owner"], change["old"])
        self.reached = self._last and self._last[0]
        if change["owner"] is self.count:  # a new block starts as a copy of the last one
            for new in range(max(change["old"], 1), change["new"]):
                self._set([(field, self.blocks[new - 1][name].value) for name, field in self.blocks[new].items()])
            self._show_rows()
        self._moved(change["new"] if change["owner"] is self.preset and change["new"] != CUSTOM else None)

    def _show_rows(self) -> None:
        for number, row in enumerate(self._rows):
            row.layout.display = "" if number < self.count.value else "none"


def _fields(values: dict[str, Any]) -> dict[str, w.Widget]:
    """A control per knob, its range wide enough for the values."""
    heads = [(head.replace("_", " "), head) for head in HEADS]
    devices = {default_device(): default_device()} | {REFERENCE: "reference (CPU, as a GPU)"}
    phases = [(category_text(phase), phase) for phase in ("build", "first_step", "steady_step")]
    return {
        "height": w.IntText(description="height"),
        "width": w.IntText(description="width"),
        "channels": w.IntText(description="channels"),
        "head": w.Dropdown(description="head", options=heads),
        "dense": w.IntSlider(description="dense units", max=max(512, values["dense"])),
        "outputs": w.IntText(description="outputs"),
        "batch_size": w.IntText(description="batch size"),
        "optimizer": w.Dropdown(description="optimizer", options=OPTIMIZERS),
        "dtype_policy": w.Dropdown(description="dtype policy", options=DTYPE_POLICIES),
        "budget": w.Text(description="budget", placeholder="9513 MiB, 11 GB, or empty", continuous_update=False),
        "device": w.Dropdown(description="device", options=[(text, name) for name, text in devices.items()]),
        "memory_growth": w.Checkbox(description="memory growth", indent=False),
        "phase": w.ToggleButtons(description="peak of", options=phases),
        "log": w.ToggleButtons(description="axis", options=[("linear", False), ("log", True)]),
        "units": w.ToggleButtons(description="units", options=[("GiB", "binary"), ("GB", "decimal")]),
    }


def _block_fields(number: int, blocks: list[dict[str, Any]]) -> dict[str, w.Widget]:
    most = max([128, *(block["filters"] for block in blocks)])
    pools = dict.fromkeys([*POOLINGS, *(block["pooling"] for block in blocks)])
    fields = {
        "filters": w.IntSlider(description=f"{number}: filters", min=1, max=most),
        "kernel": w.IntText(description="kernel"),
        "strides": w.IntText(description="stride"),
        "pooling": w.Dropdown(description="pool", options=list(pools)),
        "batch_norm": w.Checkbox(description="norm", indent=False),
    }
    for name, field in fields.items():
        field.tooltip = f"block {number}: {name.replace('_', ' ')}"
    return fields


def _heading(text: str) -> w.HTML:
    return w.HTML(f'<div class="memviz-heading">{text}</div>')
