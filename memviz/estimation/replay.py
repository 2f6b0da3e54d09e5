"""Training as one script of requests, phase by phase, and its run against the modelled allocator."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from memviz.estimation.allocator import ALIGNMENT, BfcAllocator, OutOfMemoryError
from memviz.estimation.attribution import Owner
from memviz.estimation.branches import SWITCHES, Branches, branches
from memviz.estimation.graph import StepGraph
from memviz.estimation.initializers import NUMBER, WEIGHT
from memviz.estimation.kernels import NOT_ON_DEVICE, SCATTERS
from memviz.estimation.loops import BOUNDARIES
from memviz.failure import BATCH
from memviz.profile import INPUT, TRAINING_PHASES, UNATTRIBUTED, Allocation, Category
from memviz.units import tensor_bytes

if TYPE_CHECKING:
    from memviz.estimation.assignment import Block

KEPT = "what tracing keeps"
_HANDLE_BYTES = 200  # recorded: what VarHandleOp takes for the handle itself, on the CPU


class Say(IntEnum):
    """What a line of the script says about the memory held under its key."""

    PHASE = 0  # a phase begins; the key is its name
    ALLOCATE = 1
    RELEASE = 2
    RENAME = 3  # from here on the same memory is held under `new_key`, for another purpose


class Purpose(NamedTuple):
    """What memory is held for."""

    owner: Owner
    op: str
    shape: tuple[int, ...] | None
    dtype: str


class Line(NamedTuple):
    """One line of a script. Sizes in requested bytes."""

    say: Say
    key: Hashable
    nbytes: int = 0
    purpose: Purpose | None = None
    new_key: Hashable = None


@dataclass(frozen=True)
class Weight:
    """One variable: its storage, whose it is, and what its initializer does (initializers.recipe)."""

    owner: Owner
    nbytes: int
    shape: tuple[int, ...]
    dtype: str
    path: str
    recipe: tuple[str, ...]


@dataclass(frozen=True)
class Step:
    """A graph that is run per batch. batch: (bytes, shape, dtype) of what is fed. variables: argument number of a
    resource -> its place among the weights and slots. owners: per node of the graph. kept_bytes: what TensorFlow
    keeps of the tracing. blocks: where XLA compiles the step, which then has no graph, what a run allocates.
    """

    batch: Sequence[tuple[int, tuple[int, ...], str]]
    graph: StepGraph
    variables: Mapping[int, int]
    owners: Sequence[Owner]
    kept_bytes: int = 0
    blocks: Sequence[Block] = ()

    @cached_property
    def handles(self) -> Mapping[int, int]:
        """Node that gives a variable's handle -> the variable's place."""
        found = {node: self.variables[a] for node, a in self.graph.arguments.items() if a in self.variables}
        for index, node in enumerate(self.graph.nodes):
            if node.op in ("Identity", "Merge", *SWITCHES, *BOUNDARIES) and node.inputs[0][0] in found:
                found[index] = found[node.inputs[0][0]]
        return found

    @cached_property
    def scattered(self) -> frozenset[int]:
        """The variables of which single rows are updated, as by the sparse gradient of an embedding."""
        nodes = self.graph.nodes
        return frozenset(self.handles[n.inputs[0][0]] for n in nodes if n.op.startswith(SCATTERS))

    @cached_property
    def larger_branches(self) -> Branches:
        """The same in every order of execution."""
        return branches(self.graph.nodes)

    @cached_property
    def smaller_branches(self) -> Branches:
        """See `branches`."""
        return branches(self.graph.nodes, smaller=True)


@dataclass(frozen=True)
class Training:
    """Everything that decides the script. weights: made while building. slots: made in the first step. step: of
    training. inference: phase -> the step of evaluating or predicting.
    """

    weights: Sequence[Weight]
    slots: Sequence[Weight]
    step: Step
    inference: Mapping[str, Step]


def script(training: Training, execute: Callable[..., Sequence[Line]], steps: int, gpu: bool = False) -> list[Line]:
    """The build, ``steps`` training steps, and one step of each kind of inference. execute: the lines of one run of a
    step, given the variables that are in copy-on-read mode when it starts: after the first step, the scattered ones.
    """
    lines = [Line(Say.PHASE, "build"), *_made(training.weights, 0)]
    scattered = training.step.scattered
    once = execute(training.step, frozenset())
    again = _on_batch(training.step, execute(training.step, scattered) if scattered else once)
    lines += [Line(Say.PHASE, "first_step"), *_made(training.slots, len(training.weights))]
    lines += _on_batch(training.step, [*_constants(training.step, "train", gpu), *once])
    for _ in range(steps - 1):
        lines += [Line(Say.PHASE, "steady_step"), *again]
    for phase, inferred in training.inference.items():
        run = [*_constants(inferred, phase, gpu), *execute(inferred, scattered)]
        lines += [Line(Say.PHASE, phase), *_on_batch(inferred, run)]
    return lines if gpu else _without_numbers(lines, [*training.weights, *training.slots])


def _without_numbers(lines: Sequence[Line], weights: Sequence[Weight]) -> list[Line]:
    """What TensorFlow asks the allocator for: not for Python's numbers, unless a step assigns them."""
    assigned = {line.key for line in lines if line.say != Say.ALLOCATE}
    numbers = {("variable", n) for n, weight in enumerate(weights) if weight.recipe == (NUMBER,)} - assigned
    return [line for line in lines if line.key not in numbers]


