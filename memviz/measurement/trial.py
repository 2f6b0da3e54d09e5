"""The parent's side of a trial: a few real training steps in a child process, watched, limited, and always ended."""

from __future__ import annotations

import dataclasses
import math
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

from memviz.child.machine import available_bytes, chosen_device, oom_kills
from memviz.child.process import ChildEndedError, ChildProcess
from memviz.failure import PHASE_WORDS, Failure, failure_sentences, parse_failure
from memviz.interchange import profile_from_dict
from memviz.models.network import Network, packed
from memviz.profile import MemoryProfile, Phase
from memviz.setup import (
    BACKEND,
    FIRST_REGION_BYTES,
    REFERENCE,
    REFERENCE_ENVIRONMENT,
    TrainingSetup,
    unknown_name,
    whole_number,
)
from memviz.units import GIB, MIB, format_bytes

Status = Literal["completed", "out_of_memory", "host_out_of_memory", "cancelled", "timed_out", "crashed"]
Timeout = float | Mapping[str, float] | None
# For TensorFlow itself in the child and its matrix kernels' packed blocks, beside what its allocator hands out:
# 1.28 GiB seen with bird_audio, whose child held 19.93 GB under a limit of 18.56 GB.
HOST_RESERVE_BYTES = 3 * GIB // 2
FIRST_STEADY_STEP = 3  # two steps warm up
RECORDED_STEP = 4  # after the first and two that warm up
_SENTENCES = {
    "cancelled": "Cancelled in {where}.",
    "crashed": "The trial failed in {where}: {why}",
    "host_out_of_memory": "This machine ran out of memory in {where}: {why} Way out: a smaller budget, or close other "
    "programs.",
    "timed_out": "Stopped in {where}, after {why}. Way out: a longer timeout, fewer steps.",
}


class HostMemoryError(MemoryError):
    """A trial would need more memory than this machine has free; it was not started."""


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
    phase: str  # "import", "build", "first_step" or "steady_step"
    seconds: float
    bytes_in_use: int = 0
    peak_bytes: int = 0
    host_rss_bytes: int = 0
    step: TrialStep | None = None


@dataclass(frozen=True)
class Trial:
    """What a trial has measured, and how it ended.

    error: in words, None where completed. failure: the request that could not be served, where status is
    out_of_memory. phases: the peaks of the phases that were completed, "build", "first_step" and "steady_step"; the
    steady step's is the median of the third and later steps. device_limit_bytes: what the device could give.
    data: what was trained on. seconds: wall time of the whole trial.

    Where the trial was recorded the phases have profiles, profile is that of the fourth step, and at_failure, where
    memory ran out, is what was alive when the request could not be served. note: why a recording is missing, or from
    which step on the loss is no number.
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
    profile: MemoryProfile | None = field(
        default=None, repr=False
    )  # an estimate's shares are never spread over a measured total
    at_failure: MemoryProfile | None = field(default=None, repr=False)
    note: str = ""

    @property
    def peak_bytes(self) -> int | None:
        """The steady step's peak in bytes; None where the trial did not come so far."""
        steady = self.phases.get("steady_step")
        return None if steady is None else steady.peak_bytes


def measure(
    network: Any,
    *,
    batch_size: int,
    optimizer: Any = None,
    loss: Any = None,
    dtype_policy: str | None = None,
    jit_compile: bool | Literal["auto"] = "auto",
    inputs: Any = None,
    device: str | None = None,
    budget: int | str | None = None,
    memory_growth: bool = False,
    steps: int = 5,
    record: bool = False,
    timeout: Timeout = None,
    on_event: Callable[[TrialEvent], None] | None = None,
) -> Trial:
    """Train ``network`` for a few real steps in a child process and report the memory it took.

    The keywords up to memory_growth are `TrainingSetup`'s; budget is bytes or text such as ``"9513 MiB"``. record:
    also every allocation of the build, the first and the fourth step, as profiles (there are four steps then at
    least). timeout: seconds for the whole trial, or a mapping from "import", "build", "first_step", "steady_step" to
    seconds. on_event is called with each `TrialEvent`; an exception it raises ends the trial and is raised here.
    Out of memory, a crash and a timeout are results, not exceptions. The peaks of the same trial differ from process
    to process with the order in which TensorFlow starts a step's inputs; see `Estimate.peak_ranges`.

    Raises ValueError or TypeError for a value that is not possible, HostMemoryError where this machine has too little
    free memory. Ctrl-C ends the child. Source of the bytes: the allocator's own statistics; of a recording,
    TensorFlow's profiler, with layers and categories from the step's graph.
    """
    setup = TrainingSetup.create(
        batch_size=batch_size, optimizer=optimizer, loss=loss, dtype_policy=dtype_policy, jit_compile=jit_compile,
        device=device, budget=budget, memory_growth=memory_growth, inputs=inputs,
    )  # fmt: skip
    return RunningTrial(network, setup, steps=steps, record=record, timeout=timeout, on_event=on_event).wait()


