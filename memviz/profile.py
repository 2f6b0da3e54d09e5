"""The record at the centre: where the bytes of one phase of training go.

Everything that knows memory makes a `MemoryProfile`; everything that shows memory takes one.
An estimate and a measurement of the same setup are two values of this one type.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import pandas as pd

Source = Literal["estimated", "compiled", "measured"]
TRAINING_PHASES = ("build", "first_step", "steady_step")
NOT_COUNTED = (
    "CUDA context, libraries and their workspaces, and what other processes hold on the card.",
    "Host memory: the data pipeline, Python, TensorFlow itself.",
)
PHASES = (*TRAINING_PHASES, "evaluate", "predict")

INPUT, LOSS, METRICS, OPTIMIZER, UNATTRIBUTED = "input", "loss", "metrics", "optimizer", "unattributed"
ROWS_BESIDE_LAYERS = (INPUT, LOSS, METRICS, OPTIMIZER)


class Category(StrEnum):
    """What a byte is held for, in the field's words; the order is the order of the stacked charts."""

    PARAMETER = "parameter"  # trainable weights
    BUFFER = "buffer"  # non-trainable weights: BatchNorm statistics, seed states
    GRADIENT = "gradient"  # of the loss with respect to weights
    OPTIMIZER_STATE = "optimizer_state"  # slots, iteration, learning rate
    INPUT = "input"  # the batch: features, labels, sample weights
    ACTIVATION = "activation"  # forward outputs kept for the backward pass
    ACTIVATION_GRADIENT = "activation_gradient"  # gradients flowing back between layers
    TEMPORARY = "temporary"  # kernel scratch, optimizer and initializer temporaries, copy-on-write copies
    ALLOCATOR_SLACK = "allocator_slack"  # charged minus requested: 256-byte rounding and unsplit chunks


@dataclass(frozen=True, slots=True)
class Allocation:
    """One block of device memory. Alive at every position p of its phase with ``start <= p < end``.

    Positions count the allocations and releases of the phase from 0; a block that was there before the phase has
    ``start == 0``, one that outlives it has ``end is None``. Times are seconds since the phase began, where measured.
    """

    nbytes: int  # charged by the allocator, slack included
    requested_nbytes: int  # asked for
    start: int
    end: int | None
    layer: str  # a layer's name, or one of `ROWS_BESIDE_LAYERS`, or `UNATTRIBUTED`
    category: Category
    op: str = ""
    shape: tuple[int, ...] | None = None
    dtype: str = ""
    address: int | None = None  # bytes from the start of the region, measured or simulated
    start_seconds: float | None = None
    end_seconds: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.requested_nbytes <= self.nbytes:
            raise ValueError(f"An allocation of {self.nbytes} B cannot serve a request of {self.requested_nbytes} B.")
        if self.start < 0 or (self.end is not None and self.end < self.start):
            raise ValueError(f"An allocation cannot live from {self.start} to {self.end}.")


