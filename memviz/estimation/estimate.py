"""The memory of training, from the very graph TensorFlow will run, without allocating it. Runs in `worker`."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, TypeVar

from memviz.estimation.allocator import BfcAllocator
from memviz.estimation.assignment import ARENA, blocks, compile_step, divided
from memviz.estimation.attribution import Owner, owners, plans_of, scopes_noted, variable_owners
from memviz.estimation.branches import has_branches
from memviz.estimation.budget import ROOMY, Requests, completing, most_used, one_region, requests, required_bytes
from memviz.estimation.executor import execute
from memviz.estimation.folding import folded
from memviz.estimation.graph import CONDITIONALS_AND_LOOPS, StepGraph, has_loops, is_call, step_graph
from memviz.estimation.initializers import is_modelled, recipe
from memviz.estimation.replay import Line, RanOutError, Step, Training, Weight, of_training, peaks, run, script
from memviz.estimation.result import Estimate
from memviz.failure import COMPILED_STEP, Failure
from memviz.models.abstract import abstract_weights, initializer_of
from memviz.models.convnet import LayerPlan
from memviz.models.network import Network, in_a_line
from memviz.models.training import batch_specs, build_slots, compiled_model, step_function, trained_with
from memviz.profile import NOT_COUNTED, TRAINING_PHASES, Allocation, Category, MemoryProfile, Phase, Source
from memviz.setup import INFERENCE, INFERENCE_BATCH, REFERENCE, TrainingSetup
from memviz.units import tensor_bytes

T = TypeVar("T")
STEPS = 5  # as many as a trial runs by default; the steady step is the median of the third and later ones
# How many orders of execution are played unless told otherwise: as many as come to so many nodes, within these ends.
_FEWEST_ORDERS, _MOST_ORDERS, _ORDERED_NODES = 5, 15, 20_000
_OF_A_GPU = (
    "What the kernels of a GPU take beside their outputs, such as cuDNN's workspaces. The graph is the one that is "
    "optimized for a CPU, in the order of a GPU; this is not verified on hardware.",
)
_GPU_WITHOUT_XLA = (
    "What XLA would change: on a GPU Keras compiles most networks with it (jit_compile='auto'), and this is the step "
    "without it."
)
_IN_LOOPS = (
    "In which order TensorFlow comes to run a loop, beyond the range: it measures how long kernels take, so that the "
    "peak of a small recurrent network can differ by a third from run to run.",
)
_SMALL = 4096  # what an unknown initializer does for a weight of so few bytes is not worth a word


@dataclass(frozen=True)
class Traced:
    """What does not depend on the budget. orders: how many orders of execution are played."""

    training: Training
    orders: int
    layers: tuple[LayerPlan, ...]
    trained_with: Mapping[str, object]
    not_counted: tuple[str, ...]
    _peaks: dict[tuple[bool, bool], list[dict[str, int]]] = field(default_factory=dict, init=False)

    @cached_property
    def scripts(self) -> Sequence[Sequence[Line]]:
        """One for each order, on the reference device; where there are conditionals, one of the smaller branches."""
        return self._scripts(gpu=False)

    @cached_property
    def scripts_of_gpu(self) -> Sequence[Sequence[Line]]:
        """One for each order, on a GPU."""
        return self._scripts(gpu=True)

    @cached_property
    def requests(self) -> Sequence[Requests]:
        """The training's part of each script, as plain numbers."""
        return [requests(of_training(lines)) for lines in self.scripts]

    @cached_property
    def requests_of_gpu(self) -> Sequence[Requests]:
        """The same, on a GPU."""
        return [requests(of_training(lines)) for lines in self.scripts_of_gpu]

    @cached_property
    def required(self) -> int:
        """See `Estimate.required_bytes`; on the reference device."""
        return required_bytes(self.scripts)

    @cached_property
    def required_of_gpu(self) -> int:
        """The same, on a GPU."""
        return required_bytes(self.scripts_of_gpu)

    def peaks(self, setup: TrainingSetup) -> list[dict[str, int]]:
        """Each order's peak per phase where there is all the room; a budget changes none of them."""
        key = _is_gpu(setup), setup.memory_growth
        if key not in self._peaks:
            tried = (peaks(lines, _allocator(setup, ROOMY)) for lines in _scripts(self, setup))
            self._peaks[key] = [_one_each(found, int) for found in tried]
        return self._peaks[key]

    def _scripts(self, gpu: bool) -> Sequence[Sequence[Line]]:
        weights = [*self.training.weights, *self.training.slots]
        played = partial(execute, weights=weights, gpu=gpu)
        orders = [partial(played, seed=number) for number in range(self.orders)]
        if has_loops(self.training.step.graph.nodes):
            orders += [partial(played, seed=number, cheap_lists=True) for number in range(self.orders // 2)]
        if has_branches(self.training.step.graph.nodes):
            orders.append(partial(played, smaller=True))
        return [script(self.training, order, STEPS, gpu) for order in orders]


def estimate_traced(traced: Traced, setup: TrainingSetup) -> Estimate:
    """The estimate within a setup's budget, of what was traced under this setup or one with another budget."""
    scripts = _scripts(traced, setup)
    by_order = traced.peaks(setup)
    ranges = {phase: (min(p[phase] for p in by_order), max(p[phase] for p in by_order)) for phase in by_order[0]}
    by_peak = sorted(zip(by_order, scripts, strict=True), key=lambda pair: pair[0]["steady_step"])
    orders = [lines for _, lines in by_peak]
    orders.insert(0, orders.pop(len(orders) // 2))  # the usual one first
    phases = _phases_within(traced, orders[0], setup, ROOMY)
    largest = max(TRAINING_PHASES, key=lambda phase: sum(found[phase] for found in by_order))
    required = traced.required_of_gpu if _is_gpu(setup) else traced.required
    failure, alive, share = None, None, None
    if setup.budget_bytes is not None:
        share = _share(traced, setup, setup.budget_bytes)
        # A larger budget can be in pieces where a smaller one is not.
        tried = orders if required <= setup.budget_bytes else orders[:1]
        within, ran_out = _first_that_fits(traced, tried, setup, setup.budget_bytes)
        phases = within or phases
        if ran_out is not None:
            failure = _failure(ran_out, setup.budget_bytes)
            alive = _profile(traced, setup, ran_out.phase, ran_out.alive)
    return Estimate(
        phases, required, largest, str(traced.trained_with["loss"]), ranges, share, traced.layers, failure, alive
    )


def probed(traced: Traced, setup: TrainingSetup) -> tuple[float, int]:
    """The share of the orders that complete within a setup's budget, and the bytes they use where there is all the
    room: what a search asks again and again. Raises ValueError where the setup has no budget.
    """
    if setup.budget_bytes is None:
        raise ValueError("Without a budget everything fits; give budget=, or a card as device=.")
    _scripts(traced, setup)
    used = most_used(_requests(traced, setup), partial(BfcAllocator, ROOMY, (ROOMY,)))
    return _share(traced, setup, setup.budget_bytes), used


def _share(traced: Traced, setup: TrainingSetup, limit_bytes: int) -> float:
    return completing(_requests(traced, setup), partial(_allocator, setup, limit_bytes))


def _requests(traced: Traced, setup: TrainingSetup) -> Sequence[Requests]:
    return traced.requests_of_gpu if _is_gpu(setup) else traced.requests


def _scripts(traced: Traced, setup: TrainingSetup) -> Sequence[Sequence[Line]]:
    if traced.training.step.blocks and _is_gpu(setup):
        raise ValueError(
            f"What XLA would do for {setup.device} is not known here: it was compiled for the CPU. Use "
            "jit_compile=False for the estimate without XLA, or device='reference'."
        )
    return traced.scripts_of_gpu if _is_gpu(setup) else traced.scripts


def _first_that_fits(
    traced: Traced, orders: Sequence[Sequence[Line]], setup: TrainingSetup, limit_bytes: int
) -> tuple[dict[str, Phase], RanOutError | None]:
    """The phases of the first order that does not run out within a limit; where all do, none, and how the first did."""
    first = None
    for lines in orders:
        try:
            return _phases_within(traced, lines, setup, limit_bytes), None
        except RanOutError as error:
            first = first or error
    return {}, first


def trace_training(
    network: Network, setup: TrainingSetup, inference: bool = False, orders: int | None = None
) -> Traced:
    """Build without storage, trace one step, and let TensorFlow optimize its graph. Nothing is allocated or executed.

    inference: also a step of evaluating and one of predicting, with Keras' own batch of 32. orders: how many orders of
    execution are played (executor.py), by default as many as take a bearable time.
    Raises ValueError where the network cannot be built or its step cannot be traced. What depends on the budget, on
    memory growth or on the device's name is not in it.
    """
    import tensorflow as tf

    with abstract_weights() as made, tf.device("CPU:0"):
        model = compiled_model(network, setup)
        built = len(made)
        build_slots(model)
        graphs = {"train": _traced_step(model, "train", setup, setup.batch_size, made)}
        # Another compilation each; what they need is not asked for often.
        for phase, kind in INFERENCE.items() if inference and not model.jit_compile else ():
            with suppress(ValueError):  # what only trains has no such phases
                graphs[phase] = _traced_step(model, kind, setup, INFERENCE_BATCH, made)
        rows = variable_owners(model, made)
    number = {id(variable.value.handle): index for index, variable in enumerate(made)}
    weights = [_weight(variable, rows[id(variable)]) for variable in made]
    steps = {phase: _step(*traced, number, weights) for phase, traced in graphs.items()}
    training = Training(weights[:built], weights[built:], steps.pop("train"), steps)
    large = [initializer_of(v) for v, w in zip(made, weights, strict=True) if w.nbytes > _SMALL]
    unknown = {type(initializer).__name__ for initializer in large if not is_modelled(initializer)}
    nodes = training.step.graph.nodes
    if whole := [node.name for node in nodes if node.op in CONDITIONALS_AND_LOOPS]:
        raise ValueError(
            f"{whole[0]}, a conditional or a loop, stands in a function that TensorFlow runs on its own, so that there "
            "is no estimate; memviz.measure trains and measures it."
        )
    calls = [node.name for node in nodes if is_call(node)]
    return Traced(
        training=training,
        orders=(orders or max(_FEWEST_ORDERS, min(_MOST_ORDERS, _ORDERED_NODES // len(nodes)))) if nodes else 1,
        layers=plans_of(model),
        trained_with=trained_with(model, setup),
        not_counted=(
            *NOT_COUNTED,
            *(f"What the initializer {name} needs beside the weight." for name in unknown),
            *(f"What {name} holds while it runs: a function compiled on its own." for name in calls),
            *(_IN_LOOPS if has_loops(nodes) else ()),
        ),
    )


def _traced_step(
    model: Any, kind: str, setup: TrainingSetup, batch_size: int, made: Sequence[Any]
) -> tuple[Any, Any, Any, int]:
    """The graph of a step, or XLA's program of it, what is fed to it, the name scopes it was traced in, and how many
    bytes TensorFlow keeps of the tracing.
    """
    specs = batch_specs(model, batch_size, setup.inputs, setup.sample_weight)[: 1 if kind == "predict" else None]
    try:
        with scopes_noted(model) as scopes:
            step = step_function(model, kind)
            with _no_garbage_collected():
                before = _in_use()
                concrete = step.get_concrete_function(specs)
                kept = _in_use() - before
            if model.jit_compile:
                return compile_step(step, specs, made), specs, scopes, kept
    except Exception as error:
        name = {"train": "training", "test": "evaluation", "predict": "prediction"}[kind]
        raise ValueError(
            f"A {name} step of {model.name!r} cannot be traced: {type(error).__name__}: {in_a_line(error)}"
        ) from error
    return folded(step_graph(concrete)), specs, scopes, kept


@contextmanager
def _no_garbage_collected() -> Iterator[None]:
    """What was held before goes meanwhile only by itself."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _in_use() -> int:
    """Bytes that TensorFlow holds on the CPU; 0 where it does not count them, as it does in `service`'s child."""
    import tensorflow as tf

    with suppress(ValueError):
        return tf.config.experimental.get_memory_info("CPU:0")["current"]
    return 0


def _step(
    graph: Any, specs: Any, scopes: Mapping[str, str], kept: int, number: Mapping[int, int], weights: Sequence[Weight]
) -> Step:
    import tensorflow as tf

    fed = [_fed(spec) for spec in tf.nest.flatten(specs)]
    if not isinstance(graph, StepGraph):
        shapes = [(w.owner.layer, w.shape) for w in weights if w.owner.category == Category.PARAMETER]
        return Step(fed, StepGraph((), {}, {}), {}, (), kept, blocks(graph, scopes, shapes))
    variables = {argument: number[id(handle)] for argument, handle in graph.resources.items()}
    by_argument = {argument: weights[index].owner.layer for argument, index in variables.items()}
    return Step(fed, graph, variables, owners(graph, scopes, by_argument), kept)


def _weight(variable: Any, owner: Owner) -> Weight:
    shape, dtype = tuple(variable.shape), str(variable.dtype)
    return Weight(
        owner, tensor_bytes(shape, dtype), shape, dtype, variable.path, recipe(initializer_of(variable), shape, dtype)
    )


def _fed(spec: Any) -> tuple[int, tuple[int, ...], str]:
    shape, dtype = tuple(spec.shape), spec.dtype.name
    return tensor_bytes(shape, dtype), shape, dtype


def _phases_within(traced: Traced, lines: Sequence[Line], setup: TrainingSetup, limit_bytes: int) -> dict[str, Phase]:
    """The phases as the allocator would run them within a limit. Raises RanOutError."""
    profiles = [_profile(traced, setup, *phase) for phase in run(lines, _allocator(setup, limit_bytes))]
    phases = [(profile.phase, Phase(profile.phase, profile.peak_bytes, profile)) for profile in profiles]
    return _one_each(phases, lambda phase: phase.peak_bytes)


def _profile(traced: Traced, setup: TrainingSetup, phase: str, allocations: tuple[Allocation, ...]) -> MemoryProfile:
    within = ("batch_size", "device", "budget_bytes", "memory_growth")
    described = {**traced.trained_with, **{name: getattr(setup, name) for name in within}}
    not_counted = (*traced.not_counted, *(_OF_A_GPU if _is_gpu(setup) else ()))
    if _is_gpu(setup) and setup.jit_compile == "auto":
        not_counted += (_GPU_WITHOUT_XLA,)
    planned = traced.training.step.blocks if phase != "build" else ()
    rows = tuple(layer.name for layer in traced.layers)
    source: Source = "compiled" if planned else "estimated"
    return MemoryProfile(phase, source, tuple(divided(allocations, planned)), rows, described, not_counted)


def _is_gpu(setup: TrainingSetup) -> bool:
    return setup.device not in (None, REFERENCE)


def _failure(error: RanOutError, limit_bytes: int) -> Failure:
    purpose = error.wanted.purpose
    assert purpose is not None
    shape = purpose.shape
    weights = {a.shape: a.op for a in error.alive if a.category == Category.PARAMETER and len(shape or ()) > 1}
    op = COMPILED_STEP if purpose.op.startswith(ARENA) else purpose.op
    return Failure(
        error.phase, op, shape, purpose.dtype, error.wanted.nbytes, limit_bytes, error.in_graph,
        weights.get(shape, ""), error.in_use_bytes, min(error.free_bytes, limit_bytes), error.largest_free_bytes,
    )  # fmt: skip


def _one_each(runs: Sequence[tuple[str, T]], peak: Callable[[T], int]) -> dict[str, T]:
    """By phase; of the steady steps the median of the third and later steps, by its peak."""
    steady = sorted((run for phase, run in runs[3:] if phase == "steady_step"), key=peak)
    return dict(runs) | {"steady_step": steady[len(steady) // 2]}


def _allocator(setup: TrainingSetup, limit_bytes: int) -> BfcAllocator:
    return BfcAllocator(limit_bytes, None) if setup.memory_growth else one_region(limit_bytes)
