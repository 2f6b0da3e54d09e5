"""What holds the memory at a peak: the largest tensors, each with everything of its shape that is held with it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from memviz.profile import Allocation, Category, MemoryProfile, checked_profile
from memviz.units import UnitSystem, format_bytes, shape_text

_WORDS = {
    Category.PARAMETER: "weight",
    Category.ACTIVATION_GRADIENT: "gradient of the activation",
}
_TIMES = ("", "once", "twice", "three times", "four times", "five times", "six times", "seven times", "eight times")


@dataclass(frozen=True)
class Contributor:
    """Tensors of one layer and one size that are held at the same time.

    shape: of each, in elements; empty where only bytes are known. nbytes: requested, of each. held: category -> how
    many. names: what the optimizer calls those that are its own, such as momentum.
    """

    layer: str
    shape: tuple[int, ...]
    nbytes: int
    held: Mapping[str, int]
    names: tuple[str, ...] = ()

    @property
    def total_bytes(self) -> int:
        """Requested bytes of all."""
        return self.nbytes * sum(self.held.values())

    def text(self, units: UnitSystem = "binary") -> str:
        """``6,019,376 x 128 = 2.87 GiB, held four times: weight, gradient, optimizer state ...``."""
        count, size = sum(self.held.values()), format_bytes(self.nbytes, units)
        what = f"{shape_text(self.shape)} = {size}" if self.shape else size
        times = _TIMES[count] if count < len(_TIMES) else f"{count:,} times"
        kinds = [self._kind(category, number) for category, number in self.held.items()]
        listed = kinds[0] if len(kinds) == 1 else f"{', '.join(kinds[:-1])} and {kinds[-1]}"
        return f"{what}, held {times}: {listed}"

    def _kind(self, category: str, number: int) -> str:
        word = _WORDS.get(Category(category), category.replace("_", " "))
        if category == Category.OPTIMIZER_STATE and self.names:
            return f"{word} ({', '.join(self.names)})"
        return word if number == 1 else f"{number:,} x {word}"


def contributors(profile: MemoryProfile, most: int = 3) -> tuple[Contributor, ...]:
    """What holds most at the peak of a profile, largest first; at most so many.

    Tensors count as one contributor where layer and size are the same: a kernel and its gradient and slots, or an
    activation and its gradient. Raises TypeError for what is no profile.
    """
    groups: dict[tuple[str, int], list[Allocation]] = defaultdict(list)
    for block in checked_profile(profile).at_peak():
        groups[block.layer, block.requested_nbytes].append(block)
    largest = sorted(groups.values(), key=lambda blocks: -sum(block.requested_nbytes for block in blocks))
    return tuple(map(_contributor, largest[:most]))


def _contributor(blocks: list[Allocation]) -> Contributor:
    order = list(Category)
    blocks = sorted(blocks, key=lambda block: order.index(Category(block.category)))
    held: dict[str, int] = defaultdict(int)
    for block in blocks:
        held[str(block.category)] += 1
    first = blocks[0]
    shape = next((block.shape for block in blocks if block.shape), ())
    return Contributor(first.layer, shape, first.requested_nbytes, dict(held), tuple(_slot_names(blocks)))


def _slot_names(blocks: list[Allocation]) -> list[str]:
    """What the slots are called behind the name of their weight: ``adam/dense1_kernel_momentum`` -> momentum."""
    weights = {b.op.replace("/", "_") for b in blocks if b.category == Category.PARAMETER}
    slots = [b.op.rpartition("/")[2] for b in blocks if b.category == Category.OPTIMIZER_STATE]
    served = [(slot, weight) for slot in slots for weight in weights if slot.startswith(f"{weight}_")]
    names = [slot.removeprefix(f"{weight}_").replace("_", " ") for slot, weight in served]
    return names if len(names) == len(slots) else []