def _on_batch(step: Step, run: Sequence[Line]) -> list[Line]:
    """A run and the batch before it: the first one is there before the step is traced."""
    batch = [Line(Say.ALLOCATE, ("batch", n), fed[0], _fed(*fed)) for n, fed in enumerate(step.batch) if fed[0]]
    return [*batch, *run, *(Line(Say.RELEASE, line.key) for line in batch)]


def of_training(lines: Sequence[Line]) -> Sequence[Line]:
    """The script without inference."""
    is_inference = (n for n, line in enumerate(lines) if line.say == Say.PHASE and line.key not in TRAINING_PHASES)
    return lines[: next(is_inference, len(lines))]


def peaks(lines: Sequence[Line], allocator: BfcAllocator) -> list[tuple[str, int]]:
    """Each phase's name and its peak in bytes, without keeping the allocations. Raises OutOfMemoryError."""
    addresses: dict[Hashable, int] = {}
    found: list[tuple[str, int]] = []
    name, peak, before, repeats = "", 0, None, False
    for say, key, nbytes, _, new_key in lines:
        if say == Say.PHASE:
            if name:
                found.append((name, peak))
            if repeats and key == name:
                continue
            now = (key, allocator.free_chunks(), dict(addresses))
            # A step that begins as the one before it does not differ from it.
            repeats, name, before = now == before, str(key), now
            peak = peak if repeats else allocator.in_use_bytes
        elif repeats:
            continue
        elif say == Say.ALLOCATE:
            addresses[key] = allocator.allocate(nbytes)[0]
            peak = max(peak, allocator.in_use_bytes)
        elif say == Say.RELEASE:
            allocator.release(addresses.pop(key))
        else:
            addresses[new_key] = addresses.pop(key)
    return [*found, (name, peak)]


class RanOutError(Exception):
    """The allocator could not serve a request: what it was for, what was alive, and how much was free, in bytes."""

    def __init__(self, phase: str, wanted: Line, alive: tuple[Allocation, ...], allocator: BfcAllocator) -> None:
        super().__init__(phase)
        self.phase, self.wanted, self.alive = phase, wanted, alive
        self.in_graph = isinstance(wanted.key, tuple) and wanted.key[0] == "block"
        self.in_use_bytes, self.free_bytes = allocator.in_use_bytes, allocator.free_bytes
        self.largest_free_bytes = max((size for size, _ in allocator.free_chunks()), default=0)


