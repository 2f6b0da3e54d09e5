"""The order in which TensorFlow runs a graph, and what that order asks of the allocator.

Models the executor (tensorflow/core/common_runtime/executor.cc) with one inter-op thread: a kernel that ends hands
over its newly ready successors in node order; cheap ones run next on the same thread, first in, first out; of the
expensive ones the last goes on at once if nothing cheap waits, the others go to the pool, whose only thread takes the
most recently pushed first. On a GPU every kernel counts as cheap.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from memviz.estimation import kernels
from memviz.estimation.graph import Node, StepGraph, TensorType
from memviz.units import dtype_bytes

_EDGES_IN_ORDER = 4


class Do(Enum):
    """One action of a tape. The number beside it is a block's, or a variable's for RELEASE_VARIABLE."""

    ALLOCATE = "allocate"
    RELEASE = "release"
    HAND_OVER = "hand over"  # the block now is the storage of its variable
    RELEASE_VARIABLE = "release variable"  # the storage the variable had before the run


@dataclass(frozen=True, slots=True)
class Block:
    """One request to the allocator. node: the index of the node that made it. variable: whose storage it becomes."""

    node: int
    nbytes: int
    shape: tuple[int, ...]
    dtype: str
    temporary: bool  # the kernel's own, not one of its outputs


@dataclass
class Tape:
    """What one run of a graph asks of the allocator. order: node indices as executed."""

    blocks: list[Block] = field(default_factory=list)
    actions: list[tuple[Do, int]] = field(default_factory=list)
    variable_of: dict[int, int] = field(default_factory=dict)  # block -> variable, for blocks handed over
    order: list[int] = field(default_factory=list)


class _Buffer:
    """Device memory with its number of holders. block is None for what was there before the run."""

    __slots__ = ("block", "holders", "variable")

    def __init__(self, block: int | None = None, variable: int | None = None, holders: int = 0) -> None:
        self.block, self.variable, self.holders = block, variable, holders


def run(graph: StepGraph, variables: Mapping[int, int], *, gpu: bool = False, seed: int = 0) -> Tape:
    """The tape of one run. variables: argument number of each resource -> the variable's number. seed: see `_edges`."""
    return _Executor(graph, variables, seed).run(gpu)


class _Executor:
    def __init__(self, graph: StepGraph, variables: Mapping[int, int], seed: int) -> None:
        self._graph = graph
        self._tape = Tape()
        self._edges = _edges(graph.nodes, seed)
        self._values: dict[tuple[int, int], _Buffer | None] = {}
        self._variables = {number: _Buffer(variable=number, holders=1) for number in variables.values()}
        self._handles = {
            node: variables[argument] for node, argument in graph.arguments.items() if argument in variables
        }

    def run(self, gpu: bool) -> Tape:
        for index in execution_order(self._graph.nodes, self._edges, gpu):
            self._tape.order.append(index)
            self._execute(index)
        return self._tape

    def _execute(self, index: int) -> None:
        node = self._graph.nodes[index]
        inputs = [self._values.get(source) for source in node.inputs]
        results = self._compute(index, node, inputs)
        for buffer in results:
            if buffer is not None:
                buffer.holders += 1  # the kernel's own reference, until the outputs are handed on
        for buffer in inputs:
            self._release(buffer)
        for slot, buffer in enumerate(results):
            if buffer is not None:
                self._values[index, slot] = buffer
                buffer.holders += self._edges.uses[index].get(slot, 0)
                self._release(buffer)

    def _compute(self, index: int, node: Node, inputs: list[_Buffer | None]) -> list[_Buffer | None]:
        if node.op in kernels.ALIASES:
            return [inputs[0]]
        if node.op == "IdentityN":
            return inputs
        if node.op == "ReadVariableOp":
            return [self._variables[self._handles[node.inputs[0][0]]]]
        if node.op in kernels.ARGUMENTS:
            # The caller holds what it feeds until the step is over; a handle takes no device memory.
            return [None if node.outputs[0].dtype == "resource" else _Buffer(holders=1)]
        if node.op in kernels.NO_MEMORY:
            return [None] * len(node.outputs)
        if node.op in kernels.ASSIGNMENTS:
            self._assign(index, node, inputs)
            return []
        return self._call_kernel(index, node, inputs)

    def _call_kernel(self, index: int, node: Node, inputs: list[_Buffer | None]) -> list[_Buffer | None]:
        types = [self._graph.nodes[source].outputs[slot] for source, slot in node.inputs]
        scratch = kernels.scratch(node, types)
        held = [self._take_scratch(index, s, inputs) for s in scratch if s.before_outputs]
        results: list[_Buffer | None] = []
        for slot, wanted in enumerate(node.outputs):
            buffer = self._forward(node, slot, wanted, types, inputs)
            results.append(buffer if buffer is not None else self._allocate_output(index, node, wanted))
        held += [self._take_scratch(index, s, inputs) for s in scratch if not s.before_outputs]
        for buffer in reversed(held):
            self._release(buffer)
        return results

    def _forward(
        self, node: Node, slot: int, wanted: TensorType, types: list[TensorType], inputs: list[_Buffer | None]
    ) -> _Buffer | None:
        """The input's buffer that the kernel may write its output to: nobody else's, of equal size and dtype."""
        if slot != kernels.FORWARDS_TO.get(node.op, 0):
            return None
        for number in kernels.FORWARDS.get(node.op, ()):
            if number < len(inputs) and _same_size(types[number], wanted) and _is_free(inputs[number]):
                return inputs[number]
        return None

    def _allocate_output(self, index: int, node: Node, wanted: TensorType) -> _Buffer | None:
        if wanted.dtype in kernels.NOT_ON_DEVICE:
            return None
        if wanted.shape is None:
            raise ValueError(f"The shape of the output of {node.name} ({node.op}) is not known before it runs.")
        return self._allocate(index, wanted.shape, wanted.dtype)

    def _take_scratch(self, index: int, scratch: kernels.Scratch, inputs: list[_Buffer | None]) -> _Buffer | None:
        buffer = inputs[scratch.takes] if scratch.takes is not None else None
        if buffer is None or not _is_free(buffer):
            buffer = self._allocate(index, scratch.shape, scratch.dtype, temporary=True)
        if buffer is not None:
            buffer.holders += 1
        return buffer

    def _assign(self, index: int, node: Node, inputs: list[_Buffer | None]) -> None:
        """resource_variable_ops.cc: an assignment takes over the value's buffer; an update of a variable that somebody
        still reads is made on a copy (`PrepareToUpdateVariable`).
        """
        variable = self._handles[node.inputs[0][0]]
        old, value = self._variables[variable], inputs[1]
        if node.op == "AssignVariableOp" and value is not None and value.block is not None:
            new = value
        elif old.holders == 1:
            return  # updated in place, or set to a constant that is not counted
        else:
            source, slot = node.inputs[1]
            wanted = self._graph.nodes[source].outputs[slot]
            copy = self._allocate_output(index, node, wanted)
            if copy is None:
                return
            new = copy
        assert new.block is not None
        new.holders += 1
        self._variables[variable] = new
        self._tape.variable_of[new.block] = variable
        self._tape.actions.append((Do.HAND_OVER, new.block))
        self._release(old)

    def _allocate(self, node: int, shape: tuple[int, ...], dtype: str, *, temporary: bool = False) -> _Buffer | None:
        nbytes = math.prod(shape) * dtype_bytes(dtype)
        if nbytes == 0:
            return None
        self._tape.blocks.append(Block(node, nbytes, shape, dtype, temporary))
        block = len(self._tape.blocks) - 1
        self._tape.actions.append((Do.ALLOCATE, block))
        return _Buffer(block)

    def _release(self, buffer: _Buffer | None) -> None:
        if buffer is None:
            return
        buffer.holders -= 1
        if buffer.holders == 0:
            if buffer.block is not None:
                self._tape.actions.append((Do.RELEASE, buffer.block))
            elif buffer.variable is not None:
                self._tape.actions.append((Do.RELEASE_VARIABLE, buffer.variable))


