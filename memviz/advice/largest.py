"""The largest batch, or the largest value of any one argument, with which training fits."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from memviz.advice.devices import capacity
from memviz.advice.fits import fit_of
from memviz.estimation.service import shared_service
from memviz.measurement.result import Trial
from memviz.measurement.trial import RunningTrial
from memviz.models.network import Network
from memviz.setup import LARGEST, TrainingSetup, whole_number
from memviz.units import MIB, format_bytes

BATCH = "batch_size"
_GUESSES = 8  # straight lines laid through what was seen so far
_PROVEN = 5  # so many trials have to complete, since TensorFlow draws the order of execution anew in each
_IGNORED = 1 << 12  # so many times the lowest value and not a byte more: it does not matter


@dataclass(frozen=True)
class Probe:
    """One value that a search has tried. used_bytes: what it uses where there is all the room, 0 where a trial tells.
    fits: in every order of execution that was played, or, measured, in every trial.
    """

    value: int
    fits: bool
    used_bytes: int = 0
    measured: bool = False


@dataclass(frozen=True)
class Largest:
    """The largest value with which training fits.

    value: the answer, of ``argument``; batch_size: the batch it holds for (where that was searched, the same number).
    estimated: the estimate's answer, which ``value`` is too unless trials said otherwise. probes: all that was tried,
    in this order. trials: value -> its `Trial`s, where it was measured: five that completed, or up to the one that ran
    out. note: what is to be known beside it.
    """

    argument: str
    value: int
    batch_size: int
    estimated: int
    budget_bytes: int
    device: str
    probes: tuple[Probe, ...] = field(repr=False)
    trials: Mapping[int, tuple[Trial, ...]] = field(repr=False)
    note: str = ""

    def __str__(self) -> str:
        how = "measured: it ran each time, and the next did not" if self.trials else "estimated"
        off = f" The estimate's answer is {self.estimated:,}." if self.estimated != self.value else ""
        what = f"{self.argument} {self.value:,} is the largest that fits into the {format_bytes(self.budget_bytes)}"
        return f"{what} of {self.device!r} ({how}).{off} {self.note}".strip()


def max_batch_size(
    network: Any,
    *,
    device: str | None = None,
    budget: int | str | None = None,
    measure: bool = False,
    on_probe: Callable[[Probe], None] | None = None,
    **options: Any,
) -> Largest:
    """The largest batch with which training ``network`` fits into a budget, by the modelled allocator.

    It completes in every order of execution that is played, and one more example does not: both are looked at.
    device, budget and the other keywords: as in `memviz.fits`. On the reference device a budget is whole MiB.
    measure: also by trials, five of each batch, since TensorFlow draws the order of execution anew in each process:
    with the answer all ran; with one more example, one ran out of memory.
    on_probe is called with each `Probe`; an exception that it raises, or Ctrl-C, ends the search.

    Raises ValueError where no batch fits, where the memory does not depend on the batch, and as `memviz.estimate`
    does; RuntimeError where a trial ends otherwise than by completing or running out of memory.
    """
    return _Search(lambda _: network, BATCH, 1, device, budget, on_probe, {BATCH: 1, **options}).answer(measure)


def max_argument(
    network: Callable[..., Any],
    argument: str,
    *,
    batch_size: int,
    lowest: int | None = None,
    device: str | None = None,
    budget: int | str | None = None,
    measure: bool = False,
    on_probe: Callable[[Probe], None] | None = None,
    **options: Any,
) -> Largest:
    """The largest whole number for one argument of a function that builds a network, such as the input's length.

    argument: its name; the function's others keep their defaults. lowest: where the search begins; None: the argument's
    default, else 1. The rest is as in `max_batch_size`.

    Raises TypeError where the function has no such argument, and what `max_batch_size` raises.
    """
    if not callable(network) or argument not in (known := inspect.signature(network).parameters):
        have = ", ".join(known) if callable(network) else "none, since it is no function"
        raise TypeError(f"{argument!r} is no argument of the function that builds the network; it has: {have}.")
    default = known[argument].default
    lowest = lowest or (default if isinstance(default, int) and not isinstance(default, bool) else 1)
    build = lambda value: partial(network, **{argument: value})  # noqa: E731
    options[BATCH] = batch_size
    return _Search(build, argument, whole_number("lowest", lowest), device, budget, on_probe, options).answer(measure)


class _Search:
    """One search: what is asked, and what was seen so far."""

    def __init__(
        self, build: Callable[[int], Any], argument: str, lowest: int, device: str | None, budget: int | str | None,
        on_probe: Callable[[Probe], None] | None, options: dict[str, Any],
    ) -> None:  # fmt: skip
        self._build, self._argument, self._lowest, self._on_probe = build, argument, lowest, on_probe
        device, budget_bytes = capacity(device, budget)
        # TensorFlow's limit is in whole MiB.
        self._setup = TrainingSetup.create(device=device, budget=budget_bytes // MIB * MIB, **options)
        self._seen: dict[int, Probe] = {}
        self._probes: list[Probe] = []
        self._trials: dict[int, tuple[Trial, ...]] = {}
        self._refused: dict[int, str] = {}

    def answer(self, measure: bool) -> Largest:
        device, budget_bytes = self._setup.device, self._setup.budget_bytes
        assert device is not None
        assert budget_bytes is not None
        if not self._fits(self._lowest):
            fit = fit_of(*self._asked(self._lowest))
            raise ValueError(
                f"Not even {self._argument}={self._lowest:,} fits. {fit} memviz.advise shows what would help."
            )
        estimated = value = self._edge(self._fits, self._guess())
        if measure:
            value = self._edge(self._runs, estimated)
        batch_size = value if self._argument == BATCH else self._setup.batch_size
        note = f"{self._argument}={value + 1:,} was refused: {why}" if (why := self._refused.get(value + 1)) else ""
        return Largest(
            self._argument, value, batch_size, estimated, budget_bytes, device, tuple(self._probes), self._trials, note
        )

    def _fits(self, value: int) -> bool:
        if value not in self._seen:
            try:
                share, used = shared_service().probe(*self._asked(value))
            except ValueError as error:
                if value == self._lowest:
                    raise
                self._refused[value] = str(error)  # there is no such network or batch: the end lies before it
                share, used = 0, 0
            self._seen[value] = self._told(Probe(value, share == 1, used))
        return self._seen[value].fits

    def _runs(self, value: int) -> bool:
        if value not in self._trials:
            tried: list[Trial] = []
            while len(tried) < _PROVEN and all(trial.status == "completed" for trial in tried):
                tried.append(trial := RunningTrial(*self._asked(value)).wait())
                if trial.status not in ("completed", "out_of_memory"):
                    raise RuntimeError(f"The trial with {self._argument}={value:,} does not tell: {trial.error}")
            self._trials[value] = tuple(tried)
            self._told(Probe(value, tried[-1].status == "completed", measured=True))
        return self._trials[value][-1].status == "completed"

    def _asked(self, value: int) -> tuple[Network, TrainingSetup]:
        setup = replace(self._setup, batch_size=value) if self._argument == BATCH else self._setup
        return Network.of(self._build(value)), setup

    def _told(self, probe: Probe) -> Probe:
        self._probes.append(probe)
        if self._on_probe is not None:
            self._on_probe(probe)
        return probe

    def _guess(self) -> int:
        """About where the budget is used up, by straight lines through the values on both sides of it."""
        budget, guess = self._setup.budget_bytes or 0, 2 * self._lowest
        for _ in range(_GUESSES):
            fits = self._fits(guess)
            known = sorted((p.value, p.used_bytes) for p in self._seen.values() if p.used_bytes)
            over = next((n for n, (_, used) in enumerate(known) if used > budget), len(known) - 1)
            (low, used), (high, more) = known[max(over - 1, 0)], known[max(over, 1)]  # on both sides, else the nearest
            if more <= used:  # nothing seen of it yet
                self._check_it_matters(guess, more)
                following = 16 * guess
            else:
                following = low + int((budget - used) * (high - low) / (more - used))
            following = min(max(following, self._lowest), 64 * guess, LARGEST - 1)
            if not fits and guess in self._refused:
                following = min(following, (guess + self._lowest) // 2)
            if following == guess or following in self._seen:
                return following
            guess = following
        return guess

    def _check_it_matters(self, value: int, used: int) -> None:
        if value >= _IGNORED * self._lowest:
            raise ValueError(
                f"{self._argument} does not decide here: from {self._lowest:,} to {value:,} the network needs the same "
                f"{format_bytes(used)}."
            )

    def _edge(self, fits: Callable[[int], bool], guess: int) -> int:
        """The value that fits where the next does not, from a guess on in ever longer steps, then by halves."""
        step, low = 1, guess
        if fits(guess):
            while fits(low + step):
                low, step = low + step, 2 * step
            high = low + step
        else:
            high = guess
            while not fits(low := max(high - step, self._lowest)):
                if low == self._lowest:
                    raise ValueError(f"Not even {self._argument}={low:,} ran: {self._trials[low][-1].error}")
                high, step = low, 2 * step
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low
