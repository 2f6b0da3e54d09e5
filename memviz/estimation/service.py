"""`memviz.estimate`, from one warm child process: the caller's neither imports TensorFlow nor takes a GPU."""

from __future__ import annotations

import atexit
import functools
import threading
from dataclasses import replace
from typing import Any

from memviz.child.machine import budget_of, default_device
from memviz.child.process import ChildEndedError, ChildProcess
from memviz.estimation.result import Estimate
from memviz.interchange import estimate_from_dict
from memviz.models.network import Network, packed
from memviz.setup import REFERENCE_ENVIRONMENT, TrainingSetup

COUNTED = {"TF_CPU_ALLOCATOR_USE_BFC": "true"}  # so that it can be asked what tracing keeps
_ERRORS = {error.__name__: error for error in (ValueError, TypeError, MemoryError)}


class EstimationService:
    """A child that has TensorFlow loaded and estimates on request; one request at a time, from any thread."""

    def __init__(self) -> None:
        self._child: ChildProcess | None = None
        self._asking, self._starting = threading.Lock(), threading.Lock()

    def start(self) -> ChildProcess:
        """Start the child, if there is none, so that it is warm when the first estimate is wanted."""
        with self._starting:
            if self._child is None:
                self._child = ChildProcess("memviz.estimation.worker", env=REFERENCE_ENVIRONMENT | COUNTED)
            return self._child

    def estimate(
        self, network: Network, setup: TrainingSetup, *, inference: bool = False, orders: int | None = None
    ) -> Estimate:
        """The estimate of a network under a setup, with evaluation and prediction where wanted; waits for it.

        orders: how many orders of execution are played; more find rarer peaks. None: as many as are bearable.
        Raises what the estimate itself raises for a network or setup that is not possible (ValueError, TypeError), and
        RuntimeError where the child ended meanwhile, or `close` was called; the next call starts another.
        """
        return estimate_from_dict(self._ask(network, setup, inference, orders, "estimate"))

    def probe(self, network: Network, setup: TrainingSetup) -> tuple[float, int]:
        """What a search asks again and again: the share of orders of execution that complete within the setup's budget,
        and the bytes that they use where there is all the room. Errors as for `estimate`.
        """
        share, used = self._ask(network, setup, False, None, "probe")
        return share, used

    def _ask(self, network: Network, setup: TrainingSetup, inference: bool, orders: int | None, what: str) -> Any:
        # What the child needs no other trace for stands apart, so that it knows what it has traced already.
        within = {name: getattr(setup, name) for name in ("batch_size", "budget_bytes", "memory_growth")}
        within["device"] = setup.device or default_device()
        batch_size = 1 if setup.inputs is None else setup.batch_size  # given inputs have their own batch
        asked = replace(setup, batch_size=batch_size, budget_bytes=None, memory_growth=False, device=None)
        with self._asking:
            idle = self._child
            if idle is not None and idle.ended:
                self.close()
            child = self.start()
            try:
                child.send({"question": [packed(network, asked), inference, orders], "within": within, "what": what})
                answer = child.receive()
            except BaseException as error:  # also Ctrl-C: the answer would be taken for the next one's
                code = child.kill()
                if not isinstance(error, ChildEndedError):
                    raise
                said = f"The estimating process ended with code {code}.\n{child.output_tail}"
                raise RuntimeError(said.strip()) from None
        if "error" in answer:
            name, text = answer["error"], answer["text"]
            raise _ERRORS[name](text) if name in _ERRORS else RuntimeError(f"{name}: {text}")
        return answer[what]

    def close(self) -> None:
        """End the child; an estimate under way raises RuntimeError. A later call starts another child."""
        with self._starting:
            child, self._child = self._child, None
        if child is not None:
            child.kill()


@functools.cache
def shared_service() -> EstimationService:
    """The one service of this process; its child starts with the first estimate and ends with this process."""
    service = EstimationService()
    atexit.register(service.close)
    return service


def estimate(
    network: Any,
    *,
    batch_size: int,
    optimizer: Any = None,
    loss: Any = None,
    dtype_policy: str | None = None,
    jit_compile: Any = "auto",
    inputs: Any = None,
    device: str | None = None,
    budget: int | str | None = None,
    memory_growth: bool = False,
    sample_weight: bool = False,
) -> Estimate:
    """The estimated memory of training ``network``, in bytes of the allocator, without allocating it.

    It is traced in a child process, which stays warm for the next estimate: there TensorFlow sees no GPU and is set as
    in a trial on the reference device, and nothing of this process changes. The first call takes some seconds longer.

    network: a keras.Model, a function without arguments that returns one, or a ConvNet; it is left as it is.
    budget: bytes or text such as "9513 MiB", or a share of the device's memory such as "40 %".
    device: "reference"; "GPU:0", also where there is none; or a card such as "T4" (see `memviz.devices`), whose budget
    is what TensorFlow can use of it. A GPU is estimated in its own order, without the workspaces of its kernels. None:
    this machine's GPU, else the reference device.
    jit_compile: True takes XLA's own plan of the step, compiled for the reference device and not run, which takes
    seconds, or minutes for large networks; "auto" is Keras' rule, which compiles nothing on the reference device.
    batch_size: examples per step. optimizer, loss: None for what the model is compiled with, else Adam and a loss that
    suits the output; the metrics are those of the model's own compile. inputs: for subclassed models and unknown
    shapes, TensorSpecs or arrays of a batch. sample_weight: whether each example comes with a weight, as by
    sample_weight or class_weight of Keras' fit.

    Raises ValueError or TypeError, in one sentence, for what is not possible: an unknown name, a network that cannot
    be built, traced or compiled, an input shape that is not known, XLA (jit_compile=True) for a GPU.
    Sources: the graph is TensorFlow's own (estimation/graph.py), the order executor.cc, the allocator bfc_allocator.cc.
    """
    setup = TrainingSetup.create(
        batch_size=batch_size, optimizer=optimizer, loss=loss, dtype_policy=dtype_policy, jit_compile=jit_compile,
        device=device, budget=budget_of(budget, device), memory_growth=memory_growth, inputs=inputs,
        sample_weight=sample_weight,
    )  # fmt: skip
    return shared_service().estimate(Network.of(network), setup, inference=True)
