"""The traced training step as the graph TensorFlow will run: optimized, in TensorFlow's own order, nothing executed.

This is the one adapter to the private names of TensorFlow that this needs (`tf_optimizer` and `item` of grappler,
`function_def_to_graph`, `_handle_data`), checked with TensorFlow 2.21; `tests/estimation/test_graph.py` says which one
moved. The same test holds the result equal, node by node and in order, to the graph that a real run executed.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from memviz.estimation.loops import At, Unrolled, has_loops_or_lists, reference, unrolled

_CPU = "/job:localhost/replica:0/task:0/device:CPU:0"
_CPU_MEMORY = 256 << 20  # what TensorFlow's CPU device says of itself (threadpool_device_factory.cc)
CONDITIONALS_AND_LOOPS = frozenset({"If", "StatelessIf", "Case", "StatelessCase", "While", "StatelessWhile"})
_RESOURCE = 20  # types.proto: DT_RESOURCE


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape (None where not known) and dtype name of one output."""

    shape: tuple[int, ...] | None
    dtype: str


@dataclass(frozen=True, slots=True)
class Node:
    """One operation of the graph that runs. Inputs are (node index, output slot); controls are node indices."""

    name: str
    op: str
    inputs: tuple[tuple[int, int], ...]
    controls: tuple[int, ...]
    outputs: tuple[TensorType, ...]
    attributes: Mapping[str, Any]  # the protobuf map of the node
    at: At | None = None  # where it is in a loop
    place: int = 0  # in a list of tensors, or its length where it is made


@dataclass(frozen=True)
class StepGraph:
    """The graph of one step. arguments: node index of each argument -> its number; resources: argument number -> the
    captured resource (a tensor whose `_id` is the variable's handle).
    """

    nodes: tuple[Node, ...]
    arguments: Mapping[int, int]
    resources: Mapping[int, Any]


def step_graph(concrete: Any) -> StepGraph:
    """The graph that a call of this `ConcreteFunction` would execute on one CPU device, its loops written out.

    Raises ValueError where it cannot be told how often one runs.
    """
    graph_def = _optimize(*_function_as_graph(concrete))
    nodes = tuple(nodes_of(graph_def))
    names = {argument.name: i for i, argument in enumerate(concrete.function_def.signature.input_arg)}
    captured = {id(inner): outer for outer, inner in concrete.graph.captures if outer.dtype == "resource"}
    return StepGraph(
        nodes=nodes,
        arguments={index: names[node.name] for index, node in enumerate(nodes) if node.name in names},
        resources={i: captured[id(inner)] for i, inner in enumerate(concrete.graph.inputs) if id(inner) in captured},
    )


def _function_as_graph(concrete: Any) -> tuple[Any, list[str]]:
    """The function's body with arguments and results as nodes, in the order in which TensorFlow numbers them.

    Returns the GraphDef and the names the optimizer must keep, in the order in which TensorFlow itself gives them:
    the order of the optimized graph follows from it (process_function_library_runtime.cc, function.cc).
    """
    from tensorflow.core.framework import graph_pb2
    from tensorflow.python.framework.function_def_to_graph import function_def_to_graph_def

    definition = concrete.function_def
    body, flat_names = function_def_to_graph_def(definition)
    graph = graph_pb2.GraphDef(versions=body.versions)
    arguments = {argument.name for argument in definition.signature.input_arg}
    captured = {id(inner): outer for outer, inner in concrete.graph.captures}
    for number, tensor in enumerate(concrete.graph.inputs):
        argument = definition.signature.input_arg[number]
        _add_argument(graph, argument, number, tensor, captured.get(id(tensor)))
    graph.node.extend(node for node in body.node if node.name not in arguments)
    results = [f"{result.name}_RetVal" for result in definition.signature.output_arg]
    for number, result in enumerate(definition.signature.output_arg):
        node = graph.node.add(name=results[number], op="_Retval", input=[flat_names[definition.ret[result.name]]])
        node.attr["T"].type = result.type
        node.attr["index"].i = number
    for node in graph.node:
        node.device = _CPU  # the fusions of the CPU are applied to nodes placed there only
    ordered = graph_pb2.GraphDef(versions=graph.versions)
    ops = {node.op for node in body.node}
    # Takes long, and most graphs call no function. With it the optimizer replaces conditionals and loops, as TensorFlow
    # does, by the nodes of their branches and bodies.
    if ops & CONDITIONALS_AND_LOOPS or any(is_call(node) for node in body.node):
        ordered.library.CopyFrom(concrete.graph.as_graph_def().library)
    ordered.node.extend(graph.node[index] for index in _topological(Unrolled(graph)))
    return ordered, results + list(definition.control_ret.values())


def is_call(node: Any) -> bool:
    """Whether a node calls a function of the graph's library."""
    from tensorflow.python.framework import op_def_registry

    return node.op in ("PartitionedCall", "StatefulPartitionedCall") or op_def_registry.get(node.op) is None


