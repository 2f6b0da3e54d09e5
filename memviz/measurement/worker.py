"""The child of a trial: opens the device, builds the network, trains a few steps, and says what it sees.

Runs as ``python -m memviz.measurement.worker``; the parent's side is `trial`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from memviz.child.channel import Channel
from memviz.interchange import setup_from_message
from memviz.measurement.device import Device, environment, open_device
from memviz.models.network import Network

SAMPLE_SECONDS = 0.25


class _Sampler(threading.Thread):
    """Says every quarter of a second how much is in use, so that a chart moves within long steps too."""

    def __init__(self, send: Callable[[Mapping[str, Any]], None]) -> None:
        super().__init__(name="memviz-sampler", daemon=True)
        self.device: Device | None = None  # until it is open, only the host's memory is known
        self._send = send

    def run(self) -> None:
        while True:
            in_use, peak = (0, 0) if self.device is None else self.device.memory()
            self._send({"kind": "sample", "bytes_in_use": in_use, "peak_bytes": peak, "host_rss_bytes": _rss_bytes()})
            time.sleep(SAMPLE_SECONDS)


class _Trainer:
    """One trial, phase by phase."""

    def __init__(self, send: Callable[[Mapping[str, Any]], None], request: Mapping[str, Any]) -> None:
        self.phase = "import"
        self._send, self._request = send, request
        self._sampler = _Sampler(send)

    def run(self) -> None:
        import keras

        device = self._open()
        keras.utils.set_random_seed(0)
        model, batches = self._build(device)
        self._train(model, batches, device)
        self._send({"kind": "done"})

    def _enter(self, phase: str) -> None:
        self.phase = phase
        self._send({"kind": "phase", "phase": phase})

    def _open(self) -> Device:
        self._sampler.start()
        import tensorflow as tf

        tf.get_logger().setLevel("ERROR")
        device = open_device(self._request["device"], self._request["limit_bytes"], self._request["memory_growth"])
        self._sampler.device = device
        return device

    def _build(self, device: Device) -> tuple[Any, Any]:
        from memviz.measurement.digits import Batches
        from memviz.models.training import batch_specs, compiled_model

        setup = setup_from_message(self._request["setup"])
        network = Network.from_message(self._request["network"])
        device.reset_peak()
        self._enter("build")
        model = compiled_model(network, setup)
        self._send({"kind": "built", "peak_bytes": device.memory()[1]})
        batches = Batches(*batch_specs(model, setup.batch_size), [output.shape[-1] for output in model.outputs])
        self._send({"kind": "data", "data": batches.description})
        return model, batches

    def _train(self, model: Any, batches: Any, device: Device) -> None:
        from memviz.models.training import build_slots, step_function

        self._enter("first_step")
        device.reset_peak()
        began = time.perf_counter()
        build_slots(model)
        step = step_function(model)
        for index in range(1, self._request["steps"] + 1):
            if index > 1:
                if index == 2:
                    self._enter("steady_step")
                device.reset_peak()
                began = time.perf_counter()
            loss = self._step(step, batches.batch(index - 1), device)
            seconds = time.perf_counter() - began
            in_use, peak = device.memory()
            self._send(
                {
                    "kind": "step", "index": index, "bytes_in_use": in_use, "peak_bytes": peak, "loss": loss,
                    "seconds": seconds, "host_rss_bytes": _rss_bytes(),
                }
            )  # fmt: skip

    def _step(self, step: Any, batch: Any, device: Device) -> float | None:
        """One training step on a batch that is put on the device anew, and its loss; the batch is gone afterwards."""
        import keras

        # The metrics are not reset in between, as within an epoch: that would allocate, and is no part of a step.
        logs = step(keras.tree.map_structure(device.place, batch))
        return float(logs["loss"]) if "loss" in logs else None


def _rss_bytes() -> int:
    import psutil

    return psutil.Process().memory_info().rss


def main() -> None:
    """Serve one trial, asked for by the parent over the private pipe."""
    channel = Channel()
    request = channel.receive()
    os.environ.update(environment(request["device"], request["limit_bytes"], request["memory_growth"]))
    trainer = _Trainer(channel.send, request)
    try:
        trainer.run()
    except MemoryError as error:
        channel.send({"kind": "failed", "status": "host_out_of_memory", "phase": trainer.phase, "text": str(error)})
    except Exception as error:
        exhausted = type(error).__name__ == "ResourceExhaustedError"
        text = str(error) if exhausted or isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        status = "out_of_memory" if exhausted else "crashed"
        channel.send({"kind": "failed", "status": status, "phase": trainer.phase, "text": text})


if __name__ == "__main__":
    main()
