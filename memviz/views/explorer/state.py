"""What the explorer shows, as data: one frozen state, and pure functions from it to sentences. No widgets here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from memviz.advice.fits import verdict_of
from memviz.failure import PHASE_WORDS
from memviz.models import presets
from memviz.models.convnet import ConvBlock, ConvNet
from memviz.setup import REFERENCE, TrainingSetup
from memviz.units import GIB, MIB, UnitSystem, format_bytes, shape_text
from memviz.views.text import category_text, error_text, percent_text, range_text

if TYPE_CHECKING:
    from memviz.estimation.result import Estimate
    from memviz.measurement.result import Trial, TrialEvent

BUDGET_BYTES = 9513 * MIB  # the 9.29 GiB card of the founding question
NEEDED_FREE_BYTES = 11 * GIB  # what a trial of bird_audio under that budget asks of the host
CUSTOM = "your own"
DISPLAY = ("phase", "log", "units")  # the knobs that are the state's own; those below are as the record names them
SETUP = ("batch_size", "optimizer", "dtype_policy", "device", "memory_growth")
BLOCK = ("filters", "kernel", "strides", "batch_norm")


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
    notice = ""
    if network is None and free_bytes < NEEDED_FREE_BYTES:
        network = presets.bird_audio_pooled
        notice = (
            f"This machine has {format_bytes(free_bytes)} of memory free. A trial of bird_audio needs "
            f"{format_bytes(NEEDED_FREE_BYTES)}, so the panel opens on {network.name}; estimates work for any size."
        )
    network = network or presets.bird_audio
    policy = network.dtype_policy or "float32"
    setup = TrainingSetup(
        batch_size=1, optimizer="adam", dtype_policy=policy, device=REFERENCE, budget_bytes=BUDGET_BYTES
    )
    return ExplorerState(network=network, setup=setup), notice


def preset_name(network: ConvNet) -> str:
    """The preset that a network equals, else `CUSTOM`."""
    return next((name for name, preset in presets.ALL.items() if preset == network), CUSTOM)


def default_steps(network: ConvNet) -> int:
    """Steps of a trial that stays bearable: few for a network that needs seconds per step."""
    if network.parameters > 50_000_000:
        return 5
    return 20 if max(math.prod(layer.output_shape) for layer in network.plan) > 1_000_000 else 100


def knobs_of(state: ExplorerState) -> dict[str, Any]:
    """The controls' values for a state, the budget as text, a pooling as ``none``, ``max 2``, ``average 4``."""
    network, setup, budget = *state.question, state.setup.budget_bytes
    height, width, channels = network.input_shape
    return {
        "height": height, "width": width, "channels": channels,
        "blocks": [
            {name: getattr(block, name) for name in BLOCK}
            | {"pooling": f"{block.pooling} {block.pool_size}" if block.pooling else "none"}
            for block in network.blocks
        ],
        "head": network.head, "dense": network.dense[0] if network.dense else 0, "outputs": network.outputs,
        "budget": f"{budget // MIB} MiB" if budget and budget % MIB == 0 else f"{budget} B" if budget else "",
        **{name: getattr(setup, name) for name in SETUP},
        **{name: getattr(state, name) for name in DISPLAY},
    }  # fmt: skip


def state_of(knobs: Mapping[str, Any], base: ConvNet) -> ExplorerState:
    """The state for the controls' values. What no knob sets (padding, dropout, ...) stays as in ``base``.

    Raises ValueError in words for people where a value is not possible.
    """
    network = replace(
        base,
        input_shape=(knobs["height"], knobs["width"], knobs["channels"]),
        blocks=tuple(_block(values, base.blocks[: i + 1]) for i, values in enumerate(knobs["blocks"])),
        head=knobs["head"],
        dense=((knobs["dense"],) if knobs["dense"] else ()) + base.dense[1:],
        outputs=knobs["outputs"],
        dtype_policy=None,
    )
    setup = TrainingSetup.create(budget=knobs["budget"].strip() or None, **{name: knobs[name] for name in SETUP})
    return ExplorerState(network=network, setup=setup, **{name: knobs[name] for name in DISPLAY})


