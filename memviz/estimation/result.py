"""What an estimate answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from memviz.failure import Failure
from memviz.models.convnet import LayerPlan
from memviz.profile import MemoryProfile, Phase


@dataclass(frozen=True)
class Estimate:
    """The estimated memory of training: a profile per phase, and the budget that all of them need.

    phases: "build", "first_step", "steady_step" and, with Keras' default batch of 32, "evaluate" and "predict" to
    `Phase`; where XLA compiles the step, no evaluation and prediction. required_bytes: the one-region budget, in bytes,
    that the first three require: with 2 % more few trainings die, with 5 % less few survive (estimation/budget.py).
    largest_phase: which of them peaks highest. loss: the loss that was used.
    peak_ranges: phase -> (lowest, highest peak in bytes): TensorFlow starts a step's inputs in an order that differs
    from process to process, and the same network may peak differently for it; of a conditional (loss scaling, gradient
    accumulation) either branch may be taken, here the one that holds more, and at the lowest once the other; and
    TensorFlow measures the kernels of a loop, and may come to run those of its lists at once.
    completing: the share, from 0 to 1, of the orders of execution that complete within the budget; None without one.
    layers: what each layer is, by the names of the profiles' rows.
    failure, at_failure: where the budget does not suffice, the first request that it cannot serve, and what is alive
    at that moment; the phases are then those without a budget.
    """

    phases: Mapping[str, Phase]
    required_bytes: int
    largest_phase: str
    loss: str
    peak_ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    completing: float | None = None
    layers: tuple[LayerPlan, ...] = field(default=(), repr=False)
    failure: Failure | None = None
    at_failure: MemoryProfile | None = field(default=None, repr=False)

    @property
    def profile(self) -> MemoryProfile:
        """The steady step's profile."""
        profile = self.phases["steady_step"].profile
        assert profile is not None
        return profile

    @property
    def peak_bytes(self) -> int:
        """The steady step's peak, in bytes of the allocator."""
        return self.phases["steady_step"].peak_bytes
