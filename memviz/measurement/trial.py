"""The parent's side of a trial: a few real training steps in a child process, watched, limited, and always ended."""

from __future__ import annotations

import dataclasses
import math
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Literal

from memviz.child.machine import available_bytes, budget_of, child_environment, chosen_device, oom_kills
from memviz.child.process import ChildEndedError, ChildProcess
from memviz.failure import BATCH, PHASE_WORDS, failure_sentences, parse_failure
from memviz.interchange import profile_from_dict
from memviz.measurement.feeder import Feeder
from memviz.measurement.result import Status, Trial, TrialEvent, TrialStep
from memviz.measurement.waterfall import DriverMemory, Waterfall, driver_memory
from memviz.models.network import Network, packed
from memviz.profile import MemoryProfile, Phase
from memviz.setup import INFERENCE, REFERENCE, TrainingSetup, unknown_name, whole_number
from memviz.units import GIB, MIB, format_bytes

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
    sample_weight: bool = False,
    steps: int = 5,
    record: bool = False,
    data: Any = None,
    inference: bool = False,
    timeout: Timeout = None,
    on_event: Callable[[TrialEvent], None] | None = None,
) -> Trial:
    """Train ``network`` for a few real steps in a child process and report the memory it took.

    The keywords up to sample_weight are `TrainingSetup`'s; budget is bytes or text such as ``"9513 MiB"``, or a share
    of the device's memory (for the reference device, of the host's) such as ``"40 %"``.
    steps: how many are run; what is steady begins with the third.
    record: also every allocation of the build, the first and the fourth step, as profiles (there are four steps then
    at least).
    data: what is trained on, in place of handwritten digits: batches (features, labels), or with sample weights, from a
    tf.data.Dataset, a keras.utils.PyDataset, a generator, a tuple of arrays (cast to floatx, as `fit` does), or a
    function that returns one of these (which may take batch_size). A function is called in a process of its own, so
    that neither its pipeline nor its files stay; all other data is read in this process, and none on the device that
    is measured.
    inference: also one batch of evaluation and one of prediction, of Keras' default of 32 examples, or of the given
    data as it is.
    timeout: seconds for the whole trial, or a mapping from phases, such as "build", to seconds.
    on_event is called with each `TrialEvent`; an exception it raises ends the trial and is raised here.

    Out of memory, a crash and a timeout are results, not exceptions. The peaks of the same trial differ from process
    to process with the order in which TensorFlow starts a step's inputs; see `Estimate.peak_ranges`.

    Raises ValueError or TypeError for a value that is not possible, HostMemoryError where this machine has too little
    free memory. Ctrl-C ends the child. Source of the bytes: the allocator's own statistics; of a recording,
    TensorFlow's profiler, with layers and categories from the step's graph.
    """
    setup = TrainingSetup.create(
        batch_size=batch_size, optimizer=optimizer, loss=loss, dtype_policy=dtype_policy, jit_compile=jit_compile,
        device=device, budget=budget_of(budget, device), memory_growth=memory_growth, inputs=inputs,
        sample_weight=sample_weight,
    )  # fmt: skip
    return RunningTrial(
        network, setup, steps=steps, record=record, data=data, inference=inference, timeout=timeout, on_event=on_event
    ).wait()