@dataclass(frozen=True)
class MemoryProfile:
    """The allocations of one phase of training, persistent ones included, and what they belong to.

    From it follow, by pure functions, the peak, what was alive at it, and the tables and charts. Sums are exact:
    the layers at the peak add up to the peak, to the byte, and so do the categories.
    """

    phase: str  # one of `PHASES`
    source: Source
    allocations: tuple[Allocation, ...] = field(repr=False)
    layers: tuple[str, ...] = ()  # every layer in the model's order, also those that hold nothing
    setup: Mapping[str, object] = field(default_factory=dict)  # what was trained and how, as plain data
    not_counted: tuple[str, ...] = ()  # sentences: what these bytes do not include
    allocator_peak_bytes: int | None = None  # the allocator's own peak in this phase, where one was read

    def __post_init__(self) -> None:
        if self.phase not in PHASES:
            raise ValueError(f"{self.phase!r} is not a phase; phases are {', '.join(PHASES)}.")

    @cached_property
    def _peak(self) -> tuple[int, int]:
        """(bytes, position) of the highest point; the earliest one where several are equal."""
        changes: dict[int, int] = {}
        for a in self.allocations:
            changes[a.start] = changes.get(a.start, 0) + a.nbytes
            if a.end is not None:
                changes[a.end] = changes.get(a.end, 0) - a.nbytes
        level, best, where = 0, 0, 0
        for position in sorted(changes):
            level += changes[position]
            if level > best:
                best, where = level, position
        return best, where

    @property
    def peak_bytes(self) -> int:
        """Bytes the allocator had handed out at the highest point of the phase, slack included."""
        return self._peak[0]

    @property
    def peak_position(self) -> int:
        """The position of the peak; the earliest one where several are equal."""
        return self._peak[1]

    def alive_at(self, position: int) -> tuple[Allocation, ...]:
        """The allocations alive at a position of the phase."""
        return tuple(a for a in self.allocations if a.start <= position and (a.end is None or position < a.end))

    def at_peak(self) -> tuple[Allocation, ...]:
        """The allocations alive at the peak, largest first."""
        return tuple(sorted(self.alive_at(self.peak_position), key=lambda a: -a.nbytes))

    def by_category(self) -> pd.Series:
        """Bytes at the peak per category (index: every `Category` value, in order; sum: `peak_bytes`)."""
        import pandas as pd

        totals = _sum_by_category(self.at_peak())
        return pd.Series(totals, index=[str(c) for c in Category], dtype="int64", name="bytes")

    def by_layer(self) -> pd.DataFrame:
        """Bytes at the peak: a row per layer, then input, loss, metrics, optimizer and, where something could not be
        matched, unattributed; a column per category. The cells sum to `peak_bytes`; there is no total row or column.
        """
        import pandas as pd

        per_row: dict[str, list[Allocation]] = {name: [] for name in (*self.layers, *ROWS_BESIDE_LAYERS)}
        for a in self.at_peak():
            per_row.setdefault(a.layer, []).append(a)
        table = {row: _sum_by_category(held) for row, held in per_row.items()}
        frame = pd.DataFrame.from_dict(table, orient="index", columns=[str(c) for c in Category])
        return frame.astype("int64").rename_axis("layer")

    def timeline(self, by: Literal["category", "layer"] = "category") -> pd.DataFrame:
        """Bytes alive after each allocation or release: a row per position, a column per category or per layer.

        Each row sums to the bytes the allocator had handed out there; the largest row sum is `peak_bytes`.
        """
        import numpy as np
        import pandas as pd

        blocks = self.allocations
        if by == "category":
            columns = [str(c) for c in Category]
            # What was charged beyond a request stands in a column of its own.
            parts = [(a, str(a.category), a.requested_nbytes) for a in blocks]
            parts += [(a, str(Category.ALLOCATOR_SLACK), a.nbytes - a.requested_nbytes) for a in blocks]
        else:
            columns = list(dict.fromkeys([*self.layers, *ROWS_BESIDE_LAYERS, *(a.layer for a in blocks)]))
            parts = [(a, a.layer, a.nbytes) for a in blocks]
        index = pd.Index(sorted({0, *(a.start for a in blocks), *(a.end for a in blocks if a.end is not None)}))
        number = {name: i for i, name in enumerate(columns)}
        starts = [(a.start, number[name], size) for a, name, size in parts]
        ends = [(a.end, number[name], -size) for a, name, size in parts if a.end is not None]
        position, column, size = np.array([*starts, *ends], dtype=np.int64).reshape(-1, 3).T
        change = np.zeros((len(index), len(columns)), dtype=np.int64)
        np.add.at(change, (index.searchsorted(position), column), size)
        return pd.DataFrame(change.cumsum(axis=0), index=index.rename("position"), columns=columns)


def checked_profile(value: object) -> MemoryProfile:
    """The value, where it is a profile; TypeError that says where one is found, where not."""
    if isinstance(value, MemoryProfile):
        return value
    raise TypeError(
        f"A profile is needed, such as estimate.profile, trial.profile (with record=True) or trial.at_failure, not "
        f"{type(value).__name__}."
    )


def _sum_by_category(allocations: Iterable[Allocation]) -> dict[str, int]:
    """Requested bytes per category, and under allocator_slack what was charged beyond them."""
    totals = {str(c): 0 for c in Category}
    for a in allocations:
        totals[a.category] += a.requested_nbytes
        totals[Category.ALLOCATOR_SLACK] += a.nbytes - a.requested_nbytes
    return totals


@dataclass(frozen=True)
class Phase:
    """One phase of training: its peak in bytes, and its profile where one is known."""

    name: str
    peak_bytes: int
    profile: MemoryProfile | None = field(default=None, repr=False)
