"""Conditionals in the graph that runs: Switch hands its input to one of its outputs; what hangs on others is dead.

Dead nodes are passed over, and Merge takes the first input that is alive (tensorflow/core/common_runtime/executor.cc,
`PropagateOutputs`). Which output is taken, only the values decide: whether the gradients are finite, or the step is one
that updates. The estimate takes the branch that holds more, and once the other, for the lower end of its range.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from memviz.estimation.graph import Node
from memviz.units import tensor_bytes

SWITCHES = frozenset({"Switch", "_SwitchN"})  # of two branches, and of any number
_Output = tuple[int, int]  # node, slot


@dataclass(frozen=True)
class Branches:
    """dead: per node, whether it is passed over. taken: node of a Switch -> the slot of its output that is alive."""

    dead: Sequence[bool]
    taken: Mapping[int, int]

    def is_alive(self, source: _Output) -> bool:
        """Whether a value comes out of a node's output."""
        node, slot = source
        return not self.dead[node] and self.taken.get(node, slot) == slot


def has_branches(nodes: Sequence[Node]) -> bool:
    """Whether a step's memory may depend on values."""
    return any(node.op in SWITCHES for node in nodes)


def branches(nodes: Sequence[Node], *, smaller: bool = False) -> Branches:
    """The branches that are taken: of each conditional the one whose outputs come to more bytes, or to fewer."""
    outputs = {node.inputs[1]: len(node.outputs) for node in nodes if node.op in SWITCHES}
    choices = dict.fromkeys(outputs, 1)
    for predicate, count in outputs.items():
        found = {slot: _held(nodes, _taken(nodes, {**choices, predicate: slot})) for slot in reversed(range(count))}
        choices[predicate] = (min if smaller else max)(found, key=found.__getitem__)
    return _taken(nodes, choices)


def _taken(nodes: Sequence[Node], choices: Mapping[_Output, int]) -> Branches:
    dead: list[bool] = []
    found = Branches(dead, {n: choices[node.inputs[1]] for n, node in enumerate(nodes) if node.op in SWITCHES})
    for node in nodes:
        # A constant that the runtime folded stands behind its readers, and is alive.
        arrives = [source[0] >= len(dead) or found.is_alive(source) for source in node.inputs]
        reached = any(arrives) if node.op == "Merge" else all(arrives)
        dead.append(not reached or any(dead[control] for control in node.controls if control < len(dead)))
    return found


def _held(nodes: Sequence[Node], found: Branches) -> int:
    return sum(
        tensor_bytes(output.shape, output.dtype)
        for node, dead in zip(nodes, found.dead, strict=True)
        if not dead
        for output in node.outputs
        if output.shape is not None and output.dtype not in ("resource", "variant", "string")
    )
