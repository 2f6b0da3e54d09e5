"""The explorer's controls: every knob labelled, reachable by keyboard, and grouped as a training script would be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


class Knobs:
    """The controls as one thing: `values` reads them all, `show` sets them all without a word to anybody.

    moved is called after a control was moved by hand, with the name of the preset where one was chosen.
    """

    def __init__(self, state: ExplorerState, moved: Callable[[str | None], None]) -> None:
        self._moved, self._quiet = moved, False
        values = knobs_of(state)
        groups = _fields(values)
        self.fields = {name: field for group in groups.values() for name, field in group.items()}
        display = groups.pop("Display").values()
        rows = max(MOST_BLOCKS, len(values["blocks"]))
        self.blocks = [_block_fields(number, values["blocks"]) for number in range(1, rows + 1)]
        lines = [w.HBox([*fields.values()][1:]).add_class("memviz-fields") for fields in self.blocks]
        self._rows = [w.VBox([fields["filters"], line]) for fields, line in zip(self.blocks, lines, strict=True)]
        self.preset = w.Dropdown(description="preset", options=[*presets.ALL, CUSTOM])
        self.count = w.IntSlider(description="conv blocks", max=rows)
        self.show(state)
        for field in (self.preset, self.count, *(f for fields in (self.fields, *self.blocks) for f in fields.values())):
            field.observe(self._heard, names="value")
        self.box = w.VBox([self.preset]).add_class("memviz-knobs")
        sides = w.HBox([*groups["Input image"].values()]).add_class("memviz-fields")
        special = {"Input image": [sides], "Convolutions": [self.count, *self._rows]}
        for name, group in groups.items():
            heading = w.HTML(f'<div class="memviz-heading">{name}</div>')
            self.box.children += (heading, *special.get(name, group.values()))
        self.display = w.HBox([*display]).add_class("memviz-display")

    def values(self) -> dict[str, Any]:
        """The values as `knobs_of` gives them; the state may still refuse them."""
        blocks = [{name: field.value for name, field in b.items()} for b in self.blocks[: self.count.value]]
        return {name: field.value for name, field in self.fields.items()} | {"blocks": blocks}

    def show(self, state: ExplorerState) -> None:
        """Set every control from a state."""
        values = knobs_of(state)
        blocks = values.pop("blocks")
        with self._silent():
            self.count.value = len(blocks)
            for fields, knobs in ((self.fields, values), *zip(self.blocks, blocks, strict=False)):
                for name, value in knobs.items():
                    fields[name].value = value
        self._show_rows()
        self.mark(state)

    def mark(self, state: ExplorerState) -> None:
        """Name the preset that a state's network equals."""
        with self._silent():
            self.preset.value = preset_name(state.network)

    @contextmanager
    def _silent(self) -> Iterator[None]:
        self._quiet = True
        try:
            yield
        finally:
            self._quiet = False

    def _heard(self, change: dict[str, Any]) -> None:
        if self._quiet:
            return
        if change["owner"] is self.count:  # a new block starts as a copy of the last one
            with self._silent():
                for number in range(max(change["old"], 1), change["new"]):
                    for name, field in self.blocks[number].items():
                        field.value = self.blocks[number - 1][name].value
            self._show_rows()
        self._moved(change["new"] if change["owner"] is self.preset and change["new"] != CUSTOM else None)

    def _show_rows(self) -> None:
        for number, row in enumerate(self._rows):
            row.layout.display = "" if number < self.count.value else "none"


def _fields(values: dict[str, Any]) -> dict[str, dict[str, w.Widget]]:
    """The knobs of a network and its training, by heading; ranges are wide enough for the values."""
    phases = [(PHASE_TEXT[phase], phase) for phase in ("build", "first_step", "steady_step")]
    heads = [(head.replace("_", " "), head) for head in HEADS]
    devices = {default_device(): default_device()} | {REFERENCE: "reference (CPU, as a GPU)"}
    return {
        "Input image": {name: w.IntText(description=name) for name in ("height", "width", "channels")},
        "Convolutions": {},
        "Head": {
            "head": w.Dropdown(description="head", options=heads),
            "dense": w.IntSlider(description="dense units", max=max(512, values["dense"])),
            "outputs": w.IntText(description="outputs"),
        },
        "Training": {
            "batch_size": w.IntText(description="batch size"),
            "optimizer": w.Dropdown(description="optimizer", options=OPTIMIZERS),
            "dtype_policy": w.Dropdown(description="dtype policy", options=DTYPE_POLICIES),
        },
        "Device": {
            "budget": w.Text(description="budget", placeholder="9513 MiB, 11 GB, or empty", continuous_update=False),
            "device": w.Dropdown(description="device", options=[(text, name) for name, text in devices.items()]),
            "memory_growth": w.Checkbox(description="memory growth", indent=False),
        },
        "Display": {
            "phase": w.ToggleButtons(description="peak of", options=phases),
            "log": w.ToggleButtons(description="axis", options=[("linear", False), ("log", True)]),
            "units": w.ToggleButtons(description="units", options=[("GiB", "binary"), ("GB", "decimal")]),
        },
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
