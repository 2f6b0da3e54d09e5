"""What the explorer shows, as data: one frozen state, and pure functions from it to sentences. No widgets here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from memviz.models import presets
from memviz.models.convnet import ConvBlock, ConvNet
from memviz.profile import Phase
from memviz.setup import REFERENCE, TrainingSetup
from memviz.units import GIB, MIB, UnitSystem, format_bytes, parse_bytes
from memviz.views.text import PHASE_TEXT, category_text, error_text, percent_text

if TYPE_CHECKING:
    from memviz.estimation.result import Estimate
    from memviz.measurement.trial import Trial, TrialEvent

BUDGET_BYTES = 9513 * MIB  # the 9.29 GiB card of the founding question
NEEDED_FREE_BYTES = 11 * GIB  # what a trial of bird_audio under that budget asks of the host
CUSTOM = "your own"


@dataclass(frozen=True, kw_only=True)
class ExplorerState:
    """A network, how it is trained, and how that is displayed. Every change is a new value."""

    network: ConvNet
    setup: TrainingSetup
    phase: str = "steady_step"  # whose peak the bars show
    log: bool = False
    units: UnitSystem = "binary"

    @property
    def question(self) -> tuple[ConvNet, TrainingSetup]:
        """What an estimate or a trial is asked; the rest of the state is display."""
        return self.network, self.setup


def opening_state(network: ConvNet | None, free_bytes: int) -> tuple[ExplorerState, str]:
    """The first state, and a sentence where it is not the usual one because the host has little memory free."""
    setup = TrainingSetup(batch_size=1, dtype_policy="float32", device=REFERENCE, budget_bytes=BUDGET_BYTES)
    if network is not None:
        return ExplorerState(network=network, setup=replace(setup, dtype_policy=network.dtype_policy or "float32")), ""
    if free_bytes >= NEEDED_FREE_BYTES:
        return ExplorerState(network=presets.bird_audio, setup=setup), ""
    notice = (
        f"This machine has {format_bytes(free_bytes)} of memory free. A trial of bird_audio needs "
        f"{format_bytes(NEEDED_FREE_BYTES)}, so the panel opens on bird_audio_pooled; estimates of any size still work."
    )
    return ExplorerState(network=presets.bird_audio_pooled, setup=setup), notice


def preset_name(network: ConvNet) -> str:
    """The preset that a network equals, else `CUSTOM`."""
    return next((name for name, preset in presets.ALL.items() if preset == network), CUSTOM)


def default_steps(network: ConvNet) -> int:
    """Steps of a trial that stays bearable: few for a network that needs seconds per step."""
    if network.parameters > 50_000_000:
        return 5
    return 20 if max(math.prod(layer.output_shape) for layer in network.plan) > 1_000_000 else 100


def knobs_of(state: ExplorerState) -> dict[str, Any]:
    """The controls' values for a state."""
    network, setup = state.question
    height, width, channels = network.input_shape
    return {
        "height": height, "width": width, "channels": channels,
        "blocks": [_block_knobs(block) for block in network.blocks],
        "head": network.head, "dense": network.dense[0] if network.dense else 0, "outputs": network.outputs,
        "dtype_policy": setup.dtype_policy, "batch_size": setup.batch_size, "optimizer": setup.optimizer,
        "budget": budget_text(setup.budget_bytes), "memory_growth": setup.memory_growth, "device": setup.device,
        "phase": state.phase, "log": state.log, "units": state.units,
    }  # fmt: skip