class RunningTrial:
    """A trial under way: its child runs when this is made; arguments and errors as in `measure`. pid: the child's.

    One thread waits for it, any may cancel it. Where memory is short the estimate is asked for first: that takes
    seconds.
    """

    def __init__(
        self,
        network: Any,
        setup: TrainingSetup,
        *,
        steps: int = 5,
        record: bool = False,
        timeout: Timeout = None,
        on_event: Callable[[TrialEvent], None] | None = None,
    ) -> None:
        network, steps, device = Network.of(network), whole_number("steps", steps), chosen_device(setup.device)
        _check_timeout(timeout)
        if not isinstance(record, bool):
            raise TypeError(f"record={record!r} is not possible; it is True or False.")
        if on_event is not None and not callable(on_event):
            raise TypeError(
                f"on_event={on_event!r} is not possible; it is a function that takes a TrialEvent, or None."
            )
        limit_bytes = host_limit(network, setup, available_bytes()) if device == REFERENCE else setup.budget_bytes
        self._request: dict[str, Any] = {
            "question": packed(network, setup),
            "steps": max(steps, RECORDED_STEP) if record else steps,
            "device": device,
            "memory_growth": setup.memory_growth,
            "limit_bytes": limit_bytes,
        }
        self._setup, self._record, self._timeout, self._on_event = setup, record, timeout, on_event
        self._began = self._since = time.monotonic()
        self._limit = None if isinstance(timeout, Mapping) else timeout  # seconds since self._since
        self._phase, self._cancelled = "import", False
        self._built: Mapping[str, Any] = {}  # the build's peak_bytes, and in words the data to train on
        self._steps: list[TrialStep] = []
        self._profiles: dict[str, MemoryProfile] = {}
        self._notes: list[str] = []
        self._oom_kills = oom_kills()
        self._trial: Trial | None = None
        variables = environment(device, limit_bytes, setup.memory_growth)
        self._child = ChildProcess("memviz.measurement.worker", variables)
        self.pid = self._child.pid

    def cancel(self) -> None:
        """End the trial; when this returns the child is gone. After the end it does nothing."""
        self._cancelled = True
        self._child.kill()

    def wait(self) -> Trial:
        """Follow the trial to its end, calling on_event in this thread; an exception it raises ends the trial."""
        if self._trial is None:
            with tempfile.TemporaryDirectory(prefix="memviz-") if self._record else nullcontext() as folder:
                try:
                    outcome = self._follow(folder)
                finally:
                    self._child.kill()
            self._trial = self._result(**outcome)
            self._emit("ended")
        return self._trial

    def _follow(self, folder: str | None) -> dict[str, Any]:
        """Take in what the child says until it is done, gone, or out of time; how that was."""
        outcome: dict[str, Any] = {}
        self._enter("import")
        try:
            self._child.send(self._request | {"folder": folder})
            while not outcome:
                left = None if self._limit is None else max(0.0, self._since + self._limit - time.monotonic())
                outcome = self._handle(**self._child.receive(left))
        except ChildEndedError:
            return self._ended_by_itself(self._child.kill())
        except TimeoutError:
            whose = "this phase" if isinstance(self._timeout, Mapping) else "the trial"
            return self._outcome("timed_out", f"the {self._limit:g} s that {whose} may take")
        return outcome

    def _handle(self, kind: str, **told: Any) -> dict[str, Any]:
        """Take in one message; the outcome once there is one."""
        match kind:
            case "phase":
                self._enter(**told)
            case "sample":
                self._emit("sample", **told)
            case "step":
                self._steps.append(step := TrialStep(**told))
                amounts = {name: told[name] for name in ("bytes_in_use", "peak_bytes", "host_rss_bytes")}
                self._emit("step", step=step, **amounts)
            case "built":
                self._built = told
            case "note":
                self._notes.append(told["text"])
            case "profile":
                profile = profile_from_dict(told["profile"])
                self._profiles[profile.phase] = profile
            case "failed":
                return self._failed(**told)
            case "done":
                return {"status": "completed"}
        return {}

    def _emit(self, kind: Any, **amounts: Any) -> None:
        if self._on_event is not None:
            self._on_event(TrialEvent(kind, self._phase, time.monotonic() - self._began, **amounts))

    def _enter(self, phase: str) -> None:
        self._phase = phase
        if isinstance(self._timeout, Mapping):
            self._limit, self._since = self._timeout.get(phase), time.monotonic()
        self._emit("phase")

    def _outcome(self, status: Status, why: str = "") -> dict[str, Any]:
        return {"status": status, "error": _SENTENCES[status].format(where=PHASE_WORDS[self._phase], why=why)}

    def _failed(self, status: Status, text: str, weight: str = "", **recorded: Any) -> dict[str, Any]:
        """The outcome of an exception that the child caught. weight: of `Failure`. recorded: what was alive, where that
        was asked for.
        """
        if status != "out_of_memory":
            return self._outcome(status, text)
        failure, alive = parse_failure(text, self._phase, self._request["limit_bytes"]), None
        failure = dataclasses.replace(failure, weight=weight)
        if "at_failure" in recorded:
            alive = profile_from_dict(recorded["at_failure"])
            failure = dataclasses.replace(failure, in_use_bytes=alive.peak_bytes, **recorded["free"])
        error = " ".join([failure_sentences(failure, self._setup.batch_size), recorded.get("note", "")]).strip()
        return {"status": status, "error": error, "failure": failure, "at_failure": alive}

    def _ended_by_itself(self, code: int) -> dict[str, Any]:
        """The outcome of a child that is gone without a word."""
        if self._cancelled:
            return self._outcome("cancelled")
        if code == -signal.SIGKILL:
            return self._killed()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        said = f"The end of what it wrote:\n{self._child.output_tail or '(nothing)'}"
        return self._outcome("crashed", f"the child process ended with {how}. {said}")

    def _killed(self) -> dict[str, Any]:
        """The outcome of a child that was killed from outside: by the kernel for want of memory, or by somebody."""
        free, kills, before = available_bytes(), oom_kills(), self._oom_kills
        if free < HOST_RESERVE_BYTES if kills is None or before is None else kills > before:
            return self._outcome("host_out_of_memory", "its system killed the child process.")
        return self._outcome("crashed", f"somebody killed the child process; {format_bytes(free)} of memory were free.")

    def _result(self, **outcome: Any) -> Trial:
        for step in self._steps:
            if step.loss is not None and not math.isfinite(step.loss):
                self._notes.append(f"The loss is {step.loss} from step {step.index} on; training went on.")
                break
        peaks = [step.peak_bytes for step in self._steps]
        steady = peaks[FIRST_STEADY_STEP - 1 :]
        found = {
            "build": self._built.get("peak_bytes"),
            "first_step": peaks[0] if peaks else None,
            "steady_step": statistics.median_low(steady) if steady else None,
        }
        return Trial(
            **outcome,
            setup=self._setup,
            device=self._request["device"],
            device_limit_bytes=self._request["limit_bytes"],
            steps=tuple(self._steps),
            phases={n: Phase(n, peak, self._profiles.get(n)) for n, peak in found.items() if peak is not None},
            data=self._built.get("data", ""),
            note=" ".join(self._notes),
            seconds=time.monotonic() - self._began,
            profile=self._profiles.get("steady_step"),
        )


