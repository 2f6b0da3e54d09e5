"""The order in which TensorFlow runs a graph, and what that order asks of the allocator.

Models the executor (tensorflow/core/common_runtime/executor.cc) with one inter-op thread: a kernel that ends hands
over its newly ready successors in node order; cheap ones run next on the same thread, first in, first out; of the
expensive ones the last goes on at once if nothing cheap waits, the others go to the pool, whose only thread takes the
most recently pushed first. On a GPU every kernel counts as cheap.

A kernel is also cheap once it has come down to less than 8,000 cycles in a running average that starts at 100 million:
after some 90 runs, which a loop soon has. Recorded: kernels of lists, in loops, may or may not, from run to run.
"""

from __future__ import annotations

import math
import random
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from memviz.estimation import kernels
from memviz.estimation.assignment import lines_of
from memviz.estimation.branches import SWITCHES, Branches
from memviz.estimation.graph import Node, TensorType
from memviz.estimation.loops import LISTS, At
from memviz.estimation.replay import Line, Purpose, Say, Step, Weight
from memviz.profile import Category
from memviz.units import tensor_bytes

_EDGES_IN_ORDER = 4
_ITERATIONS_AT_A_TIME = 32


class _Buffer:
    """Device memory under its key in the script, with its number of holders; no key for what the caller holds."""

    __slots__ = ("holders", "key")

    def __init__(self, key: tuple[Any, ...] | None = None, holders: int = 0) -> None:
        self.key, self.holders = key, holders


class _List(_Buffer):
    """A list of tensors of one type, which holds what lies in it; its own few bytes are not counted."""

    __slots__ = ("items", "of")

    def __init__(self, items: Sequence[_Buffer | None], of: TensorType | None = None) -> None:
        super().__init__()
        self.of = of
        self.items: list[_Buffer | None] = [None] * len(items)
        for place, item in enumerate(items):
            self.put(place, item)

    def put(self, place: int, item: _Buffer | None) -> _Buffer | None:
        """Returns what lay there, still held."""
        if item is not None:
            item.holders += 1
        before, self.items[place] = self.items[place], item
        return before


def execute(
    step: Step,
    copied_on_read: frozenset[int],
    *,
    weights: Sequence[Weight],
    gpu: bool = False,
    seed: int = 0,
    smaller: bool = False,
    cheap_lists: bool = False,
) -> list[Line]:
    """What one run of a step's graph asks of the allocator. copied_on_read: variables, see `kernels.SCATTERS`. weights:
    with the slots. seed: see `_edges`. smaller: see `branches`. cheap_lists: kernels of lists of tensors count as such.
    """
    if step.blocks:
        return lines_of(step.blocks)
    return _Executor(step, copied_on_read, weights, seed, gpu, smaller).run(cheap_lists)