def state_of(knobs: Mapping[str, Any], base: ConvNet) -> ExplorerState:
    """The state for the controls' values. What no knob sets (padding, dropout, ...) stays as in ``base``.

    Raises ValueError in words for people where a value is not possible.
    """
    network = replace(
        base,
        input_shape=(knobs["height"], knobs["width"], knobs["channels"]),
        blocks=tuple(_block(values, _block_below(base, i)) for i, values in enumerate(knobs["blocks"])),
        head=knobs["head"],
        dense=((knobs["dense"],) if knobs["dense"] else ()) + base.dense[1:],
        outputs=knobs["outputs"],
        dtype_policy=None,
    )
    setup = TrainingSetup(
        batch_size=knobs["batch_size"], optimizer=knobs["optimizer"], dtype_policy=knobs["dtype_policy"],
        device=knobs["device"], memory_growth=knobs["memory_growth"],
        budget_bytes=parse_bytes(knobs["budget"]) if knobs["budget"].strip() else None,
    )  # fmt: skip
    return ExplorerState(network=network, setup=setup, phase=knobs["phase"], log=knobs["log"], units=knobs["units"])


def budget_text(budget_bytes: int | None) -> str:
    """A budget as it is typed: ``9513 MiB``; empty for none."""
    if budget_bytes is None:
        return ""
    return f"{budget_bytes} B" if budget_bytes % MIB else f"{budget_bytes // MIB} MiB"


def pooling_text(pooling: str | None, pool_size: int) -> str:
    """A block's pooling as one choice: ``none``, ``max 2``, ``average 4``."""
    return f"{pooling} {pool_size}" if pooling else "none"


def _block_knobs(block: ConvBlock) -> dict[str, Any]:
    pooling = pooling_text(block.pooling, block.pool_size)
    return {"filters": block.filters, "kernel": block.kernel, "strides": block.strides, "pooling": pooling,
            "batch_norm": block.batch_norm}  # fmt: skip


def _block(values: Mapping[str, Any], base: ConvBlock) -> ConvBlock:
    kind, _, size = values["pooling"].partition(" ")
    pooling = {"pooling": None} if kind == "none" else {"pooling": kind, "pool_size": int(size)}
    return replace(base, **{**values, **pooling})


def _block_below(base: ConvNet, index: int) -> ConvBlock:
    """The block a knob row changes; a new row continues the last one."""
    return base.blocks[min(index, len(base.blocks) - 1)] if base.blocks else ConvBlock(filters=16)


def verdict(state: ExplorerState, estimate: Estimate) -> str:
    """One sentence: what training needs, which phase decides, whether it fits, and what dominates."""
    need, budget, units = estimate.required_bytes, state.setup.budget_bytes, state.units
    text = (
        f"Training these {state.network.parameters:,} parameters with {state.setup.optimizer} and batch "
        f"{state.setup.batch_size:,} needs {format_bytes(need, units)} (the {PHASE_TEXT[estimate.largest_phase]} "
        "decides)"
    )
    if budget is not None:
        gap = format_bytes(abs(budget - need), units)
        room = f"fits into {format_bytes(budget, units)} with {gap} to spare"
        lack = f"does not fit into {format_bytes(budget, units)}: {gap} are missing"
        text += f" and {room if need <= budget else lack}"
    return f"{text}; {_dominant(estimate)}, and {_weightiest(state.network)}."


def need_sentence(estimate: Estimate, units: UnitSystem) -> str:
    """Why the verdict's number may lie above every peak."""
    need = format_bytes(estimate.required_bytes, units)
    return f"The smallest budget in which every phase completes, fragmentation included: {need} (estimated)."


def fits(state: ExplorerState, estimate: Estimate) -> bool | None:
    """Whether the budget holds what training needs; None without a budget."""
    budget = state.setup.budget_bytes
    return None if budget is None else estimate.required_bytes <= budget


def _dominant(estimate: Estimate) -> str:
    """``optimizer state is 40.0 % of that peak``, for the phase that decides."""
    profile = estimate.phases[estimate.largest_phase].profile or estimate.profile
    categories = profile.by_category()
    share = percent_text(categories.max() / profile.peak_bytes)
    return f"{category_text(str(categories.idxmax()))} is {share} of that peak"


