"""The parent's side of a trial: a few real training steps in a child process, watched, limited, and always ended."""

from __future__ import annotations

import dataclasses
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from memviz.child.machine import available_bytes, chosen_device
from memviz.child.process import ChildEndedError, ChildProcess
from memviz.interchange import profile_from_dict, setup_to_message
from memviz.measurement.failure import PHASE_WORDS, Failure, failure_sentences, parse_failure
from memviz.models.network import Network
from memviz.profile import MemoryProfile, Phase
from memviz.setup import REFERENCE, TrainingSetup, unknown_name
from memviz.units import GIB, MIB, format_bytes

Status = Literal["completed", "out_of_memory", "host_out_of_memory", "cancelled", "timed_out", "crashed"]
Timeout = float | Mapping[str, float] | None
# For TensorFlow itself in the child and its matrix kernels' packed blocks, beside what its allocator hands out:
# 1.28 GiB seen with bird_audio, whose child held 19.93 GB under a limit of 18.56 GB.
HOST_RESERVE_BYTES = 3 * GIB // 2
FIRST_STEADY_STEP = 3  # two steps warm up
RECORDED_STEP = 4  # after the first and two that warm up


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
    memory ran out, is what was alive when the request could not be served.
    """

    status: Status
    setup: TrainingSetup
    device: str
    device_limit_bytes: int | None
    steps: tuple[TrialStep, ...]
    phases: Mapping[str, Phase]
    data: str
    seconds: float
    error: str | None = None
    failure: Failure | None = None
    profile: MemoryProfile | None = None  # an estimate's shares are never spread over a measured total
    at_failure: MemoryProfile | None = None

    @property
    def budget_bytes(self) -> int | None:
        """The budget that was asked for, in bytes; None: no limit beyond the device."""
        return self.setup.budget_bytes

    @property
    def peak_bytes(self) -> int | None:
        """The steady step's peak in bytes; None where the trial did not come so far."""
        steady = self.phases.get("steady_step")
        return None if steady is None else steady.peak_bytes


