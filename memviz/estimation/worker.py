"""The child of `service`: estimates, one after the other, with TensorFlow loaded and no GPU to be seen.

Runs as ``python -m memviz.estimation.worker``.
"""

from __future__ import annotations

import gc
from dataclasses import replace
from functools import lru_cache

import tensorflow as tf

from memviz.child.process import Channel
from memviz.estimation.estimate import Traced, estimate_traced, trace_training
from memviz.interchange import estimate_to_dict
from memviz.models.network import unpacked
from memviz.setup import TrainingSetup


@lru_cache(maxsize=4)
def _traced(question: str, inference: bool) -> tuple[Traced, TrainingSetup]:
    network, setup = unpacked(question)
    return trace_training(network, setup, inference), setup


def main() -> None:
    """Answer requests until the parent closes the connection."""
    channel = Channel()
    tf.get_logger().setLevel("ERROR")
    gc.freeze()  # what is loaded so far stays; to look through it for garbage would cost a fifth of each estimate
    gc.disable()
    while True:
        request = channel.receive()
        try:
            traced, setup = _traced(request["question"], request["inference"])
            estimate = estimate_traced(traced, replace(setup, **request["within"]))
            channel.send({"estimate": estimate_to_dict(estimate)})
        except Exception as error:
            channel.send({"error": type(error).__name__, "text": str(error)})
        gc.collect()  # graphs are full of cycles


if __name__ == "__main__":
    main()
