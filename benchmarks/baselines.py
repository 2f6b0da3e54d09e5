"""The rules of thumb people use for the memory of training, on the networks of the accuracy benchmark.

Each gives bytes for one network, batch and optimizer. None of them is memviz's; they stand beside it in the table.
"""

from __future__ import annotations

import math
from typing import Any

import keras
import tensorflow as tf

from memviz.estimation import graph
from memviz.models.abstract import abstract_weights
from memviz.models.network import Network
from memviz.models.training import batch_specs, build_slots, compiled_model, step_function
from memviz.setup import TrainingSetup

FLOAT_BYTES = 4
RULES = (
    "layer outputs + parameters",  # stackoverflow.com/questions/43137288
    "weights x 4",
    "checkpoint + batch x element",
    "model.summary()",
    "grappler's peak",  # DeterminePeakMemoryUsage
    "torchinfo's rule",
)


def baselines(network: Any, setup: TrainingSetup) -> dict[str, int]:
    """Rule -> bytes."""
    batch_size = setup.batch_size
    with abstract_weights(), tf.device("CPU:0"):
        model = compiled_model(Network.of(network), setup)
        specs = batch_specs(model, batch_size)
        build_slots(model)
        concrete = step_function(model).get_concrete_function(specs)
        grappler = _peak_of_grappler(concrete)
    weights = FLOAT_BYTES * model.count_params()
    outputs = FLOAT_BYTES * batch_size * sum(_elements(layer) for layer in model.layers)
    element = sum(FLOAT_BYTES * math.prod(spec.shape[1:]) for spec in tf.nest.flatten(specs))
    found = (
        outputs + weights,
        4 * weights,
        weights + batch_size * element,
        weights + FLOAT_BYTES * sum(math.prod(v.shape) for v in model.optimizer.variables),
        grappler,
        # total_output x 2 for forward and backward, parameters, and the input (torchinfo/model_statistics.py)
        2 * outputs + weights + batch_size * element,
    )
    return dict(zip(RULES, found, strict=True))


def _elements(layer: keras.Layer) -> int:
    """Elements of a layer's outputs for one example."""
    return sum(math.prod(tensor.shape[1:]) for tensor in keras.tree.flatten(layer.output))


def _peak_of_grappler(concrete: Any) -> int:
    from tensorflow.python.grappler.item import Item

    step = graph.meta_graph(*graph._function_as_graph(concrete))
    usage = graph.cpu_cluster(1 << 40).DeterminePeakMemoryUsage(Item(step))
    return max(peak for peak, _ in usage.values())
