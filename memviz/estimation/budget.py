"""The budget that a training needs: not one number, since TensorFlow draws the order of execution per process.

A budget that suffices for one order may not for another, and one that is larger may fail, by fragmentation, where a
smaller one suffices by chance. So what is required is the budget that best tells the trainings that complete from those
that die: with a little more few die, with a little less few survive (benchmarks/budget_spread.py).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial

from memviz.estimation.allocator import BfcAllocator, OutOfMemoryError
from memviz.estimation.replay import Line, Say, of_training, peaks
from memviz.setup import FIRST_REGION_BYTES
from memviz.units import MIB

ROOMY = 1 << 46  # bytes; more than any device has
MORE, LESS = 1.02, 0.95  # of what is required: with so much a training should complete, with so little it should die
DEATH = 10 / 3  # how many needless refusals a training that dies is as bad as
# So many orders at most; fewer where they are long, but not fewer than three.
_JUDGED, _FEWEST_JUDGED, _LINES = 9, 3, 500_000
_FINER = 3  # the search's second pass
_BEGINS, _REPEATS = -1, -2  # in place of a number: another phase begins, or another step of the same

Requests = Sequence[tuple[int, int]]  # (number of what is held, bytes; 0 where it is let go of)


def one_region(limit_bytes: int) -> BfcAllocator:
    """As on a GPU without memory growth; see `FIRST_REGION_BYTES`."""
    return BfcAllocator(limit_bytes, (FIRST_REGION_BYTES, limit_bytes))


def required_bytes(scripts: Sequence[Sequence[Line]]) -> int:
    """The budget of one region, in bytes, that a training with these orders of execution requires.

    Of those looked at, the one with the least cost: `DEATH` times the share of orders that die with `MORE` of it, and
    the share that survives with `LESS`. First in steps as wide as from less to more, from what all orders use where
    they have all the room down to what suffices for none (or the least that can be set, a MiB); then, about the best
    of these, finer.
    """
    judged = max(_FEWEST_JUDGED, min(_JUDGED, _LINES // len(scripts[0])))
    orders = [requests(of_training(lines)) for lines in scripts[:judged]]
    step = MORE / LESS
    known: dict[int, float] = {}

    def alive(budget: float) -> float:
        if (size := int(budget)) not in known:
            known[size] = completing(orders, partial(one_region, size))
        return known[size]

    def cost(more: float) -> float:
        return round(DEATH * (1 - alive(more)) + alive(more / step), 9)

    used = most_used(orders, partial(one_region, ROOMY))
    if not used:  # all that is held lies beside the budget
        return max(size for lines in scripts for _, size in peaks(of_training(lines), one_region(ROOMY)))
    most: float = max(MIB, used)
    while alive(most) < 1:  # what it uses where there is all the room mostly suffices
        most *= step
    looked_at = [most]
    while alive(looked_at[-1]) > 0 and looked_at[-1] > MIB:
        looked_at.append(looked_at[-1] / step)
    best = min(looked_at, key=cost)
    costs = {(more := best * step ** (part / _FINER)): cost(more) for part in range(1 - _FINER, _FINER)}
    alike = [more for more, each in costs.items() if each == min(costs.values())]
    return int(alike[len(alike) // 2] / MORE)


def requests(lines: Sequence[Line]) -> Requests:
    """A script as plain numbers, which are quicker to run again and again."""
    numbers: dict[Hashable, int] = {}
    found: list[tuple[int, int]] = []
    phase: Hashable = None
    for say, key, nbytes, _, new_key in lines:
        if say is Say.PHASE:
            found.append((_REPEATS if key == phase else _BEGINS, 0))
            phase = key
        elif say is Say.RENAME:
            numbers[new_key] = numbers.pop(key)
        elif say is Say.ALLOCATE:
            numbers[key] = len(found)
            found.append((len(found), nbytes))
        else:
            found.append((numbers.pop(key), 0))
    return found


def most_used(orders: Sequence[Requests], allocator: Callable[[], BfcAllocator]) -> int:
    """How much of the last region of an allocator with room is used from its start, in bytes; the most of these."""
    return max(reach(order, allocator()) or 0 for order in orders)


def completing(orders: Sequence[Requests], allocator: Callable[[], BfcAllocator]) -> float:
    """The share of orders that complete, each with an allocator of its own."""
    return sum(reach(order, allocator()) is not None for order in orders) / len(orders)


def reach(order: Requests, allocator: BfcAllocator) -> int | None:
    """How much of the last region is used from its start; None where memory runs out."""
    addresses: dict[int, int] = {}
    free: list[tuple[int, int]] = []
    try:
        for number, nbytes in order:
            if nbytes:
                addresses[number] = allocator.allocate(nbytes)[0]
            elif number >= 0:
                allocator.release(addresses.pop(number))
            elif free == (free := allocator.free_chunks()) and number == _REPEATS:
                break  # a step that begins as the one before it does not differ from it
    except OutOfMemoryError:
        return None
    return allocator.reach_bytes
