"""What TensorFlow computes once, not in every step: the runtime's own constant folding, after the graph optimizer's.

The graph optimizer folds small tensors only; when a function is made ready to run, the runtime folds what is left, up
to 10 MiB each. Whoever read such a tensor then reads a constant that stays for ever. The ops that made it are still run
in every step, for nobody (seen in recordings of a mean squared error over images).
Source: tensorflow/core/common_runtime/constant_folding.cc.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from memviz.estimation import kernels
from memviz.estimation.branches import SWITCHES
from memviz.estimation.graph import Node, StepGraph, TensorType
from memviz.estimation.loops import BOUNDARIES
from memviz.units import tensor_bytes

LARGEST_BYTES = 10 << 20  # kMaxConstantSize
MARK = "__cf__"  # in the name of a tensor that was folded


def folded(graph: StepGraph) -> StepGraph:
    """The graph with the folded tensors as constants, which stand behind all other nodes."""
    constant = _constant(graph.nodes)
    nodes = list(graph.nodes)
    made: dict[tuple[int, int], int] = {}
    for index, node in enumerate(graph.nodes):
        if constant[index]:
            continue
        for source, slot in node.inputs:
            if _is_folded(graph.nodes[source], slot, constant[source]) and (source, slot) not in made:
                made[source, slot] = len(nodes)
                nodes.append(_as_constant(graph.nodes[source], slot))
        if any(each in made for each in node.inputs):
            inputs = tuple((made[each], 0) if each in made else each for each in node.inputs)
            nodes[index] = replace(node, inputs=inputs)
    return replace(graph, nodes=tuple(nodes)) if made else graph


def _constant(nodes: Sequence[Node]) -> list[bool]:
    """Per node, whether all that it computes follows from constants."""
    found: list[bool] = []
    for node in nodes:
        branching = node.op == "Merge" or node.op in SWITCHES | BOUNDARIES
        pure = node.op == "Const" or (bool(node.inputs) and not branching and not _is_stateful(node.op))
        found.append(pure and all(found[source] for source, _ in node.inputs))
    return found


def _is_folded(node: Node, slot: int, constant: bool) -> bool:
    if not constant or node.op == "Const":
        return False
    kind: TensorType = node.outputs[slot]
    known = kind.shape is not None and kind.dtype not in kernels.NOT_ON_DEVICE
    return known and tensor_bytes(kind.shape or (), kind.dtype) <= LARGEST_BYTES


def _as_constant(node: Node, slot: int) -> Node:
    return Node(f"{node.name}/{MARK}{slot}", "Const", (), node.controls, (node.outputs[slot],), {})


@cache
def _is_stateful(op: str) -> bool:
    from tensorflow.python.framework import op_def_registry

    definition = op_def_registry.get(op)
    return definition is None or definition.is_stateful