def _is_free(buffer: _Buffer | None) -> bool:
    """Held by this kernel's input alone."""
    return buffer is not None and buffer.holders == 1 and buffer.block is not None


def _same_size(have: TensorType, want: TensorType) -> bool:
    if have.shape is None or want.shape is None:
        return False
    return have.dtype == want.dtype and math.prod(have.shape) == math.prod(want.shape)


@dataclass(frozen=True)
class _Edges:
    """uses: per node, output slot -> number of readers. followers: per node, who waits for it, one entry per edge.
    pending: per node, the number of edges it waits for. roots: the nodes that wait for nothing.
    """

    uses: list[dict[int, int]]
    followers: list[list[int]]
    pending: list[int]
    roots: list[int]


def _edges(nodes: Sequence[Node], seed: int) -> _Edges:
    """Who follows whom, in the order in which TensorFlow hands over.

    A node keeps up to four outgoing edges in the order of their making, and more in a hash set of addresses
    (edgeset.h): that order differs from process to process and repeats within one. So do the peaks of some networks.
    Any order is as likely as another; `seed` picks one.
    """
    uses: list[dict[int, int]] = [{} for _ in nodes]
    edges: list[list[tuple[bool, int]]] = [[] for _ in nodes]
    for index, node in enumerate(nodes):
        for source, slot in node.inputs:
            uses[source][slot] = uses[source].get(slot, 0) + 1
            edges[source].append((False, index))
        for source in node.controls:
            edges[source].append((True, index))
    shuffle = random.Random(seed).shuffle
    roots = [index for index, node in enumerate(nodes) if not node.inputs and not node.controls]
    shuffle(roots)
    for outgoing in edges:
        if len(outgoing) > _EDGES_IN_ORDER:
            shuffle(outgoing)
    # Data edges before control edges (immutable_executor_state.cc).
    followers = [[i for c, i in outgoing if not c] + [i for c, i in outgoing if c] for outgoing in edges]
    return _Edges(uses, followers, [len(node.inputs) + len(node.controls) for node in nodes], roots)


def execution_order(nodes: Sequence[Node], edges: _Edges, gpu: bool = False) -> Iterator[int]:
    """Node indices in the order of execution."""
    cheap: Callable[[str], bool] = (lambda op: True) if gpu else kernels.CHEAP.__contains__
    pending = list(edges.pending)
    pool: list[int] = []  # its only thread takes from the end
    inline: deque[int] = deque()
    ready = edges.roots
    while ready or inline or pool:
        _schedule(ready, nodes, cheap, inline, pool)
        index = inline.popleft() if inline else pool.pop()
        yield index
        ready = []
        for follower in edges.followers[index]:
            pending[follower] -= 1
            if pending[follower] == 0:
                ready.append(follower)


def _schedule(
    ready: list[int], nodes: Sequence[Node], cheap: Callable[[str], bool], inline: deque[int], pool: list[int]
) -> None:
    """executor.cc, `ScheduleReady`."""
    expensive: list[int] = []
    for index in ready:
        (inline if cheap(nodes[index].op) else expensive).append(index)
    if expensive and not inline:
        inline.append(expensive.pop())
    pool.extend(expensive)