def _block(values: Mapping[str, Any], bases: Sequence[ConvBlock]) -> ConvBlock:
    """A row's block: the base's own in its place or, in a new row, another like the last one."""
    base = bases[-1] if bases else ConvBlock(filters=16)
    kind, _, size = values["pooling"].partition(" ")
    pooling = {"pooling": kind, "pool_size": int(size)} if size else {"pooling": None}
    return replace(base, **{**values, **pooling})


def verdict(state: ExplorerState, estimate: Estimate) -> str:
    """One sentence: what training needs, which phase decides, whether it fits, and what dominates."""
    need, budget, units = estimate.required_bytes, state.setup.budget_bytes, state.units
    decides, network = estimate.phases[estimate.largest_phase], state.network
    lies = range_text(*estimate.peak_ranges.get(decides.name, (0, 0)), units)
    text = (
        f"Training these {network.parameters:,} parameters with {state.setup.optimizer} and batch "
        f"{state.setup.batch_size:,} needs {format_bytes(need, units)}, fragmentation included (the "
        f"{category_text(decides.name)} decides{f'; peak {lies}' if lies else ''})"
    )
    if budget is not None:
        text += f" and {_fit(estimate, budget, units)}"
    held = (decides.profile or estimate.profile).by_category()
    largest = f"{category_text(str(held.idxmax()))} is {percent_text(held.max() / held.sum())} of that peak"
    layer = max(network.plan, key=lambda each: each.parameters)
    flattened = network.plan[network.plan.index(layer) - 1].name == "flatten"
    name = f"flatten \N{RIGHTWARDS ARROW} {layer.name}" if flattened else layer.name
    share = percent_text(layer.parameters / network.parameters)
    return f"{text}; {largest}, and {name} ({layer.formula}) holds {share} of the parameters."


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


@dataclass(frozen=True, kw_only=True)
class TrialRun:
    """A trial as the panel knows it: what was asked, the estimate of just that, what came so far, how it ended."""

    state: ExplorerState
    steps: int = 0  # 0: none was begun
    estimate: Estimate | None = None
    events: tuple[TrialEvent, ...] = ()
    trial: Trial | None = None
    refused: str = ""  # why it could not start

    @property
    def steps_done(self) -> int:
        """Steps that have ended."""
        return sum(event.step is not None for event in self.events)

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
    what = f"{network.name}, {setup.optimizer}, batch {setup.batch_size:,}, {setup.dtype_policy}"
    return f"Trial: {what}" if run.state.question == state.question else f"Earlier trial, not of these knobs: {what}"


def trial_sentence(run: TrialRun, units: UnitSystem) -> str:
    """How the trial stands, in one sentence."""
    if not run.steps:
        return "A trial trains this network for real, on handwritten digits, in a child process."
    if run.refused:
        return f"The trial did not start. {run.refused}"
    if run.trial is not None:
        return _ended_sentence(run, run.trial, units)
    if not run.events or run.events[-1].phase == "import":
        return "TensorFlow is starting in a child process ..."
    phase, seconds = category_text(run.events[-1].phase).capitalize(), run.events[-1].seconds
    sizes = [0, *(e.bytes_in_use for e in run.events if e.kind in ("sample", "step"))]
    used = format_bytes(sizes[-1], units)
    return f"{phase}: {run.steps_done} of {run.steps} steps, {used} in use, {seconds:.0f} s."


def _ended_sentence(run: TrialRun, trial: Trial, units: UnitSystem) -> str:
    if trial.error is not None:
        gone = " The child process is gone and its memory is free again."
        return trial.error + gone * (trial.status == "cancelled")
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
