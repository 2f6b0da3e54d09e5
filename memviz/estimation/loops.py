"""Loops in the graph that runs, written out: the body once for each time it runs.

TensorFlow replaces a While by Enter, Merge, Switch, NextIteration and Exit (lower_while_op.cc), and its executor keeps
the values of each iteration apart (executor.cc). How often a body runs follows from its counters, which start and grow
by constants, as in recurrent layers. What lies in the lists of tensors (list_kernels.cc) that a loop fills and reads is
followed as well: a list has no shape that would tell.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from typing import Any, NamedTuple

_MOST_NODES = 200_000
_COUNTED: dict[str, Callable[..., Any]] = {
    "Less": operator.lt, "LessEqual": operator.le, "Greater": operator.gt, "GreaterEqual": operator.ge,
    "LogicalAnd": operator.and_, "LogicalOr": operator.or_, "LogicalNot": operator.not_, "AddV2": operator.add,
    "Add": operator.add, "Sub": operator.sub, "Mul": operator.mul, "Minimum": min, "Maximum": max,
}  # fmt: skip
BOUNDARIES = frozenset({"Enter", "Exit", "NextIteration"})
_HANDED_ON = BOUNDARIES | {"Identity", "Switch", "Merge", "LoopCond", "Reshape"}
LISTS = frozenset({"EmptyTensorList", "TensorListReserve", "TensorListFromTensor"})  # what makes a list of tensors
_USES = frozenset({"PushBack", "PopBack", "SetItem", "GetItem", "ElementShape", "Length", "Stack"})  # that are known
_ROW = "/row"  # name of a stand-in: see `Unrolled.plain`
_FIRST = "memviz/first"
_UNKNOWN = (
    "How often a loop runs, or what it takes from a list, depends on values, or it runs very often, so that there is "
    "no estimate without XLA; memviz.measure trains and measures it."
)
_INT32, _VARIANT = 3, 21  # types.proto
_NUMBERS = (1, 2, _INT32, 9, 10)  # float, double, the integers and bool


class At(NamedTuple):
    """An iteration of a loop."""

    loop: str
    iteration: int


@dataclass
class Unrolled:
    """A graph without loops. at: name of a node -> the iteration it is of. places: name of a node that works on a list
    of tensors -> the element's index, or the list's length where it is made. ops: name of a node that hands a value
    into a loop, on, or out of it, and is an Identity in the graph -> what it is. predicates: name of a node that was a
    Switch of a loop -> what it asks. plain: nodes that say in terms of tensors what is read from a list, so that shapes
    can be inferred: each in place of the node of its name, or one more.
    """

    graph: Any
    at: dict[str, At] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)
    ops: dict[str, str] = field(default_factory=dict)
    predicates: dict[str, str] = field(default_factory=dict)
    plain: dict[str, Any] = field(default_factory=dict)


class _Held(NamedTuple):
    """What is known of a list. like: a tensor, as text, of an element's shape. whole: the tensor it was made from.
    values: per element, its value where it is a number that is known; None where their number is not.
    """

    like: str | None = None
    whole: str | None = None
    values: tuple[Any, ...] | None = None


def has_loops_or_lists(graph: Any) -> bool:
    """Whether a GraphDef holds loops in the form in which they run, or lists of tensors."""
    return any(node.op == "Enter" or node.op in LISTS for node in graph.node)


def unrolled(graph: Any, lengths: Mapping[tuple[str, int], int]) -> Unrolled:
    """The GraphDef with every loop written out. lengths: the first dimension of tensors outside loops, as far as known.

    Raises ValueError where it cannot be told how often a body runs.
    """
    return _Unrolling(graph, lengths).run()


def reference(text: str) -> tuple[str, int]:
    """Name and output slot of an input."""
    name, _, slot = text.lstrip("^").partition(":")
    return name, int(slot or 0)


class _Unrolling:
    def __init__(self, graph: Any, lengths: Mapping[tuple[str, int], int]) -> None:
        self._graph, self._lengths = graph, dict(lengths)
        self._nodes = {node.name: node for node in graph.node}
        self._number = {node.name: number for number, node in enumerate(graph.node)}
        self._loops = self._members()
        self._loop_of = {name: loop for loop, members in self._loops.items() for name in members}
        self._times: dict[str, int] = {}
        self._made: list[tuple[int, int, Any]] = []  # iteration, number in the graph, node
        self._found = Unrolled(None)
        self._scalars: dict[tuple[str, int], Any] = {}
        self._lists: dict[tuple[str, int], _Held] = {}

    def _members(self) -> dict[str, list[str]]:
        """Loop -> the nodes within it. Enter and Exit, which run once, are not among them."""
        readers: dict[str, list[Any]] = {}
        for node in self._graph.node:
            for text in node.input:
                readers.setdefault(reference(text)[0], []).append(node)
        found: dict[str, list[str]] = {}
        loop_of: dict[str, str] = {}
        todo = [(node, node.attr["frame_name"].s.decode()) for node in self._graph.node if node.op == "Enter"]
        for node, loop in todo:
            for reader in readers.get(node.name, ()):
                if reader.op == "Enter":
                    raise ValueError("There is no estimate of a loop within a loop yet; memviz.measure measures it.")
                if reader.op != "Exit" and reader.name not in loop_of:
                    loop_of[reader.name] = loop
                    found.setdefault(loop, []).append(reader.name)
                    todo.append((reader, loop))
        return found

    def run(self) -> Unrolled:
        from tensorflow.core.framework import graph_pb2

        loop_of_exit = {n.name: self._loop_of[reference(n.input[0])[0]] for n in self._graph.node if n.op == "Exit"}
        for name in self._sorted(loop_of_exit):
            if name in self._loop_of:
                continue
            loop = loop_of_exit.get(name, "")
            if loop and loop not in self._times:
                self._times[loop] = self._unroll(loop)
            self._make(self._nodes[name], self._times.get(loop, 0))
        for loop in self._loops.keys() - self._times.keys():  # nothing is taken out of it
            self._unroll(loop)
        self._found.graph = graph_pb2.GraphDef(versions=self._graph.versions, library=self._graph.library)
        self._found.graph.node.extend(node for *_, node in sorted(self._made, key=lambda made: made[:2]))
        return self._found

    def _sorted(self, loop_of_exit: Mapping[str, str]) -> list[str]:
        """Names in an order in which each value is known before it is read; a loop as a whole before what leaves it."""
        sorter: TopologicalSorter[str] = TopologicalSorter()
        for node in self._graph.node:
            sources = {reference(text)[0] for text in node.input}
            before = {name for name in sources if self._nodes[name].op != "NextIteration"}
            sorter.add(node.name, *before, *self._loops.get(loop_of_exit.get(node.name, ""), ()))
        order = list(sorter.static_order())
        rank = {name: number for number, name in enumerate(order)}
        for members in self._loops.values():
            members.sort(key=rank.__getitem__)
        return order

    def _unroll(self, loop: str) -> int:
        """Write out the iterations of a loop, and the last look at its condition. Returns their number."""
        members = [self._nodes[name] for name in self._loops[loop]]
        (condition,) = (node for node in members if node.op == "LoopCond")
        deciding = self._deciding(members)
        iteration = 0
        while True:
            for node in members:
                if node.name in deciding:
                    self._make(node, iteration)
            goes_on = self._scalar(_named(condition.name, iteration))
            if goes_on is None or len(self._made) > _MOST_NODES:
                raise ValueError(_UNKNOWN)
            if not goes_on:
                return iteration
            for node in members:
                if node.name not in deciding:
                    self._make(node, iteration)
            iteration += 1

    def _deciding(self, members: Sequence[Any]) -> set[str]:
        """What runs once more than the body: what the condition is made of, and what then leaves the loop."""
        todo = [node for node in members if node.op == "LoopCond" or self._is_loop_switch(node)]
        found = {node.name for node in todo}
        for node in todo:
            for text in () if self._is_loop_merge(node) else node.input:
                source = self._nodes[reference(text)[0]]
                if source.name in self._loop_of and source.name not in found:
                    found.add(source.name)
                    todo.append(source)
        return found

    def _is_loop_switch(self, node: Any) -> bool:
        return node.op == "Switch" and self._nodes[reference(node.input[1])[0]].op == "LoopCond"

    def _is_loop_merge(self, node: Any) -> bool:
        return node.op == "Merge" and any(self._nodes[reference(i)[0]].op == "NextIteration" for i in node.input)

    def _make(self, node: Any, iteration: int) -> None:
        """The copy of a node for an iteration; of an Exit, which has but one, for the last."""
        from tensorflow.core.framework import node_def_pb2

        copy = node_def_pb2.NodeDef()
        copy.CopyFrom(node)
        inputs = list(node.input)
        if node.name in self._loop_of:
            copy.name = _named(node.name, iteration)
            self._found.at[copy.name] = At(self._loop_of[node.name], iteration)
        before = iteration
        if self._is_loop_merge(node):
            inputs = [node.input[min(iteration, 1)]]
            before = max(iteration - 1, 0)
            copy.attr["N"].i = 1
        del copy.input[:]
        copy.input.extend(self._input(text, before) for text in inputs)
        if self._is_loop_switch(node):
            self._found.predicates[copy.name] = copy.input.pop(1)
        if node.op in BOUNDARIES:
            self._found.ops[copy.name] = node.op
        if node.op in BOUNDARIES or self._is_loop_switch(node):
            copy.op, kind = "Identity", node.attr["T"].type
            copy.attr.clear()
            copy.attr["T"].type = kind
        self._made.append((iteration if node.name in self._loop_of else 0, self._number[node.name], copy))
        self._follow(copy, [text for text in copy.input if not text.startswith("^")])

    def _input(self, text: str, iteration: int) -> str:
        """An input's text in the copy of an iteration; the Switch of a loop has one output there."""
        name, slot = reference(text)
        new = _named(name, iteration) if name in self._loop_of else name
        if text.startswith("^"):
            return "^" + new
        return new if not slot or self._is_loop_switch(self._nodes[name]) else f"{new}:{slot}"

    def _follow(self, node: Any, data: Sequence[str]) -> None:
        """Note what is known of a node's value: a number, or the tensors in a list."""
        if node.op == "Const":
            self._scalars[node.name, 0] = _number(node)
        elif node.op in LISTS:
            self._follow_new_list(node, data)
        elif node.op.startswith("TensorList") and node.op.removeprefix("TensorList") not in _USES:
            raise ValueError(
                f"There is no estimate of {node.name} ({node.op}), which works on a list of tensors, without XLA; "
                "memviz.measure trains and measures it."
            )
        elif data and reference(data[0]) in self._lists:
            self._follow_list(node, data, self._lists[reference(data[0])])
        elif node.op in _HANDED_ON:
            # What a conditional gives is known where its branches give the same.
            values = {self._scalar(text) for text in (data if node.op == "Merge" else data[:1])}
            self._scalars[node.name, 0] = self._scalars[node.name, 1] = values.pop() if len(values) == 1 else None
        elif node.op in _COUNTED:
            counts = [self._scalar(text) for text in data]
            self._scalars[node.name, 0] = None if None in counts else _COUNTED[node.op](*counts)

    def _follow_new_list(self, node: Any, data: Sequence[str]) -> None:
        if node.op == "TensorListFromTensor":
            # Its elements are the tensor's rows.
            kinds = {"Tparams": node.attr["element_dtype"].type, "Tindices": _INT32, "Taxis": _INT32}
            self._state(node.name + _ROW, "GatherV2", [data[0], self._first(), self._first()], kinds)
            length = self._lengths.get(reference(data[0]))
            self._lists[node.name, 0] = _Held(node.name + _ROW, data[0], None if length is None else (None,) * length)
        else:
            length = 0 if node.op == "EmptyTensorList" else self._index(data[1])
            self._found.places[node.name] = length
            self._lists[node.name, 0] = _Held(values=(None,) * length)

    def _follow_list(self, node: Any, data: Sequence[str], held: _Held) -> None:
        like, _, values = held
        kind = node.attr["element_dtype"].type
        if node.op == "TensorListPushBack":
            after = None if values is None else (*values, self._scalar(data[1]))
            self._lists[node.name, 0] = _Held(data[1], values=after)
        elif node.op == "TensorListPopBack":
            self._lists[node.name, 0] = _Held(like, values=values and values[:-1])
            self._scalars[node.name, 1] = values[-1] if values else None
            self._state(node.name, "IdentityN", [data[0], like], {"T": [_VARIANT, kind]})
        elif node.op == "TensorListSetItem":
            self._found.places[node.name] = at = self._index(data[1])
            after = values and (*values[:at], self._scalar(data[2]), *values[at + 1 :])
            self._lists[node.name, 0] = _Held(data[2], values=after)
        elif node.op == "TensorListGetItem":
            self._found.places[node.name] = at = self._index(data[1])
            self._scalars[node.name, 0] = values[at] if values and at < len(values) else None
            self._state(node.name, "Identity", [like], {"T": kind})
        elif node.op == "TensorListElementShape":
            self._state(node.name, "Shape", [like], {"T": kind, "out_type": node.attr["shape_type"].type})
        elif node.op == "TensorListLength":
            self._scalars[node.name, 0] = None if values is None else len(values)
        elif node.op == "TensorListStack" and held.whole:
            self._state(node.name, "Identity", [held.whole], {"T": kind})
        elif node.op == "TensorListStack" and values is not None:
            self._lengths[node.name, 0] = len(values)
            self._state(node.name, "Pack", [like] * len(values), {"T": kind})
            if like is not None:
                self._found.plain[node.name].attr["N"].i = len(values)
        elif node.op in ("AddN", "ZerosLike", *_HANDED_ON):
            likes = [self._lists[reference(text)].like for text in data if reference(text) in self._lists]
            known = held if node.op in _HANDED_ON else _Held(values=values and (None,) * len(values))
            for slot in range(2 if node.op == "Switch" else 1):
                self._lists[node.name, slot] = known._replace(like=next(filter(None, likes), None))

    def _scalar(self, text: str) -> Any:
        return self._scalars.get(reference(text))

    def _index(self, text: str) -> int:
        found = self._scalar(text)
        if found is None:
            raise ValueError(_UNKNOWN)
        return int(found)

    def _state(self, name: str, op: str, inputs: Sequence[str | None], kinds: Mapping[str, Any]) -> None:
        """Say what a node gives in terms of tensors. inputs: None where nothing is known of the list."""
        from tensorflow.core.framework import node_def_pb2

        if None in inputs:
            return
        self._found.plain[name] = plain = node_def_pb2.NodeDef(name=name, op=op, input=inputs)
        for key, kind in kinds.items():
            if isinstance(kind, list):
                plain.attr[key].list.type.extend(kind)
            else:
                plain.attr[key].type = kind

    def _first(self) -> str:
        """A constant that is 0."""
        import tensorflow as tf

        if _FIRST not in self._found.plain:
            self._state(_FIRST, "Const", [], {"dtype": _INT32})
            self._found.plain[_FIRST].attr["value"].tensor.CopyFrom(tf.make_tensor_proto(0, "int32"))
        return _FIRST


def _number(node: Any) -> Any:
    """The value of a constant that is one number, else None."""
    import tensorflow as tf

    tensor = node.attr["value"].tensor
    if any(dim.size != 1 for dim in tensor.tensor_shape.dim) or tensor.dtype not in _NUMBERS:
        return None
    return tf.make_ndarray(tensor).item()


def _named(name: str, iteration: int) -> str:
    return f"{name}@{iteration}" if iteration else name
