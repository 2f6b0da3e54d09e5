"""The child of `service`: estimates, one after the other, with TensorFlow loaded and no GPU to be seen.

Runs as ``python -m memviz.estimation.worker``.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache

import keras
import tensorflow as tf
from tensorflow.python.framework import ops

from memviz.child.process import Channel
from memviz.estimation.batches import TracesByBatch
from memviz.estimation.estimate import Traced, estimate_traced, probed, trace_training
from memviz.interchange import estimate_to_dict
from memviz.models.network import unpacked
from memviz.setup import TrainingSetup


@lru_cache(maxsize=4)
def _traces(packed: str, inference: bool, orders: int | None) -> tuple[TracesByBatch, TrainingSetup]:
    _, setup = unpacked(packed)

    def trace(batch_size: int) -> Traced:
        network, _ = unpacked(packed)  # anew: a model that a function refers to can be traced once
        return trace_training(network, replace(setup, batch_size=batch_size), inference, orders)

    return TracesByBatch(trace, ahead=setup.jit_compile is not True), setup


@contextmanager
def _defaults_kept() -> Iterator[None]:
    """A function that builds a network may change them; the next one is to find what a new process has."""
    config, folder = keras.config, os.getcwd()
    before = config.floatx(), config.epsilon(), config.image_data_format()
    try:
        yield
    finally:
        config.set_floatx(before[0])
        config.set_epsilon(before[1])
        config.set_image_data_format(before[2])
        tf.config.run_functions_eagerly(False)
        os.chdir(folder)


@contextmanager
def _graphs_let_go() -> Iterator[None]:
    """TensorFlow registers custom gradients, such as that of a normalization, for each graph, and for good: each keeps
    its graph (custom_gradient.py, `_graph_mode_decorator`).
    """
    known = getattr(ops.gradient_registry, "_registry", {})
    before = set(known)
    try:
        yield
    finally:
        for name in known.keys() - before:
            if name.startswith("CustomGradient"):
                del known[name]


def main() -> None:
    """Answer requests until the parent closes the connection."""
    channel = Channel()
    tf.get_logger().setLevel("ERROR")
    gc.freeze()  # what is loaded so far stays; to look through it for garbage would cost a fifth of each estimate
    gc.disable()
    while True:
        request = channel.receive()
        try:
            with _defaults_kept(), _graphs_let_go():
                traces, setup = _traces(*request["question"])
                setup = replace(setup, **request["within"])
                traced = traces.at(setup.batch_size)
            if request["what"] == "probe":
                channel.send({"probe": probed(traced, setup)})
            else:
                channel.send({"estimate": estimate_to_dict(estimate_traced(traced, setup))})
        except Exception as error:
            channel.send({"error": type(error).__name__, "text": str(error)})
        gc.collect()  # graphs are full of cycles


if __name__ == "__main__":
    main()
