"""The explorer's controls: every knob labelled, reachable by keyboard, and grouped as a training script would be."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import ipywidgets as w

from memviz.cards import cards
from memviz.child.machine import default_device
from memviz.models import presets
from memviz.models.convnet import ACTIVATIONS, HEADS, PADDINGS
from memviz.models.network import Call, Network
from memviz.setup import DTYPE_POLICIES, OPTIMIZERS, REFERENCE
from memviz.views.explorer.own import choices_of
from memviz.views.explorer.ranged import Ranged, ladder
from memviz.views.explorer.state import (
    ARGUMENT,
    CUSTOM,
    DISPLAY,
    ITS_OWN,
    OPTIMIZER_OPTIONS,
    ExplorerState,
    arguments_of,
    default_budget,
    knobs_of,
    preset_name,
    takes,
)
from memviz.views.text import category_text

MOST_BLOCKS = 16
POOLINGS = ("none", "max 2", "max 3", "max 4", "average 2", "average 4")
DETAILS = ("padding", "activation", "dropout")  # of a block, shown on request


class Knobs:
    """The controls as one thing: `values` reads them all, `show` sets them all without a word to anybody.

    moved is called after a control was moved by hand, with the name of the preset where one was chosen.
    """

    def __init__(self, state: ExplorerState, moved: Callable[[str | None], None]) -> None:
        self._moved, self._quiet = moved, False
        self.reached: w.Widget | None = None  # the control that is likely to move next
        self._last: tuple[w.Widget, Any] | None = None  # the control moved last, and its value before
        values = knobs_of(state)
        network = state.network
        self._own = isinstance(network, Network)
        of_network = _argument_fields(network) if isinstance(network, Network) else _image_fields()
        self.fields = f = _training_fields(self._own) | of_network
        self.preset = w.Dropdown(description="preset", options=[*presets.ALL, CUSTOM])
        self.count = w.IntSlider(description="conv blocks", max=max(MOST_BLOCKS, len(values["blocks"])))
        self.details = w.ToggleButton(description=", ".join(DETAILS), icon="chevron-down")
        self.details.observe(lambda _: self._show_rows(), names="value")
        self.all: list[w.Widget] = []
        self._ranged: dict[w.Widget, Ranged] = {}
        self.blocks: list[dict[str, w.Widget]] = []
        self._rows: list[tuple[w.Widget, w.Widget]] = []  # of each block: all of it, and its details
        self._rows_box = w.VBox().add_class("memviz-blocks")
        for field in f.values() if self._own else (self.preset, self.count, *f.values()):
            self._listen(field)
        self.display = w.HBox([f[name] for name in DISPLAY]).add_class("memviz-display")
        options = w.HBox([f[name] for name in OPTIMIZER_OPTIONS]).add_class("memviz-options")
        self.box = w.VBox([
            *(self._arguments(network) if isinstance(network, Network) else self._layers()),
            _heading("Training"), *self._wide("batch_size"), f["optimizer"], options, f["accumulate"],
            f["dtype_policy"], f["jit_compile"],
            _heading("Device"), f["device"], f["budget"], f["memory_growth"],
        ]).add_class("memviz-knobs")  # fmt: skip
        self.show(state)

    def _layers(self) -> list[w.Widget]:
        return [
            self.preset, _heading("Input image"), *self._wide("height", "width", "channels"),
            _heading("Convolutions"), self.count, self.details, self._rows_box,
            _heading("Head"), self.fields["head"], *self._wide("dense", "outputs"),
        ]  # fmt: skip

    def _arguments(self, network: Network) -> list[w.Widget]:
        """The knobs of one's own function, those of whole numbers with a slider to sixteen times the default."""
        rows: list[w.Widget] = [_heading(html.escape(network.name))]
        for name, default in arguments_of(network).items():
            field = self.fields[ARGUMENT + name]
            whole = type(default) is int and default > 0
            rows.append(self._with_slider(field, 1, 16 * default) if whole else field)
        return rows

    def values(self, instead: Mapping[w.Widget, Any] | None = None) -> dict[str, Any]:
        """The values as `knobs_of` gives them, some ``instead`` of a control's own; the state may still refuse them."""

        def read(fields: Mapping[str, w.Widget]) -> dict[str, Any]:
            return {name: (instead or {}).get(field, field.value) for name, field in fields.items()}

        count = read({"count": self.count})["count"]
        last = max(self.count.value - 1, 0)
        return read(self.fields) | {"blocks": [read(self.blocks[min(number, last)]) for number in range(count)]}

    def ahead(self) -> list[dict[str, Any]]:
        """The values after each move that is near for the control reached, the likeliest first. None for a text, nor
        for one's own network: each answer could take seconds.
        """
        field = self.reached
        if field is None or field in (self.preset, self.fields["device"]) or self._own:
            return []
        return [self.values({field: value}) for value in self._near(field)]

    def _near(self, field: w.Widget) -> Iterator[Any]:
        if isinstance(field, w.Checkbox):
            yield not field.value
            return
        before = self._last[1] if self._last and self._last[0] is field else None
        if isinstance(field, w.Dropdown):
            options = _values(field)
            at = options.index(field.value)
            back = before in options and options.index(before) > at
            order = sorted(range(len(options)), key=lambda index: (abs(index - at), (index > at) == back))
            yield from (options[index] for index in order[1:])
        elif type(getattr(field, "value", None)) is int:
            step = field.value - before if before is not None and before != field.value else 1
            low, high = getattr(field, "min", 1), getattr(field, "max", None)
            near = [field.value + step, field.value - step]
            if field in self._ranged:  # the next places of its slider
                near += self._ranged[field].beside(field.value)
            yield from dict.fromkeys(value for value in near if low <= value and (high is None or value <= high))

    def show(self, state: ExplorerState) -> None:
        """Set every control from a state."""
        values = knobs_of(state)
        blocks = values.pop("blocks")
        self._need_rows(len(blocks))
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
                if isinstance(field, w.Dropdown) and value not in _values(field):
                    more = (str(value), value) if isinstance(field.options[0], tuple) else value
                    field.options = [*field.options, more]  # such as another pooling
                field.value = value
        finally:
            self._quiet = False

    def _listen(self, field: w.Widget) -> None:
        field.observe(self._heard, names="value")
        field.add_class(f"memviz-knob-{len(self.all)}")
        self.all.append(field)

    def _wide(self, *names: str) -> list[w.Widget]:
        """Rows of a number and a slider beside it."""
        return [self._with_slider(self.fields[name], *_RANGES[name]) for name in names]

    def _with_slider(self, field: w.IntText, low: int, high: int) -> w.Widget:
        self._ranged[field] = ranged = Ranged(field, ladder(low, high))
        return ranged.box

    def _need_rows(self, count: int) -> None:
        """Controls for so many blocks; they are made when they are first needed."""
        new = range(len(self.blocks) + 1, count + 1)
        for number in new:
            fields = _block_fields(number)
            self.blocks.append(fields)
            for field in fields.values():
                self._listen(field)
            filters = self._with_slider(fields["filters"], 1, 512)
            usual = [fields[name] for name in ("kernel", "strides", "pooling", "batch_norm")]
            details = w.HBox([fields[name] for name in DETAILS]).add_class("memviz-fields")
            row = w.VBox([filters, w.HBox(usual).add_class("memviz-fields"), details])
            self._rows.append((row, details))
        if new:
            self._rows_box.children = [row for row, _ in self._rows]

    def _heard(self, change: dict[str, Any]) -> None:
        if self._quiet:
            return
        owner = change["owner"]
        self._last = None if owner is self.preset else (owner, change["old"])
        self.reached = self._last and self._last[0]
        if owner is self.count:  # a new block starts as a copy of the last one
            self._need_rows(change["new"])
            for new in range(max(change["old"], 1), change["new"]):
                self._set([(field, self.blocks[new - 1][name].value) for name, field in self.blocks[new].items()])
        if owner is self.fields["device"]:
            self._set([(self.fields["budget"], default_budget(change["new"]))])
        self._show_rows()
        self._moved(change["new"] if owner is self.preset and change["new"] != CUSTOM else None)

    def _show_rows(self) -> None:
        """Only the blocks there are, their details on request, and the options that the optimizer has."""
        for number, (row, details) in enumerate(self._rows):
            row.layout.display = "" if number < self.count.value else "none"
            details.layout.display = "" if self.details.value else "none"
        for name in OPTIMIZER_OPTIONS:
            field = self.fields[name]
            field.layout.display = "" if takes(self.fields["optimizer"].value, name) else "none"