class _Executor:
    def __init__(
        self, step: Step, copied: frozenset[int], weights: Sequence[Weight], seed: int, gpu: bool, smaller: bool
    ) -> None:
        self._nodes, self._owners, self._weights, self._gpu = step.graph.nodes, step.owners, weights, gpu
        self._branches = step.smaller_branches if smaller else step.larger_branches
        self._edges = _edges(self._nodes, self._branches, seed)
        self._lines: list[Line] = []
        self._values: dict[tuple[int, int], _Buffer | None] = {}
        self._variables = [_Buffer(("variable", number), holders=1) for number in range(len(self._weights))]
        self._handles, self._copied_on_read = step.handles, set(copied)

    def run(self, cheap_lists: bool) -> list[Line]:
        dead = self._branches.dead
        cheap = [self._gpu or dead[index] or _is_cheap(n, cheap_lists) for index, n in enumerate(self._nodes)]
        for index in execution_order(self._nodes, self._edges, cheap):
            self._execute(index)
        return self._lines

    def _execute(self, index: int) -> None:
        node = self._nodes[index]
        inputs = [self._values.get(source) for source in node.inputs]
        results = [] if self._branches.dead[index] else self._compute(index, node, inputs)
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
        if node.op in SWITCHES:
            return [inputs[0] if slot == self._branches.taken[index] else None for slot in range(len(node.outputs))]
        if node.op == "Merge":
            alive = next(n for n, source in enumerate(node.inputs) if self._branches.is_alive(source))
            return [inputs[alive], self._allocate(index, (), "int32")]
        if node.op in LISTS or any(isinstance(buffer, _List) for buffer in inputs):
            return self._of_list(index, node, inputs)
        if node.op in kernels.ALIASES:
            return [inputs[0]]
        if node.op == "IdentityN":
            return inputs
        if node.op == "ReadVariableOp":
            variable = self._handles[node.inputs[0][0]]
            weight = self._weights[variable]
            copied = variable in self._copied_on_read
            return [self._allocate(index, weight.shape, weight.dtype) if copied else self._variables[variable]]
        if node.op in kernels.ARGUMENTS:
            # The caller holds what it feeds until the step is over; a handle takes no device memory.
            return [None if node.outputs[0].dtype == "resource" else _Buffer(holders=1)]
        if node.op in kernels.NO_MEMORY:
            return [None] * len(node.outputs)
        if node.op.startswith(kernels.SCATTERS):
            variable = self._handles[node.inputs[0][0]]
            if variable not in self._copied_on_read:
                self._assign(index, node, inputs)
                self._copied_on_read.add(variable)
        if node.op in kernels.ASSIGNMENTS:
            self._assign(index, node, inputs)
            return []
        return self._call_kernel(index, node, inputs)

    def _of_list(self, index: int, node: Node, inputs: list[_Buffer | None]) -> list[_Buffer | None]:
        """list_kernels.cc: a list that nobody else holds is changed in place, else copied; its elements never are."""
        held = inputs[0]
        if node.op in ("EmptyTensorList", "TensorListReserve"):
            return [_List([None] * node.place)]
        if node.op == "TensorListFromTensor":
            return [self._rows(index, node)]
        if node.op == "AddN":
            return [self._sum(index, [each for each in inputs if isinstance(each, _List)])]
        if not isinstance(held, _List) or node.op in kernels.ALIASES:
            return [held]
        if node.op == "ZerosLike":
            return [_List([item and self._element(index, held.of) for item in held.items], held.of)]
        if node.op == "TensorListGetItem" and (item := held.items[node.place]) is not None:
            return [item]
        if node.op not in kernels.CHANGES_LIST:
            return self._call_kernel(index, node, inputs)
        changed = held if _is_free(held) else _List(held.items, held.of)
        if node.op == "TensorListPopBack":
            item = changed.items.pop()
            if item is not None:
                item.holders -= 1  # the kernel holds it from here
            return [changed, item]
        if node.op == "TensorListPushBack":
            changed.items.append(None)
        number, place = kernels.CHANGES_LIST[node.op], -1 if node.op == "TensorListPushBack" else node.place
        source, slot = node.inputs[number]
        changed.of = self._nodes[source].outputs[slot]
        self._release(changed.put(place, inputs[number]))
        return [changed]

    def _rows(self, index: int, node: Node) -> _List:
        """Recorded: each row of the tensor is copied."""
        source, slot = node.inputs[0]
        of = self._nodes[source].outputs[slot]
        if not of.shape:
            raise ValueError(_unknown(self._nodes[source]))
        row = TensorType(of.shape[1:], of.dtype)
        return _List([self._element(index, row) for _ in range(of.shape[0])], row)

    def _sum(self, index: int, lists: Sequence[_List]) -> _List:
        """Element by element; what lies in one list only is handed on (tensor_list_util.h, `TensorListBinaryAdd`)."""
        of = next((each.of for each in lists if each.of), None)
        total = lists[0].items
        for each in lists[1:]:
            total = [self._element(index, of) if a and b else a or b for a, b in zip(total, each.items, strict=True)]
        return _List(total, of)

    def _element(self, index: int, of: TensorType | None) -> _Buffer | None:
        if of is None or of.shape is None:
            raise ValueError(_unknown(self._nodes[index]))
        return self._allocate(index, of.shape, of.dtype)

    def _call_kernel(self, index: int, node: Node, inputs: list[_Buffer | None]) -> list[_Buffer | None]:
        types = [self._nodes[source].outputs[slot] for source, slot in node.inputs]
        scratch = kernels.scratch(node, types, gpu=self._gpu)
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
            raise ValueError(_unknown(node))
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
        still reads is made on a copy (`PrepareToUpdateVariable`). The old storage is a temporary until its last reader
        lets go of it.
        """
        variable = self._handles[node.inputs[0][0]]
        old, new, weight = self._variables[variable], inputs[1], self._weights[variable]
        if node.op != "AssignVariableOp" or new is None or new.key is None or new.key[0] != "block":
            if old.holders == 1 and variable not in self._copied_on_read:
                return  # updated in place, or set to a constant that is not counted
            new = self._allocate(index, weight.shape, weight.dtype)
        assert new is not None
        new.holders += 1
        self._variables[variable] = new
        purpose = Purpose(weight.owner, weight.path, weight.shape, weight.dtype)
        replaced = purpose._replace(owner=weight.owner._replace(category=Category.TEMPORARY))
        self._rename(old, ("replaced", variable, len(self._lines)), replaced)
        self._rename(new, ("variable", variable), purpose)
        self._release(old)

    def _rename(self, buffer: _Buffer, key: tuple[Any, ...], purpose: Purpose) -> None:
        self._lines.append(Line(Say.RENAME, buffer.key, 0, purpose, key))
        buffer.key = key

    def _allocate(self, node: int, shape: tuple[int, ...], dtype: str, *, temporary: bool = False) -> _Buffer | None:
        nbytes = tensor_bytes(shape, dtype)
        if nbytes == 0:
            return None
        owner = self._owners[node]
        if temporary:
            owner = owner._replace(category=Category.TEMPORARY)
        buffer = _Buffer(("block", len(self._lines)))
        self._lines.append(Line(Say.ALLOCATE, buffer.key, nbytes, Purpose(owner, self._nodes[node].name, shape, dtype)))
        return buffer

    def _release(self, buffer: _Buffer | None) -> None:
        if buffer is None:
            return
        buffer.holders -= 1
        if buffer.holders == 0 and isinstance(buffer, _List):
            for item in buffer.items:
                self._release(item)
        elif buffer.holders == 0:
            self._lines.append(Line(Say.RELEASE, buffer.key))


def _unknown(node: Node) -> str:
    return (
        f"The shape of the output of {node.name} ({node.op}) is not known before it runs, as of sparse gradients in "
        "conditionals, so that there is no estimate without XLA yet; memviz.measure trains and measures it."
    )


def _is_free(buffer: _Buffer | None) -> bool:
    """Held by this kernel's input alone. What the caller or a variable holds, too, never is."""
    return buffer is not None and buffer.holders == 1


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