class RunningTrial:
    """A trial under way: its child runs when this is made; arguments and errors as in `measure`. pid: the child's.

    Any thread may wait for it, or cancel it. Where memory is short the estimate is asked for first: that takes
    seconds.
    """

    def __init__(
        self,
        network: Any,
        setup: TrainingSetup,
        *,
        steps: int = 5,
        record: bool = False,
        data: Any = None,
        inference: bool = False,
        timeout: Timeout = None,
        on_event: Callable[[TrialEvent], None] | None = None,
    ) -> None:
        network, steps, device = Network.of(network), whole_number("steps", steps), chosen_device(setup.device)
        steps = max(steps, RECORDED_STEP) if record is True else steps
        _check_timeout(timeout)
        for name, value in (("record", record), ("inference", inference)):
            if not isinstance(value, bool):
                raise TypeError(f"{name}={value!r} is not possible; it is True or False.")
        if on_event is not None and not callable(on_event):
            raise TypeError(
                f"on_event={on_event!r} is not possible; it is a function that takes a TrialEvent, or None."
            )
        self._feeder = None if data is None else Feeder(data, setup.batch_size, steps + len(INFERENCE))
        limit_bytes = host_limit(network, setup, available_bytes()) if device == REFERENCE else setup.budget_bytes
        self._request: dict[str, Any] = {
            "question": packed(network, setup),
            "steps": steps,
            "device": device,
            "memory_growth": setup.memory_growth,
            "limit_bytes": limit_bytes,
            "fed": self._feeder is not None,
            "inference": inference,
        }
        self._setup, self._record, self._timeout, self._on_event = setup, record, timeout, on_event
        self._began = self._since = time.monotonic()
        self._limit = None if isinstance(timeout, Mapping) else timeout  # seconds since self._since
        self._phase, self._waiting, self._cancelled, self._failed_at = "import", False, False, 0  # its peak in bytes
        self._built: Mapping[str, Any] = {}  # the build's peak_bytes, and in words the data to train on
        self._steps: list[TrialStep] = []
        self._inferred: dict[str, int] = {}  # phase -> peak, in bytes
        self._driver: DriverMemory | None = None  # after the latest step
        self._profiles: dict[str, MemoryProfile] = {}
        self._notes: list[str] = []
        self._oom_kills = oom_kills()
        self._trial: Trial | None = None
        self._one_waits = threading.RLock()
        variables = child_environment(device, limit_bytes, setup.memory_growth)
        feeding = [self._feeder.receiving] if self._feeder else []
        self._child = ChildProcess("memviz.measurement.worker", variables, *feeding)
        self.pid = self._child.pid

    def cancel(self) -> None:
        """End the trial; when this returns the child is gone. After the end it does nothing."""
        self._cancelled = True
        self._child.kill()

    def wait(self) -> Trial:
        """Follow the trial to its end, calling on_event in this thread; an exception it raises ends the trial."""
        with self._one_waits:
            return self._trial or self._run()

    def _run(self) -> Trial:
        with tempfile.TemporaryDirectory(prefix="memviz-") if self._record or self._feeder else nullcontext() as folder:
            try:
                outcome = self._follow(folder)
            finally:
                self._child.kill()
                if self._feeder:
                    self._feeder.close()
        self._trial = self._result(**outcome)
        self._emit("ended")
        return self._trial

    def _follow(self, folder: str | None) -> dict[str, Any]:
        """Take in what the child says until it is done, gone, or out of time; how that was."""
        outcome: dict[str, Any] = {}
        self._enter("import")
        try:
            if self._feeder:
                self._feeder.start(str(folder))
            self._child.send(self._request | {"folder": folder if self._record else None})
            while not outcome:
                left = None if self._limit is None else max(0.0, self._since + self._limit - time.monotonic())
                outcome = self._handle(**self._child.receive(left))
        except ChildEndedError:
            return self._ended_by_itself(self._child, "the child process")
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
            case "waiting":
                self._waiting = True
                # Its end of the pipe may be held open by what it forked. Where it ended well, all was sent meanwhile.
                if self._feeder and (child := self._feeder.child) and child.ended and child.kill():
                    return self._feeder_gone()
            case "fed":
                self._waiting = False
            case "feeder_gone":
                return self._feeder_gone()
            case "step":
                self._steps.append(step := TrialStep(**told))
                amounts = {name: told[name] for name in ("bytes_in_use", "peak_bytes", "host_rss_bytes")}
                if self._request["device"] != REFERENCE:
                    self._driver = driver_memory(int(self._request["device"].removeprefix("GPU:")), self.pid)
                self._emit("step", step=step, **amounts)
            case "inferred":
                self._inferred[self._phase] = told["peak_bytes"]
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
        where = PHASE_WORDS[self._phase] + ", waiting for its data" * self._waiting
        return {"status": status, "error": _SENTENCES[status].format(where=where, why=why)}

    def _failed(
        self, status: Status, text: str, weight: str = "", batch: bool = False, peak_bytes: int = 0, **recorded: Any
    ) -> dict[str, Any]:
        """The outcome of an exception that the child caught. weight: of `Failure`. batch: whether it was the batch that
        found no room. peak_bytes: of the phase, so far. recorded: what was alive, where that was asked for.
        """
        if status != "out_of_memory":
            return self._outcome(status, text)
        self._failed_at = peak_bytes
        failure, alive = parse_failure(text, self._phase, self._request["limit_bytes"]), None
        failure = dataclasses.replace(failure, weight=weight, op=BATCH if batch else failure.op)
        if "at_failure" in recorded:
            alive = profile_from_dict(recorded["at_failure"])
            failure = dataclasses.replace(failure, in_use_bytes=alive.peak_bytes, **recorded["free"])
        error = " ".join([failure_sentences(failure, self._setup.batch_size), recorded.get("note", "")]).strip()
        return {"status": status, "error": error, "failure": failure, "at_failure": alive}

    def _feeder_gone(self) -> dict[str, Any]:
        """The outcome where the data came to an end in the middle: the process that reads it is gone."""
        assert self._feeder is not None
        if self._feeder.child is None:
            return self._outcome("crashed", "what reads the data left without a word, such as by sys.exit().")
        return self._ended_by_itself(self._feeder.child, "the process that reads the data")

    def _ended_by_itself(self, child: ChildProcess, who: str) -> dict[str, Any]:
        """The outcome of a child that is gone without a word."""
        if self._cancelled:
            return self._outcome("cancelled")
        if (code := child.kill()) == -signal.SIGKILL:
            return self._killed(who)
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        said = f"The end of what it wrote:\n{child.output_tail or '(nothing)'}"
        return self._outcome("crashed", f"{who} ended with {how}. {said}")

    def _killed(self, who: str) -> dict[str, Any]:
        """The outcome of a child that was killed from outside: by the kernel for want of memory, or by somebody."""
        free, kills, before = available_bytes(), oom_kills(), self._oom_kills
        if free < HOST_RESERVE_BYTES if kills is None or before is None else kills > before:
            return self._outcome("host_out_of_memory", f"its system killed {who}.")
        return self._outcome("crashed", f"somebody killed {who}; {format_bytes(free)} of memory were free.")

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
            **self._inferred,
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
            waterfall=self._waterfall([peak for peak in found.values() if peak is not None]),
            seconds=time.monotonic() - self._began,
            profile=self._profiles.get("steady_step"),
        )

    def _waterfall(self, peaks: Sequence[int]) -> Waterfall:
        return Waterfall.of(
            live_bytes=self._steps[-1].bytes_in_use if self._steps else None,
            peak_bytes=max([*peaks, self._failed_at, *(step.peak_bytes for step in self._steps)]) or None,
            reserved_bytes=None if self._request["memory_growth"] else self._request["limit_bytes"],
            host_rss_bytes=max((step.host_rss_bytes for step in self._steps), default=None),
            limit_bytes=self._request["limit_bytes"],
            driver=self._driver,
        )


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
