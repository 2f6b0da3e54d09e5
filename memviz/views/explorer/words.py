"""What the explorer says: pure functions from its state, estimates and trials to sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

from memviz.advice.contributors import contributors
from memviz.advice.fits import verdict_of
from memviz.failure import PHASE_WORDS
from memviz.models.convnet import ConvNet, LayerPlan
from memviz.profile import MemoryProfile
from memviz.units import UnitSystem, format_bytes, shape_text
from memviz.views.explorer.state import DISPLAY, ITS_OWN, OPTIMIZER_OPTIONS, ExplorerState, knobs_of
from memviz.views.tables import difference_table
from memviz.views.text import category_text, error_text, percent_text, range_text

if TYPE_CHECKING:
    from memviz.estimation.result import Estimate
    from memviz.measurement.result import Trial, TrialEvent

_ARROW = "\N{RIGHTWARDS ARROW}"
_OF_THE_INPUT = "its input: the gradient of the kernel is made from it"
_OF_THE_OUTPUT = "its output: the gradient of the activation is made from it"
# What a layer holds until its gradient is known, by Keras class.
KEPT = {
    **dict.fromkeys(("Conv1D", "Conv2D", "Conv3D", "Conv2DTranspose", "DepthwiseConv2D", "Dense"), _OF_THE_INPUT),
    "BatchNormalization": "its input, with the mean and variance of the batch",
    "LayerNormalization": "its input, with the mean and variance of each example",
    "Embedding": "the indices of its rows",
    **dict.fromkeys(
        ("MaxPooling1D", "MaxPooling2D", "GlobalMaxPooling1D", "GlobalMaxPooling2D"),
        "its input and output: they tell where each maximum was",
    ),
    **dict.fromkeys(
        ("AveragePooling1D", "AveragePooling2D", "GlobalAveragePooling1D", "GlobalAveragePooling2D"),
        "nothing: the gradient is spread evenly",
    ),
    **dict.fromkeys(("Flatten", "Reshape"), "nothing: it is its input in another shape, without a copy"),
    **dict.fromkeys(("Add", "Concatenate", "ZeroPadding2D"), "nothing: the gradient is handed on"),
    "Dropout": "its mask: which values were dropped",
}
_FROM_THE_INPUT = {"leaky_relu", "gelu", "silu"}  # of these activations the gradient is made from the input


def verdict(state: ExplorerState, estimate: Estimate) -> str:
    """One sentence: what training needs, which phase decides, whether it fits, and what dominates."""
    need, budget, units = estimate.required_bytes, state.setup.budget_bytes, state.units
    decides, parameters = estimate.phases[estimate.largest_phase], sum(layer.parameters for layer in estimate.layers)
    lies = range_text(*estimate.peak_ranges.get(decides.name, (0, 0)), units)
    text = (
        f"Training these {parameters:,} parameters with {optimizer_text(state)} and batch "
        f"{state.setup.batch_size:,} needs {format_bytes(need, units)}, fragmentation included (the "
        f"{category_text(decides.name)} decides{f'; peak {lies}' if lies else ''})"
    )
    if budget is not None:
        text += f" and {_fit(estimate, budget, units)}"
    (dominates, *_) = why(estimate.layers, decides.profile or estimate.profile, units, most=1) or ("",)
    return f"{text}. Most is held by {dominates}." if dominates else f"{text}."


def _fit(estimate: Estimate, budget: int, units: UnitSystem) -> str:
    need, has = estimate.required_bytes, format_bytes(budget, units)
    gap, verdict = format_bytes(abs(budget - need), units), verdict_of(estimate, budget)
    if verdict == "yes":
        return f"fits into {has} with {gap} to spare"
    if verdict == "close":
        left, share = "to spare" if need <= budget else "missing", percent_text(estimate.completing or 0)
        return (
            f"may fit into {has}, with {gap} {left}: {share} of the orders that TensorFlow may execute it in complete"
        )
    text = f"does not fit into {has}: {f'{gap} are missing' if need > budget else 'memory growth leaves it in pieces'}"
    if (failed := estimate.failure) is None:
        return text
    asked, shape = format_bytes(failed.requested_bytes or 0, units), shape_text(failed.shape or ())
    return f"{text}, and {PHASE_WORDS[failed.phase]} fails when {asked} ({shape or 'a scalar'}) are asked for"


def why(layers: Sequence[LayerPlan], profile: MemoryProfile, units: UnitSystem, most: int = 3) -> list[str]:
    """What holds most at a profile's peak, each in a sentence without a full stop, with its share of the peak."""
    names = {b.name: f"{a.name} {_ARROW} {b.name}" for a, b in pairwise(layers) if a.keras_class == "Flatten"}
    return [
        f"{names.get(each.layer, each.layer)}: {each.text(units)} "
        f"({percent_text(each.total_bytes / profile.peak_bytes)} of the peak)"
        for each in contributors(profile, most)
    ]