def _edges(nodes: Sequence[Node], taken: Branches, seed: int) -> _Edges:
    """Who follows whom, in the order in which TensorFlow hands over.

    A node keeps up to four outgoing edges in the order of their making, and more in a hash set of addresses
    (edgeset.h): that order differs from process to process and repeats within one. So do the peaks of some networks.
    Any order is as likely as another; `seed` picks one.
    """

    def waits(index: int, source: tuple[int, int]) -> bool:
        """A Merge waits for the input that is alive."""
        return nodes[index].op != "Merge" or taken.dead[index] or taken.is_alive(source)

    pending = [len(node.controls) for node in nodes]
    uses: list[dict[int, int]] = [{} for _ in nodes]
    edges: list[list[tuple[bool, int]]] = [[] for _ in nodes]
    for index, node in enumerate(nodes):
        for source, slot in node.inputs:
            uses[source][slot] = uses[source].get(slot, 0) + 1
            if waits(index, (source, slot)):
                edges[source].append((False, index))
                pending[index] += 1
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
    return _Edges(uses, followers, pending, roots)


def _is_cheap(node: Node, cheap_lists: bool) -> bool:
    return node.op in kernels.CHEAP or (cheap_lists and node.op.startswith("TensorList"))


def execution_order(nodes: Sequence[Node], edges: _Edges, cheap: Sequence[bool]) -> Iterator[int]:
    """Node indices in the order of execution. cheap: per node; to pass over a dead one is cheap, too."""
    pending = list(edges.pending)
    pool: list[int] = []  # its only thread takes from the end
    inline: deque[int] = deque()
    ready = edges.roots
    loops = _Iterations(nodes)
    while ready or inline or pool:
        _schedule(ready, cheap, inline, pool)
        index = inline.popleft() if inline else pool.pop()
        yield index
        ready = []
        for follower in edges.followers[index]:
            pending[follower] -= 1
            if pending[follower] == 0 and loops.may_begin(follower):
                ready.append(follower)
        ready += loops.begun_after(index)


class _Iterations:
    """Which iterations of each loop are under way: at most 32 (`parallel_iterations` of tf.while_loop) from the oldest
    that is not done. What begins a later one waits (executor.cc, `IncrementIteration`).
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._at = [node.at for node in nodes]
        self._left = Counter(at for at in self._at if at)
        self._oldest = {at.loop: 0 for at in self._left}
        self._waiting: dict[At, list[int]] = {}

    def may_begin(self, index: int) -> bool:
        at = self._at[index]
        if at is None or at.iteration < self._oldest[at.loop] + _ITERATIONS_AT_A_TIME:
            return True
        self._waiting.setdefault(at, []).append(index)
        return False

    def begun_after(self, index: int) -> list[int]:
        """The nodes that were waiting, and may begin now that this one is done."""
        at = self._at[index]
        if at is None:
            return []
        self._left[at] -= 1
        begun: list[int] = []
        while self._left.get(oldest := At(at.loop, self._oldest[at.loop])) == 0:
            self._oldest[at.loop] += 1
            begun += self._waiting.pop(oldest._replace(iteration=oldest.iteration + _ITERATIONS_AT_A_TIME), [])
        return begun


def _schedule(ready: list[int], cheap: Sequence[bool], inline: deque[int], pool: list[int]) -> None:
    """executor.cc, `ScheduleReady`."""
    expensive: list[int] = []
    for index in ready:
        (inline if cheap[index] else expensive).append(index)
    if expensive and not inline:
        inline.append(expensive.pop())
    pool.extend(expensive)
