"""XLA's own plan of a step: the compiler's buffer assignment of the very training step, which is compiled and not run.

Weights and slots are donated as in a run, so that what is updated in place takes nothing. The one adapter to XLA's
protos (hlo.proto: `BufferAssignmentProto`, `HeapSimulatorTrace`), checked with TensorFlow 2.21;
tests/estimation/test_assignment.py holds the plan equal to what a trial's allocator was asked for.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from memviz.estimation.attribution import Owner, owner_by_name
from memviz.estimation.replay import Line, Purpose, Say
from memviz.models.abstract import storage, untouched
from memviz.profile import UNATTRIBUTED, Allocation, Category

ARENA = "XLA's block "  # what a block's allocation is called, before its number
_KINDS = {"F": "float", "BF": "bfloat", "S": "int", "U": "uint", "PRED": "bool"}  # letters of a PrimitiveType
_ALLOC, _FREE, _SHARE = range(3)  # HeapSimulatorTrace.Event.Kind


class Part(NamedTuple):
    """What lies in a block, ``offset`` bytes from its start."""

    offset: int
    nbytes: int
    purpose: Purpose


@dataclass(frozen=True)
class Block:
    """What one run allocates as a whole: the arena of temporaries, or an output. parts: as it is divided when it is
    fullest, without overlap.
    """

    nbytes: int
    is_output: bool
    parts: Sequence[Part]

    def divided(self, whole: Allocation) -> Iterator[Allocation]:
        """The block's allocation as one for each part; what no part takes, and the allocator's own slack, is slack."""
        for offset, nbytes, (owner, op, shape, dtype) in self.parts:
            address = None if whole.address is None else whole.address + offset
            yield replace(
                whole, nbytes=nbytes, requested_nbytes=nbytes, layer=owner.layer, category=owner.category,
                op=op, shape=shape, dtype=dtype, address=address,
            )  # fmt: skip
        if spare := whole.nbytes - sum(part.nbytes for part in self.parts):
            yield replace(whole, nbytes=spare, requested_nbytes=0, op="between the buffers", shape=None, dtype="")


def compile_step(step: Any, specs: Any, variables: Iterable[Any]) -> Any:
    """The optimized program (HloProto) of a step function with ``jit_compile``, for batches of these TensorSpecs.

    variables: of the network, the optimizer, and what tracing made, which must be done: the metrics of several losses.
    Those without storage get some of which no page is ever touched.
    Raises ValueError where XLA cannot compile the step.
    """
    import tensorflow as tf
    from tensorflow.compiler.xla.service.hlo_pb2 import HloProto

    with storage(variables):
        compiler_ir = step.experimental_get_compiler_ir(tf.nest.map_structure(untouched, specs))
        return HloProto.FromString(compiler_ir(stage="optimized_hlo_proto_serialized"))


def blocks(program: Any, scopes: Mapping[str, str], weights: Iterable[tuple[str, Iterable[int]]]) -> list[Block]:
    """What a run allocates, in this order, beside its arguments. weights: (layer, shape) of each parameter.

    Source: xla/service/cpu/cpu_executable.cc, `CreateBufferTable`: arguments are given, constants are part of the
    program, what is local to a thread lies on its stack.
    """
    assignment, buffers = program.buffer_assignment, _Buffers(program, scopes, weights)
    given = ("is_entry_computation_parameter", "is_constant", "is_thread_local")
    made = [a for a in assignment.buffer_allocations if not any(getattr(a, kind) for kind in given)]
    fullest = [_at_fullest(trace.events, buffers.sizes) for trace in assignment.heap_simulator_traces]
    alive = {buffer for each in fullest for buffer in each}
    return [Block(a.size, a.maybe_live_out, _parts(a, alive, buffers)) for a in made]


def lines_of(made: Sequence[Block]) -> list[Line]:
    """One run of the program as a script: all is allocated before it starts; the outputs are let go of last."""
    owner = Owner(UNATTRIBUTED, Category.TEMPORARY)
    lines = [
        Line(Say.ALLOCATE, ("block", n), block.nbytes, Purpose(owner, f"{ARENA}{n}", None, ""))
        for n, block in enumerate(made)
    ]
    ends = sorted(range(len(made)), key=lambda n: made[n].is_output)
    return [*lines, *(Line(Say.RELEASE, ("block", n)) for n in ends)]


def divided(allocations: Iterable[Allocation], made: Sequence[Block]) -> Iterator[Allocation]:
    """Allocations of `lines_of`, those of the blocks by their parts."""
    for allocation in allocations:
        if allocation.op.startswith(ARENA):
            yield from made[int(allocation.op.removeprefix(ARENA))].divided(allocation)
        else:
            yield allocation


class _Buffers:
    """The program's buffers, by their id: sizes in bytes, and what each is for."""

    def __init__(self, program: Any, scopes: Mapping[str, str], weights: Iterable[tuple[str, Iterable[int]]]) -> None:
        self._scopes, self._weights = scopes, {(layer, (*sorted(shape),)) for layer, shape in weights}
        self._computations = {c.id: c for c in program.hlo_module.computations}
        instructions = [i for c in self._computations.values() for i in c.instructions]
        self._instructions = {i.id: i for i in instructions}
        self._readers: dict[int, list[Any]] = {}
        for instruction in instructions:
            for operand in instruction.operand_ids:
                self._readers.setdefault(operand, []).append(instruction)
        logical = program.buffer_assignment.logical_buffers
        self.sizes = {buffer.id: buffer.size for buffer in logical}
        self._defined = {buffer.id: self._instructions.get(buffer.defined_at.instruction_id) for buffer in logical}

    def purpose(self, buffer: int) -> Purpose:
        """Whose it is, by the op that makes it or, where that has no name, by those that read it."""
        if (instruction := self._defined[buffer]) is None:
            return Purpose(Owner(UNATTRIBUTED, Category.TEMPORARY), "", None, "")
        found = self._named(instruction, self._sources) or self._named(instruction, self._targets)
        name, owner = found or (instruction.name, Owner(UNATTRIBUTED, Category.TEMPORARY))
        if instruction.opcode == "copy":  # such as of a weight, in another layout
            owner = owner._replace(category=Category.TEMPORARY)
        sizes = (*sorted(instruction.shape.dimensions),)  # XLA turns kernels as it likes
        if owner.category == Category.ACTIVATION_GRADIENT and (owner.layer, sizes) in self._weights:
            owner = owner._replace(category=Category.GRADIENT)
        return Purpose(owner, name, *_type(instruction.shape))

    def _named(self, instruction: Any, onwards: Any) -> tuple[str, Owner] | None:
        """The nearest op with a place among the layers: of itself, of what it fuses, or of those ``onwards``."""
        todo, seen = [instruction], {instruction.id}
        for each in todo:
            owner = owner_by_name(each.metadata.op_name, self._scopes)
            if owner.layer != UNATTRIBUTED:
                return each.metadata.op_name, owner
            following = [other for other in onwards(each) if other.id not in seen]
            seen.update(other.id for other in following)
            todo += following
        return None

    def _sources(self, instruction: Any) -> list[Any]:
        fused = [i for called in instruction.called_computation_ids for i in self._computations[called].instructions]
        return [*reversed(fused), *(self._instructions[operand] for operand in instruction.operand_ids)]

    def _targets(self, instruction: Any) -> list[Any]:
        return self._readers.get(instruction.id, [])