def measure(
    network: Any,
    *,
    batch_size: int,
    optimizer: Any = "adam",
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
    seconds. on_event is called with each `TrialEvent`, in another thread; an exception it raises ends the trial and is
    raised here.
    Out of memory, a crash and a timeout are results, not exceptions.

    Raises ValueError or TypeError for a value that is not possible, HostMemoryError where this machine has too little
    free memory. Ctrl-C ends the child first. Source of the bytes: the allocator's own statistics; of a recording,
    TensorFlow's profiler, with layers and categories from the step's graph.
    """
    setup = TrainingSetup.create(
        batch_size=batch_size, optimizer=optimizer, loss=loss, dtype_policy=dtype_policy, jit_compile=jit_compile,
        device=device, budget=budget, memory_growth=memory_growth, inputs=inputs,
    )  # fmt: skip
    running = start_trial(network, setup, steps=steps, record=record, timeout=timeout, on_event=on_event)
    try:
        return running.wait()
    except BaseException:
        running.cancel()
        raise


def start_trial(
    network: Any,
    setup: TrainingSetup,
    *,
    steps: int = 5,
    record: bool = False,
    timeout: Timeout = None,
    on_event: Callable[[TrialEvent], None] | None = None,
) -> RunningTrial:
    """Start a trial and return at once; arguments, errors and events as in `measure`.

    Where memory is short the estimate is asked for first, which takes seconds.
    """
    network = Network.of(network)
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ValueError(f"steps={steps!r} is not possible; it is a whole number from 1 on.")
    _check_timeout(timeout)
    device = chosen_device(setup.device)
    request = {
        "network": network.to_message(),
        "setup": setup_to_message(setup),
        "steps": max(steps, RECORDED_STEP) if record else steps,
        "record": record,
        "device": device,
        "memory_growth": setup.memory_growth,
        "limit_bytes": _host_limit(network, setup) if device == REFERENCE else setup.budget_bytes,
    }
    return RunningTrial(request, setup, timeout, on_event)


class RunningTrial:
    """A trial under way, made by `start_trial`. May be cancelled and waited for from any thread."""

    def __init__(
        self,
        request: dict[str, Any],
        setup: TrainingSetup,
        timeout: Timeout,
        on_event: Callable[[TrialEvent], None] | None,
    ) -> None:
        self._request, self._setup, self._timeout, self._on_event = request, setup, timeout, on_event
        self._began = self._phase_began = time.monotonic()
        self._phase, self._data, self._build_peak_bytes = "import", "", None
        self._steps: list[TrialStep] = []
        self._profiles: dict[str, MemoryProfile] = {}
        self._cancelled = False
        self._trial: Trial | None = None
        self._callback_error: BaseException | None = None
        self._child = ChildProcess("memviz.measurement.worker")
        self._thread = threading.Thread(target=self._run, name="memviz-trial", daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether the trial has not ended yet."""
        return self._trial is None

    @property
    def pid(self) -> int:
        """The child's process number."""
        return self._child.pid

    def cancel(self) -> None:
        """End the trial; when this returns the child is gone. After the end it does nothing."""
        self._cancelled = True
        self._child.kill()

    def wait(self, timeout: float | None = None) -> Trial:
        """The trial, when it has ended. TimeoutError after ``timeout`` seconds; the trial then goes on.

        Raises what on_event raised.
        """
        if threading.current_thread() is not self._thread:  # on_event may ask at the event "ended"
            self._thread.join(timeout)
        if self._callback_error is not None:
            raise self._callback_error
        if self._trial is None:
            raise TimeoutError(f"The trial is still running after {timeout} s.")
        return self._trial

    def _run(self) -> None:
        outcome: dict[str, Any] = {}
        files = tempfile.TemporaryDirectory(prefix="memviz-") if self._request["record"] else None
        try:
            self._emit("phase")
            self._child.send(self._request | {"folder": files and files.name})
            while not outcome:
                outcome = self._handle(self._child.receive(self._seconds_left()))
        except ChildEndedError:
            outcome = self._ended_by_itself(self._child.kill())
        except TimeoutError:
            outcome = {"status": "timed_out", "error": self._timeout_sentence()}
        except BaseException as error:  # raised by on_event: not lost, but raised again by wait
            self._callback_error = error
            outcome = {"status": "cancelled", "error": f"on_event raised {error!r}."}
        self._child.kill()
        if files is not None:
            files.cleanup()
        self._trial = self._result(**outcome)
        try:
            self._emit("ended")
        except BaseException as error:
            self._callback_error = self._callback_error or error

    def _handle(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Take in one message; the outcome once there is one."""
        kind = message["kind"]
        if kind == "phase":
            self._phase, self._phase_began = message["phase"], time.monotonic()
            self._emit("phase")
        elif kind == "sample":
            self._emit("sample", **{k: v for k, v in message.items() if k != "kind"})
        elif kind == "step":
            step = TrialStep(**{k: v for k, v in message.items() if k != "kind"})
            self._steps.append(step)
            amounts = {k: getattr(step, k) for k in ("bytes_in_use", "peak_bytes", "host_rss_bytes")}
            self._emit("step", step=step, **amounts)
        elif kind == "built":
            self._build_peak_bytes = message["peak_bytes"]
        elif kind == "data":
            self._data = message["data"]
        elif kind == "profile":
            profile = profile_from_dict(message["profile"])
            self._profiles[profile.phase] = profile
        elif kind == "failed":
            return self._failed(**{k: v for k, v in message.items() if k != "kind"})
        elif kind == "done":
            return {"status": "completed"}
        return {}

    def _emit(self, kind: Any, **amounts: Any) -> None:
        if self._on_event is not None:
            self._on_event(TrialEvent(kind, self._phase, time.monotonic() - self._began, **amounts))

    def _seconds_left(self) -> float | None:
        """Until the trial, or its present phase, has taken too long."""
        if self._timeout is None:
            return None
        if isinstance(self._timeout, Mapping):
            limit, since = self._timeout.get(self._phase), self._phase_began
        else:
            limit, since = self._timeout, self._began
        return None if limit is None else max(0.0, limit - (time.monotonic() - since))

    def _timeout_sentence(self) -> str:
        whole = not isinstance(self._timeout, Mapping)
        limit = self._timeout[self._phase] if isinstance(self._timeout, Mapping) else self._timeout
        what = "The trial" if whole else f"This phase, {PHASE_WORDS[self._phase]},"
        where = f" in {PHASE_WORDS[self._phase]}" if whole else ""
        return f"{what} was stopped{where} after the {limit:g} s it may take. Way out: a longer timeout, fewer steps."

    def _failed(self, status: Status, phase: str, text: str, **recorded: Any) -> dict[str, Any]:
        """The outcome of an exception that the child caught. recorded: what was alive, where that was asked for."""
        where = PHASE_WORDS[phase]
        if status == "out_of_memory":
            failure, alive = parse_failure(text, phase, self._request["limit_bytes"]), None
            if "at_failure" in recorded:
                alive = profile_from_dict(recorded["at_failure"])
                failure = dataclasses.replace(failure, in_use_bytes=alive.peak_bytes, **recorded["free"])
            error = " ".join([failure_sentences(failure), recorded.get("note", "")]).strip()
            return {"status": status, "error": error, "failure": failure, "at_failure": alive}
        if status == "host_out_of_memory":
            return {"status": status, "error": f"This machine ran out of memory in {where}: {text or 'MemoryError'}"}
        return {"status": status, "error": f"The trial failed in {where}: {text}"}

    def _ended_by_itself(self, code: int) -> dict[str, Any]:
        """The outcome of a child that is gone without a word."""
        if self._cancelled:
            return {"status": "cancelled", "error": f"Cancelled in {PHASE_WORDS[self._phase]}."}
        if code == -signal.SIGKILL:
            return {
                "status": "host_out_of_memory",
                "error": f"The child process was killed in {PHASE_WORDS[self._phase]}, as Linux does when a machine "
                "runs out of memory. Way out: a smaller budget, or close other programs.",
            }
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return self._crashed(f"the child process ended with {how}.")

    def _crashed(self, text: str) -> dict[str, Any]:
        tail = self._child.output_tail[-2000:]
        end = f"\nThe end of what it wrote:\n{tail}" if tail else ""
        return {"status": "crashed", "error": f"The trial failed in {PHASE_WORDS[self._phase]}: {text}{end}"}

    def _result(self, **outcome: Any) -> Trial:
        return Trial(
            **outcome,
            setup=self._setup,
            device=self._request["device"],
            device_limit_bytes=self._request["limit_bytes"],
            steps=tuple(self._steps),
            phases={phase.name: phase for phase in self._phases()},
            data=self._data,
            seconds=time.monotonic() - self._began,
            profile=self._profiles.get("steady_step"),
        )

    def _phases(self) -> list[Phase]:
        steps = [step.peak_bytes for step in self._steps]
        peaks = {"build": self._build_peak_bytes, "first_step": steps[0] if steps else None}
        if len(steps) >= FIRST_STEADY_STEP:
            peaks["steady_step"] = statistics.median_low(steps[FIRST_STEADY_STEP - 1 :])
        return [Phase(name, peak, self._profiles.get(name)) for name, peak in peaks.items() if peak is not None]


def _check_timeout(timeout: Timeout) -> None:
    if timeout is None:
        return
    for name in timeout if isinstance(timeout, Mapping) else ():
        if name not in PHASE_WORDS:
            raise ValueError(unknown_name("timeout phase", name, PHASE_WORDS))
    for seconds in timeout.values() if isinstance(timeout, Mapping) else (timeout,):
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
            raise ValueError(f"timeout={seconds!r} is not possible; it is a number of seconds above 0.")


def _host_limit(network: Network, setup: TrainingSetup) -> int:
    """The reference device's limit in bytes, whole MiB: the budget, but never more than the host can promise."""
    budget, promise = setup.budget_bytes, (available_bytes() - HOST_RESERVE_BYTES) // MIB * MIB
    if budget is not None and budget < MIB:
        raise ValueError(f"A budget of {budget} B is not possible; the reference device needs at least 1 MiB.")
    if budget is not None and budget <= promise:
        return budget // MIB * MIB
    from memviz.estimation.service import shared_service

    need = shared_service().estimate(network, setup).required_bytes
    wanted = need if budget is None else min(need, budget)
    if wanted > promise:
        raise HostMemoryError(
            f"This trial would need {format_bytes(wanted)} of memory and this machine has {format_bytes(promise)} free "
            f"for it ({format_bytes(HOST_RESERVE_BYTES)} kept for TensorFlow itself). Way out: a smaller budget, which "
            "shows where it fails; a smaller batch or network; or close other programs."
        )
    return promise
