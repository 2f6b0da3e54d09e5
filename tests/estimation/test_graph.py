import importlib
from dataclasses import replace

import keras
import networks
import pytest

from memviz.estimation.graph import TensorType, nodes_of, step_graph
from memviz.models.abstract import abstract_weights
from memviz.models.network import Network
from memviz.models.training import batch_specs, build_slots, compiled_model, step_function
from memviz.setup import TrainingSetup

PRIVATE_NAMES = (
    ("tensorflow.python.grappler.tf_optimizer", "OptimizeGraph"),
    ("tensorflow.python.grappler.item", "Item"),
    ("tensorflow.python.framework.function_def_to_graph", "function_def_to_graph_def"),
    ("keras.src.backend.tensorflow.core", "name_scope"),
)


@pytest.mark.parametrize(("module", "name"), PRIVATE_NAMES)
def test_the_private_names_are_where_they_were(module, name):
    assert hasattr(importlib.import_module(module), name), f"{module}.{name} has moved"


def executed(network, setup):
    """The graph that TensorFlow really ran for one step of a really built model."""
    import tensorflow as tf
    from tensorflow.python.eager import context

    keras.utils.clear_session()  # names as in a fresh process
    model = compiled_model(network, setup)
    build_slots(model)
    batch = tf.nest.map_structure(lambda spec: tf.zeros(spec.shape, spec.dtype), batch_specs(model, setup.batch_size))
    context.context().enable_graph_collection()
    try:
        step_function(model)(batch)
        metadata = context.context().export_run_metadata()
    finally:
        context.context().disable_graph_collection()
    (graph,) = metadata.function_graphs[-1].partition_graphs
    types = imported_types(graph)
    return [replace(node, outputs=types[node.name]) for node in nodes_of(graph)]


def imported_types(graph):
    """Shapes and dtypes as TensorFlow gives them on import, with what the graph itself says of them."""
    import tensorflow as tf

    imported = tf.Graph()
    with imported.as_default():
        tf.import_graph_def(graph, name="")
    return {
        op.name: tuple(
            TensorType(tuple(t.shape) if t.shape.is_fully_defined() else None, t.dtype.base_dtype.name)
            for t in op.outputs
        )
        for op in imported.get_operations()
    }


def traced(network, setup):
    with abstract_weights():
        model = compiled_model(network, setup)
        build_slots(model)
        specs = batch_specs(model, setup.batch_size)
        return step_graph(step_function(model).get_concrete_function(specs)).nodes


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("name", networks.ALL)
def test_the_graph_is_the_one_tensorflow_runs_node_by_node_in_order(name, optimizer):
    network = Network.of(networks.ALL[name])
    setup = TrainingSetup(batch_size=4, optimizer=optimizer, jit_compile=False)
    real, mine = executed(network, setup), traced(network, setup)
    plain = [(n.op, n.inputs, n.controls, n.outputs) for n in mine if n.op != "ImmutableConst"]
    # Argument and layer names carry counters that go on within a process; the structure has none.
    expected = [(n.op, n.inputs, n.controls, n.outputs) for n in real if not is_batch(n)]
    assert plain == expected


@pytest.mark.parametrize(
    ("optimizer", "policy"),
    [(keras.optimizers.SGD(gradient_accumulation_steps=2), "float32"), ("sgd", "mixed_float16")],
)
def test_a_graph_with_conditionals_is_the_one_tensorflow_runs(optimizer, policy):
    network = Network.of(networks.mlp)
    setup = TrainingSetup(batch_size=4, optimizer=optimizer, dtype_policy=policy, jit_compile=False)
    real, mine = executed(network, setup), traced(network, setup)
    assert any(node.op == "Switch" for node in mine)
    plain = [(n.op, n.inputs, n.controls) for n in mine if n.op != "ImmutableConst"]
    assert plain == [(n.op, n.inputs, n.controls) for n in real if not is_batch(n)]


def is_batch(node):
    return node.op == "_Arg" and node.outputs[0].dtype != "resource"