def _values(field: w.Dropdown) -> list[Any]:
    return [each[1] if isinstance(each, tuple) else each for each in field.options]


_RANGES = {
    "height": (1, 2048), "width": (1, 2048), "channels": (1, 512),
    "dense": (0, 8192), "outputs": (1, 4096), "batch_size": (1, 4096),
}  # fmt: skip


def _image_fields() -> dict[str, w.Widget]:
    """A control per number of a ConvNet, but those of its blocks."""
    heads = [(head.replace("_", " "), head) for head in HEADS]
    return {
        "height": w.IntText(description="height"),
        "width": w.IntText(description="width"),
        "channels": w.IntText(description="channels"),
        "head": w.Dropdown(description="head", options=heads),
        "dense": w.IntText(description="dense units"),
        "outputs": w.IntText(description="outputs"),
    }


def _argument_fields(network: Network) -> dict[str, w.Widget]:
    """A control per argument, by the kind of its default."""
    source = network.source
    choices = choices_of(source.function) if isinstance(source, Call) else {}
    return {ARGUMENT + name: _argument_field(name, value, choices) for name, value in arguments_of(network).items()}


def _argument_field(name: str, value: Any, choices: Mapping[str, tuple[Any, ...]]) -> w.Widget:
    about: dict[str, Any] = {"description": name, "tooltip": name}
    if name in choices:
        return w.Dropdown(options=choices[name], **about)
    if isinstance(value, bool):
        return w.Checkbox(indent=False, **about)
    if isinstance(value, int):
        return w.IntText(**about)
    return w.FloatText(**about) if isinstance(value, float) else w.Text(continuous_update=False, **about)


