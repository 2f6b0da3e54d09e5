"""What a trial tells: while it runs, and at its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from memviz.failure import Failure
from memviz.measurement.waterfall import Waterfall
from memviz.profile import MemoryProfile, Phase
from memviz.setup import TrainingSetup

Status = Literal["completed", "out_of_memory", "host_out_of_memory", "cancelled", "timed_out", "crashed"]


@dataclass(frozen=True)
class TrialStep:
    """One training step. Bytes are the device's allocator's, but host_rss_bytes: the child's resident memory."""

    index: int  # from 1
    bytes_in_use: int  # after the step
    peak_bytes: int  # the highest in the step; for step 1 the making of the optimizer's slots included
    loss: float | None  # as Keras reports it: the mean of the steps so far; None where the model reports none
    seconds: float  # wall time; for step 1 tracing included
    host_rss_bytes: int


@dataclass(frozen=True)
class TrialEvent:
    """What a running trial says: a phase begins, a sample (four a second), a step is done, or it has ended.

    seconds: since the trial was started. Bytes are 0 where nothing is known yet. step: with kind "step".
    """

    kind: Literal["phase", "sample", "step", "ended"]
    phase: str  # "import", or one of `profile.PHASES`
    seconds: float
    bytes_in_use: int = 0
    peak_bytes: int = 0
    host_rss_bytes: int = 0
    step: TrialStep | None = None


@dataclass(frozen=True)
class Trial:
    """What a trial has measured, and how it ended.

    error: in words, None where completed. failure: the request that could not be served, where status is
    out_of_memory. phases: the peaks of the phases that were completed: build, first_step, steady_step (the median of
    the third and later steps), and with inference evaluate and predict. device_limit_bytes: what the device could give.
    data: what was trained on. seconds: wall time of the whole trial.

    Where the trial was recorded the phases have profiles, profile is that of the fourth step, and at_failure, where
    memory ran out, is what was alive when the request could not be served. note: why a recording is missing, from which
    step on the loss is no number, what is unusual about the given data. waterfall: from live bytes to the card's.
    """

    status: Status
    setup: TrainingSetup
    device: str
    device_limit_bytes: int | None
    steps: tuple[TrialStep, ...] = field(repr=False)
    phases: Mapping[str, Phase]
    data: str
    seconds: float
    error: str | None = None
    failure: Failure | None = None
    # Only of a recording: an estimate's shares are never spread over a measured total.
    profile: MemoryProfile | None = field(default=None, repr=False)
    at_failure: MemoryProfile | None = field(default=None, repr=False)
    note: str = ""
    waterfall: Waterfall = field(default=Waterfall(), repr=False)

    @property
    def peak_bytes(self) -> int | None:
        """The steady step's peak in bytes; None where the trial did not come so far."""
        steady = self.phases.get("steady_step")
        return None if steady is None else steady.peak_bytes