def optimizer_text(state: ExplorerState) -> str:
    """``adam``, or with what is switched on: ``adam (amsgrad, moving average)``."""
    knobs = knobs_of(state)
    options = [name.replace("_", " ") for name in OPTIMIZER_OPTIONS if knobs[name]]
    if knobs["accumulate"] > 1:
        options.append(f"gradients of {knobs['accumulate']} steps added up")
    name = "its own optimizer" if knobs["optimizer"] == ITS_OWN else knobs["optimizer"]
    return name + (f" ({', '.join(options)})" if options else "")


def dtype_text(state: ExplorerState) -> str:
    """``mixed_float16``, or that it is the network's own."""
    return state.setup.dtype_policy or "its own dtype"


def layer_card(layers: Sequence[LayerPlan], name: str, profile: MemoryProfile, units: UnitSystem) -> list[str]:
    """A layer in a few lines: shapes in and out, weights, what is kept for the backward pass and why, and the bytes."""
    row = profile.by_layer().loc[name]
    held = ", ".join(f"{category_text(str(c))} {format_bytes(size, units)}" for c, size in row.items() if size)
    at_peak = f"At the peak: {held or 'nothing'}."
    plan = next((layer for layer in layers if layer.name == name), None)
    if plan is None:
        return [f"{name}: no layer of the network.", at_peak]
    ends = [(plan.input_shape, "in"), (plan.output_shape, "out")]
    shapes = ", ".join(f"{shape_text(shape)} {end}" for shape, end in ends if shape) or "shapes are known when it runs"
    lines = [f"{name} ({plan.keras_class}): {shapes}, per example."]
    if plan.parameter_shapes:
        shapes = " and ".join(shape_text(shape) for shape in plan.parameter_shapes)
        lines.append(f"Weights: {shapes}, {plan.parameters:,} parameters.")
    kept = _kept(plan)
    return [*lines, *([f"Kept for the backward pass: {kept}."] if kept else []), at_peak]


def _kept(plan: LayerPlan) -> str:
    """Empty for a class of which it is not known."""
    activation = plan.arguments.get("activation")
    if plan.keras_class not in (*KEPT, "Activation"):
        return ""
    kept = [KEPT[plan.keras_class]] if plan.keras_class in KEPT else []
    if activation not in (None, "linear"):
        before = f"what goes into {activation}: the gradient of the activation is made from it"
        kept.append(before if activation in _FROM_THE_INPUT else _OF_THE_OUTPUT)
    return "; ".join(kept) or "nothing"


# A beside B


def changes(before: ExplorerState, after: ExplorerState) -> list[str]:
    """What the knobs say otherwise: ``optimizer adam -> sgd``, ``block 2 filters 16 -> 32``."""
    old, new = dict(_flat(knobs_of(before))), dict(_flat(knobs_of(after)))
    names = [name for name in dict.fromkeys([*old, *new]) if name not in DISPLAY and old.get(name) != new.get(name)]
    return [f"{category_text(n)} {old.get(n, 'none')} {_ARROW} {new.get(n, 'none')}" for n in names]


