"""`memviz.estimate`: the memory of training, from the very graph TensorFlow will run, without allocating it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from memviz.estimation import executor
from memviz.estimation.allocator import BfcAllocator, OutOfMemoryError
from memviz.estimation.attribution import Owner, layers_of, owners, scopes_noted, variable_owners
from memviz.estimation.graph import step_graph
from memviz.estimation.initializers import is_modelled, recipe
from memviz.estimation.replay import Line, Training, Weight, run, script, survives
from memviz.estimation.result import Estimate
from memviz.models.abstract import abstract_weights, initializer_of
from memviz.models.network import Network
from memviz.models.training import batch_specs, build_slots, compiled_model, loss_name, step_function
from memviz.profile import OPTIMIZER, Category, MemoryProfile, Phase
from memviz.setup import TrainingSetup
from memviz.units import MIB, dtype_bytes

STEPS = 5  # as many as a trial runs by default; the steady step is the median of the third and later ones
RARE = 0.05  # the risk, per process, that required_bytes leaves out
_FIRST_REGION = 2 * MIB  # the reference device has one beside the region proper (measurement/device.py)
_ROOMY = 1 << 46  # more than any device has

_NOT_COUNTED = (
    "CUDA context, libraries and their workspaces, and what other processes hold on the card.",
    "Host memory: the data pipeline, Python, TensorFlow itself.",
)


@dataclass(frozen=True)
class Traced:
    """What does not depend on the budget. scripts: of the usual order of execution, and of the other extreme where that
    is likely enough to count.
    """

    scripts: Sequence[Sequence[Line]]
    layers: tuple[str, ...]
    loss: str
    not_counted: tuple[str, ...]


def estimate(
    network: Any,
    *,
    batch_size: int,
    optimizer: Any = "adam",
    loss: Any = None,
    dtype_policy: str | None = None,
    jit_compile: Any = "auto",
    inputs: Any = None,
    device: str | None = None,
    budget: int | str | None = None,
    memory_growth: bool = False,
) -> Estimate:
    """The estimated memory of training ``network``, in bytes of the allocator, without allocating it.

    network: a keras.Model, a function without arguments that returns one, or a ConvNet; it is left as it is.
    batch_size: examples per step. loss: None for the compiled loss, else one that suits the output. budget: bytes or
    text such as "9513 MiB". inputs: for subclassed models and unknown shapes, TensorSpecs or arrays of a batch.

    Raises ValueError or TypeError, in one sentence, for what is not possible: an unknown name, a network that cannot
    be built or traced, an input shape that is not known, XLA (jit_compile=True).
    Sources: the graph is TensorFlow's own (estimation/graph.py), the order executor.cc, the allocator bfc_allocator.cc.
    """
    setup = TrainingSetup.create(
        batch_size=batch_size, optimizer=optimizer, loss=loss, dtype_policy=dtype_policy, jit_compile=jit_compile,
        device=device, budget=budget, memory_growth=memory_growth, inputs=inputs,
    )  # fmt: skip
    return estimate_network(Network.of(network), setup)


def estimate_network(network: Network, setup: TrainingSetup) -> Estimate:
    """The estimate of a network under a setup; see `estimate`."""
    if setup.jit_compile is True:
        raise ValueError("jit_compile=True cannot be estimated yet; use jit_compile=False, or measure it.")
    traced = trace_training(network, setup)
    by_order = [_phases_within(traced, lines, setup, _ROOMY) or {} for lines in traced.scripts]
    usual = by_order[0]
    peaks = {name: sorted(phases[name].peak_bytes for phases in by_order) for name in usual}
    largest = max(usual.values(), key=lambda phase: phase.peak_bytes).name
    required = _required_bytes(traced, setup, max(max(found) for found in peaks.values()))
    if setup.budget_bytes is not None:
        # Within a budget the allocator finds other chunks; where it runs out, the phases are those without one.
        usual = _phases_within(traced, traced.scripts[0], setup, setup.budget_bytes) or usual
    return Estimate(
        usual, required, largest, traced.loss, {name: (found[0], found[-1]) for name, found in peaks.items()}
    )


def trace_training(network: Network, setup: TrainingSetup) -> Traced:
    """Build without storage, trace one step, and let TensorFlow optimize its graph. Nothing is allocated or executed.

    Raises ValueError where the network cannot be built or its step cannot be traced.
    """
    import tensorflow as tf

    with abstract_weights() as made, tf.device("CPU:0"):
        model = compiled_model(network, setup)
        built = len(made)
        specs = batch_specs(model, setup.batch_size, setup.inputs)
        build_slots(model)
        with scopes_noted(model) as scopes:
            concrete = _trace(model, specs)
        graph = step_graph(concrete)
        rows = variable_owners(model, made)
    number = {id(variable.value.handle): index for index, variable in enumerate(made)}
    variables = {argument: number[id(handle)] for argument, handle in graph.resources.items()}
    weights = [_weight(variable, rows[id(variable)]) for variable in made]
    by_argument = {argument: weights[index].owner.layer for argument, index in variables.items()}
    unknown = {type(initializer_of(v)).__name__ for v in made if not is_modelled(initializer_of(v))}
    training = Training(
        weights[:built],
        weights[built:],
        [_fed(spec) for spec in tf.nest.flatten(specs)],
        graph,
        owners(graph, scopes, by_argument),
    )
    tapes = [executor.run(graph, variables, last_argument_first=usual) for usual in _orders(weights)]
    return Traced(
        scripts=[script(training, tape, STEPS) for tape in tapes],
        layers=tuple(layer.name for layer in layers_of(model)),
        loss=loss_name(model),
        not_counted=_NOT_COUNTED + tuple(f"What the initializer {name} needs beside the weight." for name in unknown),
    )


def _orders(weights: Sequence[Weight]) -> tuple[bool, ...]:
    """Which orders of execution count (executor.execution_order): the usual one, and the other unless it is rare.

    With n weights and k scalars of the optimizer in any order, one of the scalars is the last with k in n + k.
    """
    scalars = sum(w.owner == Owner(OPTIMIZER, Category.OPTIMIZER_STATE) for w in weights)
    read = sum(w.owner.category in (Category.PARAMETER, Category.BUFFER) for w in weights)
    return (True, False) if scalars > RARE * (read + scalars) else (True,)


def _trace(model: Any, specs: Any) -> Any:
    try:
        return step_function(model).get_concrete_function(specs)
    except Exception as error:
        said = " ".join(str(error).split())
        raise ValueError(
            f"A training step of {model.name!r} cannot be traced: {type(error).__name__}: {said}"
        ) from error


def _weight(variable: Any, owner: Owner) -> Weight:
    shape, dtype = tuple(variable.shape), str(variable.dtype)
    nbytes = math.prod(shape) * dtype_bytes(dtype)
    return Weight(owner, nbytes, shape, dtype, variable.path, recipe(initializer_of(variable)))


def _fed(spec: Any) -> tuple[int, tuple[int, ...], str]:
    shape, dtype = tuple(spec.shape), spec.dtype.name
    return math.prod(shape) * dtype_bytes(dtype), shape, dtype


def _phases_within(
    traced: Traced, lines: Sequence[Line], setup: TrainingSetup, limit_bytes: int
) -> dict[str, Phase] | None:
    """The phases as the allocator would run them within a limit; None where it runs out of memory."""
    described = setup.describe() | {"loss": traced.loss}
    try:
        profiles = [
            MemoryProfile(phase, "estimated", allocations, traced.layers, described, traced.not_counted)
            for phase, allocations in run(lines, _allocator(setup, limit_bytes))
        ]
    except OutOfMemoryError:
        return None
    steady = sorted(profiles[3:], key=lambda profile: profile.peak_bytes)
    kept = (profiles[0], profiles[1], steady[len(steady) // 2])
    return {profile.phase: Phase(profile.phase, profile.peak_bytes, profile) for profile in kept}


def _allocator(setup: TrainingSetup, limit_bytes: int) -> BfcAllocator:
    regions = None if setup.memory_growth else (_FIRST_REGION, limit_bytes)
    return BfcAllocator(limit_bytes, regions)


def _required_bytes(traced: Traced, setup: TrainingSetup, peak_bytes: int) -> int:
    """The smallest one-region budget in which the modelled allocator survives every phase, to within 0.2 %."""

    def survived(limit_bytes: int) -> bool:
        return all(survives(lines, _allocator(setup, limit_bytes)) for lines in traced.scripts)

    low, high = peak_bytes - 1, peak_bytes
    while not survived(high):
        low, high = high, high + max(high // 16, MIB)
    while high - low > max(high // 500, 4096):
        middle = (low + high) // 2
        low, high = (low, middle) if survived(middle) else (middle, high)
    return high
