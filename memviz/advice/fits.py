"""Does training fit: yes, no, or close, since TensorFlow draws the order of execution anew in each process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from memviz.advice.devices import capacity
from memviz.estimation.budget import MORE
from memviz.estimation.result import Estimate
from memviz.estimation.service import shared_service
from memviz.failure import PHASE_WORDS
from memviz.models.network import Network
from memviz.setup import TrainingSetup
from memviz.units import format_bytes

Verdict = Literal["yes", "close", "no"]


@dataclass(frozen=True)
class Fit:
    """Whether training fits into a budget; true as a condition only where the verdict is "yes".

    verdict: "yes": it needs 2 % less than there is, and completes in each order of execution that was played; "no":
    it completes in none; "close": between them. budget_bytes: of the device, or as given. required_bytes: of
    `Estimate`. phase: which decides: the one that peaks highest.
    """

    verdict: Verdict
    required_bytes: int
    budget_bytes: int
    phase: str
    device: str
    batch_size: int
    estimate: Estimate = field(repr=False)

    @property
    def margin_bytes(self) -> int:
        """What the budget has beyond what is required; below zero: what is missing."""
        return self.budget_bytes - self.required_bytes

    def __bool__(self) -> bool:
        return self.verdict == "yes"

    def __str__(self) -> str:
        words = {"yes": "Yes", "close": "It is close", "no": "No"}[self.verdict]
        left = f"{format_bytes(abs(self.margin_bytes))} are {'left' if self.margin_bytes >= 0 else 'missing'}"
        chance = f"; {self.estimate.completing or 0:.0%} of the orders of execution complete" * (
            self.verdict == "close"
        )
        return (
            f"{words}: batch {self.batch_size:,} needs {format_bytes(self.required_bytes)} of the "
            f"{format_bytes(self.budget_bytes)} of {self.device!r}, {left} ({PHASE_WORDS[self.phase]} decides){chance}."
        )


def verdict_of(estimate: Estimate, budget_bytes: int) -> Verdict:
    """The verdict of an estimate that was made within this budget."""
    if not estimate.completing:
        return "no"
    return "yes" if estimate.completing == 1 and budget_bytes >= MORE * estimate.required_bytes else "close"


def fits(
    network: Any, *, batch_size: int, device: str | None = None, budget: int | str | None = None, **options: Any
) -> Fit:
    """Whether training ``network`` fits: yes, no or close, by how much, and which phase decides.

    device: "reference", "GPU:0", or a card of `memviz.devices()` such as "T4", of which TensorFlow's reserve is taken
    off; None: this machine's GPU, else the reference device. budget: bytes, text such as "9513 MiB", or a share of the
    device's memory such as "40 %"; None: what TensorFlow can use of the device. The other keywords are those of
    `memviz.estimate`: optimizer, loss, dtype_policy, jit_compile, inputs, memory_growth,
    sample_weight.

    Raises ValueError or TypeError as `memviz.estimate` does.
    """
    device, budget_bytes = capacity(device, budget)
    setup = TrainingSetup.create(batch_size=batch_size, device=device, budget=budget_bytes, **options)
    return fit_of(Network.of(network), setup)


def fit_of(network: Network, setup: TrainingSetup) -> Fit:
    """The same for a setup with a device and a budget."""
    assert setup.budget_bytes is not None
    assert setup.device is not None
    estimate = shared_service().estimate(network, setup)
    verdict, required = verdict_of(estimate, setup.budget_bytes), estimate.required_bytes
    phase = estimate.largest_phase
    return Fit(verdict, required, setup.budget_bytes, phase, setup.device, setup.batch_size, estimate)