def environment(device: str, limit_bytes: int | None, memory_growth: bool) -> dict[str, str]:
    """What has to stand in the child's environment before it imports TensorFlow."""
    if device != REFERENCE:
        return BACKEND | {"TF_FORCE_GPU_ALLOW_GROWTH": "true" if memory_growth else "false"}
    assert limit_bytes is not None
    # Before the region proper TensorFlow takes a small one for its own tensors; the limit is raised by as much.
    room = limit_bytes if memory_growth else limit_bytes + FIRST_REGION_BYTES
    limits = {"TF_CPU_ALLOCATOR_USE_BFC": "true", "TF_CPU_BFC_MEM_LIMIT_IN_MB": str(room // MIB)}
    return REFERENCE_ENVIRONMENT | limits


def _check_timeout(timeout: Timeout) -> None:
    for name, seconds in timeout.items() if isinstance(timeout, Mapping) else [("import", timeout)]:
        if name not in PHASE_WORDS:
            raise ValueError(unknown_name("timeout phase", name, PHASE_WORDS))
        if isinstance(seconds, bool) or not (seconds is None or (isinstance(seconds, int | float) and seconds > 0)):
            raise ValueError(f"timeout={seconds!r} is not possible; it is a number of seconds above 0.")


def host_limit(network: Network, setup: TrainingSetup, free_bytes: int) -> int:
    """The reference device's limit in bytes, whole MiB: the budget, but never more than the host can promise.

    free_bytes: of the host's memory. Raises HostMemoryError where training needs more.
    """
    budget, promise = setup.budget_bytes, max(0, free_bytes - HOST_RESERVE_BYTES) // MIB * MIB
    if budget is not None and budget <= promise:
        return budget // MIB * MIB
    from memviz.estimation.service import shared_service

    try:
        need = shared_service().estimate(network, setup).required_bytes
    except ValueError as error:
        if "memviz.measure" not in str(error):
            raise
        return promise  # there is no estimate of it, such as of a loop: it may take what the host has
    wanted = need if budget is None else min(need, budget)
    if wanted > promise:
        raise HostMemoryError(
            f"This trial would need {format_bytes(wanted)} of memory and this machine has {format_bytes(promise)} free "
            f"for it ({format_bytes(HOST_RESERVE_BYTES)} kept for TensorFlow itself). Way out: a smaller budget, which "
            "shows where it fails; a smaller batch or network; or close other programs."
        )
    return promise