def _flat(knobs: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in knobs.items():
        if name != "blocks":
            yield name, value
            continue
        yield "blocks", len(value)
        for number, block in enumerate(value, start=1):
            for part, of_block in block.items():
                yield f"block {number} {part}", of_block


def compared(before: ExplorerState, was: Estimate, after: ExplorerState, now: Estimate) -> str:
    """A and B in one or two sentences: what each requires, what was changed, and where most of the difference lies."""
    units, more = after.units, now.required_bytes - was.required_bytes
    gap = "as much as A" if not more else f"{format_bytes(abs(more), units)} {'more' if more > 0 else 'less'} than A"
    changed = ", ".join(changes(before, after)) or "nothing"
    text = f"B needs {format_bytes(now.required_bytes, units)}, {gap}. Changed: {changed}."
    table = difference_table(*(e.phases[after.phase].profile or e.profile for e in (was, now)))
    cells = [(abs(size), size, row, column) for column in table for row, size in table[column].items()]
    _, size, layer, category = max(cells, key=lambda cell: cell[0])
    if not size:
        return text
    verb = "more" if size > 0 else "less"
    return f"{text} Most at the peak: {layer}, {category_text(str(category))}, {format_bytes(abs(size), units)} {verb}."


@dataclass(frozen=True, kw_only=True)
class TrialRun:
    """A trial as the panel knows it: what was asked, the estimate of just that, what came so far, how it ended."""

    state: ExplorerState
    steps: int = 0  # 0: none was begun
    record: bool = False
    estimate: Estimate | None = None
    events: tuple[TrialEvent, ...] = ()
    trial: Trial | None = None
    refused: str = ""  # why it could not start

    @property
    def steps_done(self) -> int:
        """Steps that have ended."""
        return sum(event.step is not None for event in self.events)

    @property
    def seconds_left(self) -> float | None:
        """By the time of the steady steps so far; None before there is one."""
        took = [event.step.seconds for event in self.events if event.step is not None][1:]
        return median(took) * (self.steps - self.steps_done) if took else None

    def error_of(self, phase: str) -> float | None:
        """(estimated - measured) / measured of a phase's peak, where both are known."""
        estimated = self.estimate.phases.get(phase) if self.estimate else None
        measured = self.trial.phases.get(phase) if self.trial else None
        return (estimated.peak_bytes - measured.peak_bytes) / measured.peak_bytes if estimated and measured else None


def trial_title(run: TrialRun, state: ExplorerState) -> str:
    """The trial figure's title: what was trained, and whether that is what the knobs say now."""
    if not run.steps:
        return "Estimate per phase, before any trial"
    network, setup = run.state.question
    what = f"{network.name}, {optimizer_text(run.state)}, batch {setup.batch_size:,}, {dtype_text(run.state)}"
    return f"Trial: {what}" if run.state.question == state.question else f"Earlier trial, not of these knobs: {what}"


def trial_sentence(run: TrialRun, units: UnitSystem) -> str:
    """How the trial stands, in one sentence."""
    if not run.steps:
        on = ", on handwritten digits" if isinstance(run.state.network, ConvNet) else ""
        return f"A trial trains this network for real{on}, in a child process."
    if run.refused:
        return f"The trial did not start. {run.refused}"
    if run.trial is not None:
        return _ended_sentence(run, run.trial, units)
    if not run.events or run.events[-1].phase == "import":
        return "TensorFlow is starting in a child process ..."
    phase, seconds = category_text(run.events[-1].phase).capitalize(), run.events[-1].seconds
    sizes = [0, *(e.bytes_in_use for e in run.events if e.kind in ("sample", "step"))]
    used = format_bytes(sizes[-1], units)
    losses = [e.step.loss for e in run.events if e.step is not None and e.step.loss is not None]
    more = [f"loss {losses[-1]:.3f}"] if losses else []
    more += [f"about {run.seconds_left:.0f} s left"] if run.seconds_left is not None else []
    return f"{', '.join([f'{phase}: {run.steps_done} of {run.steps} steps, {used} in use, {seconds:.0f} s', *more])}."


def _ended_sentence(run: TrialRun, trial: Trial, units: UnitSystem) -> str:
    if trial.error is not None:
        gone = " The child process is gone and its memory is free again." * (trial.status == "cancelled")
        alive = why(run.estimate.layers if run.estimate else (), trial.at_failure, units) if trial.at_failure else []
        return trial.error + gone + (f" Alive then: {'; '.join(alive)}." if alive else "")
    losses = [step.loss for step in trial.steps if step.loss is not None]
    fell = f" and the mean loss went from {losses[0]:.3f} to {losses[-1]:.3f}" if len(losses) > 1 else ""
    peak = f"steady peak {format_bytes(trial.peak_bytes, units)} measured" if trial.peak_bytes else "no steady peak"
    error = run.error_of("steady_step")
    off = "" if error is None else f", estimate off by {error_text(error)}"
    return f"Completed: {len(trial.steps)} steps, {peak}{off}{fell}. {trial.note}".rstrip()


def ending_text(run: TrialRun) -> str:
    """The words at the end of the measured line; empty where the trial completed or still runs."""
    status = run.trial.status if run.trial else "completed"
    return "" if status == "completed" else status.replace("_", " ")