def run(lines: Sequence[Line], allocator: BfcAllocator) -> Iterator[tuple[str, tuple[Allocation, ...]]]:
    """Each phase's name and its allocations, those that were there before included. Raises RanOutError."""
    held: dict[Hashable, _Held] = {}
    done: list[Allocation] = []
    position, phase = 0, ""
    for line in lines:
        say, key, nbytes, purpose, new_key = line
        if say == Say.PHASE:
            if phase:
                yield phase, _all(done, held)
            done, position, phase = [], 0, str(key)
            for one in held.values():
                one.start = 0
            continue
        position += 1
        if say == Say.ALLOCATE:
            assert purpose is not None
            try:
                held[key] = _Held(*allocator.allocate(nbytes), nbytes, position, purpose)
            except OutOfMemoryError:
                raise RanOutError(phase, line, _all([], held), allocator) from None
            continue
        one = held.pop(key)
        done.append(one.record(position))
        if say == Say.RELEASE:
            allocator.release(one.address)
        else:
            assert purpose is not None
            held[new_key] = _Held(one.address, one.nbytes, one.requested_nbytes, position, purpose)
    yield phase, _all(done, held)


@dataclass(slots=True)
class _Held:
    address: int
    nbytes: int
    requested_nbytes: int
    start: int
    purpose: Purpose

    def record(self, end: int | None) -> Allocation:
        (layer, category), op, shape, dtype = self.purpose
        return Allocation(
            self.nbytes, self.requested_nbytes, self.start, end, layer, category, op, shape, dtype, self.address
        )


def _all(done: list[Allocation], held: dict[Hashable, _Held]) -> tuple[Allocation, ...]:
    return (*done, *(one.record(None) for one in held.values()))


def _made(weights: Sequence[Weight], first: int) -> Iterator[Line]:
    """Variables are created one after the other, with what their initializers hold meanwhile."""
    for number, w in enumerate(weights, start=first):
        scratch = Purpose(Owner(w.owner.layer, Category.TEMPORARY), f"{w.path}/initializer", w.shape, w.dtype)
        for step in w.recipe:
            name, _, nbytes = step.partition(" ")
            if name in (WEIGHT, NUMBER):
                # A weight without elements takes nothing, but here a chunk, so that its key stands for something.
                held = Purpose(w.owner, w.path, w.shape, w.dtype)
                yield Line(Say.ALLOCATE, ("variable", number), w.nbytes or 1, held)
            elif name.startswith("-"):
                yield Line(Say.RELEASE, ("initializer", name[1:]))
            else:
                yield Line(Say.ALLOCATE, ("initializer", name), int(nbytes or w.nbytes or 1), scratch)
        handle = scratch._replace(op=f"{w.path}/handle", shape=(), dtype="resource")
        yield Line(Say.ALLOCATE, ("handle", number), _HANDLE_BYTES, handle)


def _constants(step: Step, run: str, gpu: bool) -> Iterator[Line]:
    """Each constant of the graph is made with its kernel, before the first run, and stays; as do those that TensorFlow
    works out when it infers shapes while it traces (shape_refiner.cc), in small pieces, on a GPU in the host's memory.
    """
    purpose = Purpose(Owner(UNATTRIBUTED, Category.TEMPORARY), KEPT, None, "")
    for number in range(0 if gpu else step.kept_bytes // ALIGNMENT):
        yield Line(Say.ALLOCATE, ("kept", run, number), ALIGNMENT, purpose)
    for index, node in enumerate(step.graph.nodes):
        (out,) = node.outputs if node.op == "Const" else (None,)
        if out is None or out.shape is None or out.dtype in NOT_ON_DEVICE or not math.prod(out.shape):
            continue
        if node.at and node.at.iteration:
            continue  # one kernel serves all iterations
        purpose = Purpose(Owner(step.owners[index].layer, Category.TEMPORARY), node.name, out.shape, out.dtype)
        yield Line(Say.ALLOCATE, ("constant", run, index), tensor_bytes(out.shape, out.dtype), purpose)


def _fed(nbytes: int, shape: tuple[int, ...], dtype: str) -> Purpose:
    return Purpose(Owner(INPUT, Category.INPUT), BATCH, shape, dtype)