def _training_fields(own: bool) -> dict[str, w.Widget]:
    """A control per setting of training, device and display. own: whether the network may bring some of them."""
    its_own = [ITS_OWN] if own else []
    here = {default_device(): default_device()} | {REFERENCE: "reference (CPU, as a GPU)"}
    devices = [(text, name) for name, text in here.items()] + [(name, name) for name in cards()]
    phases = [(category_text(phase), phase) for phase in ("build", "first_step", "steady_step")]
    options = {
        name: w.Checkbox(description=name.replace("_", " "), indent=False, tooltip=f"Keras' {argument}")
        for name, (argument, _, _) in OPTIMIZER_OPTIONS.items()
    }
    return {
        "batch_size": w.IntText(description="batch size"),
        "optimizer": w.Dropdown(description="optimizer", options=[*its_own, *OPTIMIZERS]),
        **options,
        "accumulate": w.IntText(description="accumulate", tooltip="steps whose gradients are added up"),
        "dtype_policy": w.Dropdown(description="dtype policy", options=[*its_own, *DTYPE_POLICIES]),
        "jit_compile": w.Dropdown(description="XLA", options=[("auto", "auto"), ("on", True), ("off", False)]),
        "budget": w.Text(description="budget", placeholder="9513 MiB, 40 %, or all", continuous_update=False),
        "device": w.Dropdown(description="device", options=devices),
        "memory_growth": w.Checkbox(description="memory growth", indent=False),
        "phase": w.ToggleButtons(description="peak of", options=phases),
        "scale": w.ToggleButtons(description="axis", options=["linear", "log", "share"]),
        "order": w.ToggleButtons(description="layers by", options=["model", "size"]),
        "units": w.ToggleButtons(description="units", options=[("GiB", "binary"), ("GB", "decimal")]),
    }


def _block_fields(number: int) -> dict[str, w.Widget]:
    fields = {
        "filters": w.IntText(description=f"{number}: filters"),
        "kernel": w.IntText(description="kernel"),
        "strides": w.IntText(description="stride"),
        "pooling": w.Dropdown(description="pool", options=POOLINGS),
        "batch_norm": w.Checkbox(description="norm", indent=False),
        "padding": w.Dropdown(description="padding", options=PADDINGS),
        "activation": w.Dropdown(description="activation", options=ACTIVATIONS),
        "dropout": w.FloatText(description="dropout", step=0.1),
    }
    for name, field in fields.items():
        field.tooltip = f"block {number}: {name.replace('_', ' ')}"
    return fields


def _heading(text: str) -> w.HTML:
    return w.HTML(f'<div class="memviz-heading">{text}</div>')