def _type(shape: Any) -> tuple[tuple[int, ...] | None, str]:
    """Shape and dtype name of an instruction's result; of several results, none."""
    from tensorflow.compiler.xla.xla_data_pb2 import PrimitiveType

    kind = PrimitiveType.Name(shape.element_type)
    if kind == "TUPLE":
        return None, ""
    letters = kind.rstrip("0123456789")
    return tuple(shape.dimensions), _KINDS[letters] + kind[len(letters) :] if letters in _KINDS else kind.lower()


def _at_fullest(events: Iterable[Any], sizes: Mapping[int, int]) -> set[int]:
    """The buffers that are alive when a heap holds most."""
    holder: dict[int, int] = {}  # buffer -> the one whose place it shares
    holders: dict[int, int] = {}
    level, most, found = 0, 0, set[int]()
    for event in events:
        if event.kind == _FREE:
            place = holder.pop(event.buffer_id)
            holders[place] -= 1
            level -= 0 if holders[place] else sizes[place]
            continue
        place = event.share_with_canonical_id if event.kind == _SHARE else event.buffer_id
        holder[event.buffer_id] = place
        level += 0 if holders.get(place) else sizes[place]
        holders[place] = holders.get(place, 0) + 1
        if level > most:
            most, found = level, {each for each, count in holders.items() if count}
    return found


def _parts(allocation: Any, alive: set[int], buffers: _Buffers) -> list[Part]:
    """The buffers alive when it is fullest, then, where place is left, those of other moments, the largest first."""
    placed: list[tuple[int, int, int]] = []  # (offset, end, buffer), none of which overlap
    for one in sorted(allocation.assigned, key=lambda one: (one.logical_buffer_id not in alive, -one.size)):
        begin, end = one.offset, one.offset + one.size
        at = bisect_left(placed, (begin, 0, 0))
        free = (at == 0 or placed[at - 1][1] <= begin) and (at == len(placed) or end <= placed[at][0])
        if free and one.size:
            insort(placed, (begin, end, one.logical_buffer_id))
    return [Part(begin, end - begin, buffers.purpose(buffer)) for begin, end, buffer in placed]
