"""Playing tapes against the modelled allocator: from requests to allocations with addresses, phase by phase."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from memviz.estimation.allocator import BfcAllocator
from memviz.estimation.attribution import Owner
from memviz.estimation.executor import Block, Do, Tape
from memviz.estimation.graph import StepGraph
from memviz.profile import Allocation, Category


@dataclass(slots=True)
class _Held:
    address: int
    nbytes: int
    requested_nbytes: int
    start: int
    owner: Owner
    op: str
    shape: tuple[int, ...] | None
    dtype: str


class Replay:
    """The device's memory over the phases. Keys name what is held: ("variable", n), ("block", n), ("batch", n), ..."""

    def __init__(self, allocator: BfcAllocator) -> None:
        self._allocator = allocator
        self._held: dict[Hashable, _Held] = {}
        self._done: list[Allocation] = []
        self._position = 0

    def begin(self) -> None:
        """A new phase: what is held now was there before it."""
        self._done, self._position = [], 0
        for held in self._held.values():
            held.start = 0

    def allocate(
        self, key: Hashable, nbytes: int, owner: Owner, op: str, shape: tuple[int, ...] | None, dtype: str
    ) -> None:
        """Raises OutOfMemoryError."""
        if nbytes == 0:
            return
        address, charged = self._allocator.allocate(nbytes)
        self._position += 1
        self._held[key] = _Held(address, charged, nbytes, self._position, owner, op, shape, dtype)

    def release(self, key: Hashable) -> None:
        """Give back what is held under ``key``; nothing, if that takes no memory."""
        held = self._held.pop(key, None)
        if held is None:
            return
        self._allocator.release(held.address)
        self._position += 1
        self._done.append(_record(held, self._position))

    def rename(self, old: Hashable, new: Hashable, owner: Owner) -> None:
        """From here on the same memory is held for another purpose."""
        held = self._held.pop(old, None)
        if held is None:
            return
        self._position += 1
        self._done.append(_record(held, self._position))
        held.start, held.owner = self._position, owner
        self._held[new] = held

    def allocations(self) -> tuple[Allocation, ...]:
        """All of the phase so far; what is held still has no end."""
        return (*self._done, *(_record(held, None) for held in self._held.values()))

    def play(self, tape: Tape, graph: StepGraph, owners: Sequence[Owner], variables: dict[int, Owner]) -> None:
        """One run of the graph. variables: number -> owner of its storage. Raises OutOfMemoryError."""
        for action, number in tape.actions:
            if action is Do.ALLOCATE:
                block = tape.blocks[number]
                name = graph.nodes[block.node].name
                self.allocate(("block", number), block.nbytes, _owner(block, owners), name, block.shape, block.dtype)
            elif action is Do.RELEASE:
                self.release(("block", number) if number not in tape.variable_of else _successor(tape, number))
            elif action is Do.RELEASE_VARIABLE:
                self.release(("replaced", number))
            else:
                variable = tape.variable_of[number]
                owner = variables[variable]
                replaced = Owner(owner.layer, Category.TEMPORARY)
                self.rename(("variable", variable), ("replaced", variable), replaced)
                self.rename(("block", number), ("variable", variable), owner)


def _successor(tape: Tape, block: int) -> Hashable:
    """A block that had become a variable's storage and was replaced in the same run."""
    return ("replaced", tape.variable_of[block])


def _owner(block: Block, owners: Sequence[Owner]) -> Owner:
    owner = owners[block.node]
    return Owner(owner.layer, Category.TEMPORARY) if block.temporary else owner


def _record(held: _Held, end: int | None) -> Allocation:
    return Allocation(
        held.nbytes, held.requested_nbytes, held.start, end, held.owner.layer, held.owner.category, held.op,
        held.shape, held.dtype, held.address,
    )  # fmt: skip