def _add_argument(graph: Any, argument: Any, number: int, tensor: Any, captured: Any) -> None:
    if argument.type == _RESOURCE:
        node = graph.node.add(name=argument.name, op="_Arg")
        node.attr["T"].type = argument.type
        node.attr["index"].i = number
        if captured._handle_data is None:  # a lookup table
            raise ValueError(
                f"The step reads the resource {argument.name}, which is no variable, such as a lookup layer's table; "
                "look things up in the data pipeline and give memviz the model behind it."
            )
        data = captured._handle_data.shape_and_type[0]
        node.attr["_handle_shapes"].list.shape.append(data.shape)
        node.attr["_handle_dtypes"].list.type.append(data.dtype)
        return
    # A fed value. `_Arg` would do, but the optimizer forgets its shape on the way in; this op states it, and is
    # neither folded nor, with a name of its own, taken for the same as another.
    node = graph.node.add(name=argument.name, op="ImmutableConst")
    node.attr["dtype"].type = argument.type
    node.attr["shape"].shape.CopyFrom(tensor.shape.as_proto())
    node.attr["memory_region_name"].s = argument.name.encode()


def _optimize(graph: Any, keep: list[str]) -> Any:
    """TensorFlow's own graph optimizer, as the runtime calls it before a function runs: for one CPU device."""
    from tensorflow.core.protobuf import config_pb2
    from tensorflow.python.grappler import tf_optimizer

    config = config_pb2.ConfigProto()
    config.graph_options.rewrite_options.min_graph_nodes = -1  # small graphs, too
    return tf_optimizer.OptimizeGraph(config, meta_graph(graph, keep), cluster=cpu_cluster(_CPU_MEMORY))


def meta_graph(graph: Any, keep: Iterable[str]) -> Any:
    """A GraphDef as the graph optimizer's tools take it. keep: names of the nodes that are wanted."""
    from tensorflow.core.protobuf import meta_graph_pb2

    found = meta_graph_pb2.MetaGraphDef(graph_def=graph)
    found.collection_def["train_op"].node_list.value.extend(keep)
    return found


def cpu_cluster(memory_bytes: int) -> Any:
    """The graph optimizer's notion of a machine with one CPU device."""
    from tensorflow.core.protobuf import device_properties_pb2
    from tensorflow.python.grappler import cluster

    properties = device_properties_pb2.DeviceProperties(type="CPU", memory_size=memory_bytes, num_cores=2)
    return cluster.Cluster(devices=[device_properties_pb2.NamedDevice(name=_CPU, properties=properties)])


def nodes_of(graph_def: Any) -> list[Node]:
    """The nodes of a GraphDef in TensorFlow's own numbering: topological, the smallest index first.

    Source: tensorflow/core/common_runtime/graph_constructor.cc, `GraphConstructor::Convert` (ready nodes in a sorted
    set).
    """
    written = Unrolled(graph_def)
    types = _output_types(written)
    if has_loops_or_lists(graph_def):
        outputs = ((name, slot, output) for name, each in types.items() for slot, output in enumerate(each))
        written = unrolled(graph_def, {(name, slot): output.shape[0] for name, slot, output in outputs if output.shape})
        types = _output_types(written)
    order = _topological(written)
    number = {written.graph.node[index].name: position for position, index in enumerate(order)}
    nodes = []
    for index in order:
        proto = written.graph.node[index]
        data = [reference(name) for name in _sources(proto, written) if not name.startswith("^")]
        inputs = tuple((number[name], slot) for name, slot in data)
        controls = tuple(number[name[1:]] for name in proto.input if name.startswith("^"))
        where = written.at.get(proto.name), written.places.get(proto.name, 0)
        op = written.ops.get(proto.name, proto.op)
        nodes.append(Node(proto.name, op, inputs, controls, types.get(proto.name, ()), proto.attr, *where))
    return nodes


def has_loops(nodes: Sequence[Node]) -> bool:
    """Whether some of the nodes are of loops that were written out."""
    return any(node.at for node in nodes)


def _sources(proto: Any, written: Unrolled) -> list[str]:
    """What a node waits for; what was a Switch waits for its predicate, too, and holds it until then."""
    return [*proto.input, *filter(None, (written.predicates.get(proto.name),))]


def _topological(written: Unrolled) -> list[int]:
    graph_def = written.graph
    index_of = {node.name: index for index, node in enumerate(graph_def.node)}
    consumers: list[list[int]] = [[] for _ in graph_def.node]
    pending = [0] * len(graph_def.node)
    for index, node in enumerate(graph_def.node):
        for text in _sources(node, written):
            consumers[index_of[reference(text)[0]]].append(index)
            pending[index] += 1
    ready = [index for index, count in enumerate(pending) if count == 0]
    heapq.heapify(ready)
    order = []
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        for consumer in consumers[index]:
            pending[consumer] -= 1
            if pending[consumer] == 0:
                heapq.heappush(ready, consumer)
    return order


def _output_types(written: Unrolled) -> dict[str, tuple[TensorType, ...]]:
    """Shapes by the inference of TensorFlow's graph optimizer, six times quicker than the import into a tf.Graph."""
    from tensorflow.core.framework import graph_pb2
    from tensorflow.python.grappler.item import Item

    graph = written.graph
    if written.plain:
        graph = graph_pb2.GraphDef(versions=graph.versions, library=graph.library)
        graph.node.extend(node for node in written.graph.node if node.name not in written.plain)
        graph.node.extend(written.plain.values())
    inferred = Item(meta_graph(graph, (node.name for node in graph.node))).GetOpProperties()
    return {name: tuple(map(_type, outputs)) for name, outputs in inferred.items()}


def _type(output: Any) -> TensorType:
    sizes = tuple(dim.size for dim in output.shape.dim)
    known = not output.shape.unknown_rank and min(sizes, default=0) >= 0
    return TensorType(sizes if known else None, _dtype_name(output.dtype))


@cache
def _dtype_name(number: int) -> str:
    import tensorflow as tf

    return tf.dtypes.as_dtype(number).base_dtype.name
