"""The child of a trial: opens the device, builds the network, trains a few steps, and says what it sees.

Runs as ``python -m memviz.measurement.worker``; the parent's side is `trial`.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import keras
import psutil
import tensorflow as tf

from memviz.child.process import Channel, inherited
from memviz.failure import parse_failure
from memviz.interchange import profile_to_dict
from memviz.measurement.device import Device, open_device
from memviz.measurement.digits import Batches
from memviz.measurement.fed import FedBatches, FeederGoneError, specs_of
from memviz.measurement.recorder import BATCH, Recorder
from memviz.measurement.trace import mark
from memviz.measurement.trial import RECORDED_STEP
from memviz.models.network import Network, unpacked
from memviz.models.training import batch_specs, build_slots, compiled_model, ends, step_function
from memviz.setup import INFERENCE, INFERENCE_BATCH, TrainingSetup

SAMPLE_SECONDS = 0.25


class _Trainer:
    """One trial, phase by phase."""

    def __init__(self, send: Callable[[Mapping[str, Any]], None], request: Mapping[str, Any]) -> None:
        self._send, self._request = send, request
        self._recorder: Recorder | None = None  # where recording was asked for
        self._model: Any = None  # once it is built
        self.placing = False  # a batch on the device
        self.device: Any = None  # the `Device`, once it is open

    def run(self) -> None:
        name, limit_bytes, growth = (self._request[key] for key in ("device", "limit_bytes", "memory_growth"))
        self.device = open_device(name, limit_bytes, growth)
        self.device.reset_peak()
        threading.Thread(target=self._sample, name="memviz-sampler", daemon=True).start()
        keras.utils.set_random_seed(0)
        network, setup = unpacked(self._request["question"])
        model, batches = self._build(network, setup)
        self._train(model, batches)
        if self._request["inference"]:
            self._infer(model, batches, setup)
        with self._recording_read():
            for profile in self._recorder.profiles() if self._recorder else ():
                self._send({"kind": "profile", "profile": profile_to_dict(profile)})

    @contextmanager
    def _recording_read(self) -> Iterator[None]:
        """A recording that cannot be read is said to be so; the trial itself is as good as without one."""
        try:
            yield
        except Exception as error:
            self._recorder = None
            self._send({"kind": "note", "text": f"The recording cannot be read: {error}"})

    def what_was_alive(self) -> dict[str, Any]:
        """After the device ran out of memory: what was alive at that moment, and what had been free."""
        if self._recorder is None:
            return {}
        try:
            return self._recorded_failure(self._recorder)
        except ValueError as error:
            return {"note": f"What was alive is not known: {error}"}

    def weight_of_shape(self, shape: tuple[int, ...] | None) -> str:
        """The path of a trainable weight of that shape, if any; not of a scalar or vector, of which there are many."""
        if self._model is None or len(shape or ()) < 2:
            return ""
        return next((v.path for v in self._model.trainable_variables if tuple(v.shape) == shape), "")

    def _recorded_failure(self, recorder: Recorder) -> dict[str, Any]:
        if not recorder.recording:
            raise ValueError(f"the recording ends with step {RECORDED_STEP}.")
        recorder.stop()
        alive, dump = recorder.at_failure()
        limit = self._request["limit_bytes"] or dump.in_use_bytes + dump.free_bytes
        # What may still grow is free; the small region beside the one proper is not of the limit.
        free_bytes = min(limit, max(dump.free_bytes, limit - dump.in_use_bytes))
        free = {"free_bytes": free_bytes, "largest_free_bytes": dump.largest_free_bytes}
        for profile in recorder.profiles():
            self._send({"kind": "profile", "profile": profile_to_dict(profile)})
        return {"at_failure": profile_to_dict(alive), "free": free}

    def _recorded(self, name: str) -> AbstractContextManager[Any]:
        return self._recorder.phase(name) if self._recorder else nullcontext()

    def _sample(self) -> None:
        """Say every quarter of a second how much is in use, so that a chart moves within long steps too."""
        while True:
            self._send({"kind": "sample", **_amounts(self.device)})
            time.sleep(SAMPLE_SECONDS)

    def _enter(self, phase: str) -> None:
        self._send({"kind": "phase", "phase": phase})

    def _build(self, network: Network, setup: TrainingSetup) -> tuple[Any, Any]:
        self._enter("build")
        if self._request["folder"]:
            self._recorder = Recorder(self.device, self._request["folder"], setup)
        with self._recorded("build"):
            self._model = model = compiled_model(network, setup)
        peak = self.device.memory()[1]
        batches = self._batches(model, setup)
        self._send({"kind": "built", "peak_bytes": peak, "data": batches.description})
        return model, batches

    def _batches(self, model: Any, setup: TrainingSetup) -> Any:
        """What the steps train on: the data that is fed, else the digits."""
        if self._request["fed"]:
            return FedBatches(inherited(2), model, setup, lambda kind, **told: self._send({"kind": kind, **told}))
        classes = [output.shape[-1] for output in keras.tree.flatten(ends(model, setup.inputs)[1])]
        features, labels, *weights = batch_specs(model, setup.batch_size, setup.inputs, setup.sample_weight)
        return Batches(features, labels, classes, *weights)

    def _train(self, model: Any, batches: Any) -> None:
        step = step_function(model)
        for index in range(1, self._request["steps"] + 1):
            if index <= 2:
                self._enter("first_step" if index == 1 else "steady_step")
            self.device.reset_peak()
            if (batch := batches.batch(index - 1)) is None:
                if self._recorder and index <= RECORDED_STEP:
                    self._send({"kind": "note", "text": f"No steady step is recorded: that is step {RECORDED_STEP}."})
                break
            first = self._recorder if index == 1 else None
            traced = first.traced(model, step, specs_of(batch)) if first else nullcontext()
            with self._recorded(_recorded_name(index)), traced:
                began = time.perf_counter()
                if index == 1:
                    build_slots(model)
                loss = self._step(step, batch)
                seconds = time.perf_counter() - began
            self._send({"kind": "step", "index": index, "loss": loss, "seconds": seconds, **_amounts(self.device)})
            if index == RECORDED_STEP:
                self._stop_recording()
        self._stop_recording()  # where the data ended before

    def _infer(self, model: Any, batches: Any, setup: TrainingSetup) -> None:
        """A batch of evaluation and one of prediction: their peaks."""
        if not self._request["fed"]:
            batches = self._batches(model, dataclasses.replace(setup, batch_size=INFERENCE_BATCH))
        for number, (phase, kind) in enumerate(INFERENCE.items(), start=self._request["steps"]):
            self._enter(phase)
            self.device.reset_peak()
            if (batch := batches.batch(number)) is None:
                break
            self._step(step_function(model, kind), batch[:1] if kind == "predict" else batch)
            self._send({"kind": "inferred", "peak_bytes": self.device.memory()[1]})

    def _stop_recording(self) -> None:
        if self._recorder and self._recorder.recording:
            with self._recording_read():
                self._recorder.stop()

    def _step(self, step: Any, batch: Any) -> float | None:
        """One training step on a batch that is put on the device anew, and its loss; the batch is gone afterwards."""
        self.placing = True
        with mark(BATCH):
            placed = keras.tree.map_structure(self.device.place, batch)
        self.placing = False
        # The metrics are not reset in between, as within an epoch: that would allocate, and is no part of a step.
        logs = step(placed)
        return float(logs["loss"]) if isinstance(logs, dict) and "loss" in logs else None


def _recorded_name(index: int) -> str:
    """What a step's recording is called: a phase's name, but for the steps that warm up."""
    return {1: "first_step", RECORDED_STEP: "steady_step"}.get(index, f"warm_up_{index}")


def _amounts(device: Device) -> dict[str, int]:
    in_use, peak = device.memory()
    return {"bytes_in_use": in_use, "peak_bytes": peak, "host_rss_bytes": psutil.Process().memory_info().rss}


def main() -> None:
    """Serve one trial, asked for by the parent over the private connection."""
    channel = Channel()
    tf.get_logger().setLevel("ERROR")
    request = channel.receive()
    channel.leaves_behind = request["folder"]
    trainer = _Trainer(channel.send, request)
    try:
        trainer.run()
        channel.send({"kind": "done"})
    except Exception as error:
        if isinstance(error, FeederGoneError):
            channel.send({"kind": "feeder_gone"})
            return
        # A constant of the graph that finds no room is an internal error to TensorFlow.
        exhausted = type(error).__name__ == "ResourceExhaustedError" or "evaluate a constant node" in str(error)
        status = "host_out_of_memory" if isinstance(error, MemoryError) else "out_of_memory" if exhausted else "crashed"
        bare = exhausted or isinstance(error, ValueError)
        text = str(error) if bare else f"{type(error).__name__}: {error}"
        told: dict[str, Any] = {"kind": "failed", "status": status, "text": text}
        if exhausted:
            told |= {"batch": trainer.placing, "peak_bytes": trainer.device.memory()[1] if trainer.device else 0}
            told["weight"] = trainer.weight_of_shape(parse_failure(text, "", None).shape)
            told |= trainer.what_was_alive()
        channel.send(told)


if __name__ == "__main__":
    main()