def _weightiest(network: ConvNet) -> str:
    """``flatten -> dense1 (6,019,376 x 128) holds 99.99 % of the parameters``."""
    layers = network.plan
    place = max(range(len(layers)), key=lambda i: layers[i].parameters)
    layer, before = layers[place], layers[place - 1].name if place else ""
    name = f"{before} \N{RIGHTWARDS ARROW} {layer.name}" if before == "flatten" else layer.name
    share = percent_text(layer.parameters / network.parameters)
    return f"{name} ({layer.formula}) holds {share} of the parameters"


@dataclass(frozen=True, kw_only=True)
class TrialRun:
    """A trial as the panel knows it: what was asked, the estimate of just that, what came so far, how it ended."""

    state: ExplorerState
    steps: int
    estimate: Estimate | None = None
    events: tuple[TrialEvent, ...] = ()
    trial: Trial | None = None
    refused: str = ""  # why it could not start

    @property
    def running(self) -> bool:
        """Whether the trial has neither ended nor been refused."""
        return self.trial is None and not self.refused

    @property
    def steps_done(self) -> int:
        """Steps that have ended."""
        return sum(1 for event in self.events if event.step is not None)

    def measured(self) -> Mapping[str, Phase]:
        """Phases whose peak is known; while the trial runs, none yet."""
        return {} if self.trial is None else self.trial.phases

    def error_of(self, phase: str) -> float | None:
        """(estimated - measured) / measured of a phase's peak, where both are known."""
        if self.estimate is None or phase not in self.measured() or phase not in self.estimate.phases:
            return None
        measured = self.measured()[phase].peak_bytes
        return (self.estimate.phases[phase].peak_bytes - measured) / measured


def trial_title(run: TrialRun | None, state: ExplorerState) -> str:
    """The trial figure's title: what was trained, and whether that is what the knobs say now."""
    if run is None or run.refused:
        return "Estimate per phase, before any trial"
    network, setup = run.state.question
    what = f"{network.name}, {setup.optimizer}, batch {setup.batch_size:,}, {setup.dtype_policy}"
    return f"Trial: {what}" if run.state.question == state.question else f"Earlier trial, not of these knobs: {what}"


def trial_sentence(run: TrialRun | None, units: UnitSystem) -> str:
    """How the trial stands, in one sentence."""
    if run is None:
        return "A trial trains this network for real, on handwritten digits, in a child process."
    if run.refused:
        return f"The trial did not start. {run.refused}"
    if run.trial is None:
        return _running_sentence(run, units)
    return _ended_sentence(run, run.trial, units)


def _running_sentence(run: TrialRun, units: UnitSystem) -> str:
    if not run.events or run.events[-1].phase == "import":
        return "TensorFlow is starting in a child process ..."
    last = run.events[-1]
    used = next((e.bytes_in_use for e in reversed(run.events) if e.kind in ("sample", "step")), 0)
    phase = PHASE_TEXT.get(last.phase, last.phase).capitalize()
    return f"{phase}: {run.steps_done} of {run.steps} steps, {format_bytes(used, units)} in use, {last.seconds:.0f} s."


def _ended_sentence(run: TrialRun, trial: Trial, units: UnitSystem) -> str:
    if trial.status == "cancelled":
        return "Cancelled; the child process is gone and its memory is free again."
    if trial.status != "completed":
        return trial.error or f"{trial.status.replace('_', ' ').capitalize()}."
    losses = [step.loss for step in trial.steps if step.loss is not None]
    fell = f" and the loss went from {losses[0]:.3f} to {losses[-1]:.3f}" if len(losses) > 1 else ""
    peak = f"steady peak {format_bytes(trial.peak_bytes, units)} measured" if trial.peak_bytes else "no steady peak"
    error = run.error_of("steady_step")
    off = "" if error is None else f", estimate off by {error_text(error)}"
    return f"Completed: {len(trial.steps)} steps, {peak}{off}{fell}."


def ending_text(run: TrialRun | None) -> str:
    """The words at the end of the measured line; empty where the trial completed or still runs."""
    if run is None or run.trial is None or run.trial.status == "completed":
        return ""
    return run.trial.status.replace("_", " ")
