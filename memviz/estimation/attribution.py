"""Which layer and category a node's memory belongs to, from how Keras entered its name scopes while it was traced.

Scope names are ambiguous (`conv2d_1_2` may be the layer `conv2d_1`), so it is noted which Keras object entered each
scope: TensorFlow makes the path of every scope unique within a graph. Gradients name the forward op they belong to.
Private names: `name_scope` of Keras' TensorFlow backend and its `caller`, checked with Keras 3.15.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, NamedTuple

from memviz.estimation import kernels
from memviz.estimation.graph import Node, StepGraph
from memviz.models.convnet import LayerPlan
from memviz.models.patching import patched
from memviz.profile import INPUT, LOSS, METRICS, OPTIMIZER, ROWS_BESIDE_LAYERS, UNATTRIBUTED, Category

_GRADIENT = "gradient_tape/"
_BRANCH = re.compile(r"^.*/(?:then|else|branch\d+)/_\d+/")  # before the name that an op has in its branch
_SCOPES: ContextVar[tuple[dict[str, str], dict[int, str]] | None] = ContextVar("memviz_scopes", default=None)


class Owner(NamedTuple):
    """Whose memory it is: a row of the profile and a category."""

    layer: str
    category: Category


@contextmanager
def scopes_noted(model: Any) -> Iterator[dict[str, str]]:
    """While this thread traces the model's step: the path of each name scope -> the row that it belongs to."""
    from keras.src.backend.tensorflow.core import name_scope

    scopes: dict[str, str] = {}
    token = _SCOPES.set((scopes, rows_of(model)))
    try:
        with patched(name_scope, {"__enter__": _entering}):
            yield scopes
    finally:
        _SCOPES.reset(token)


def _entering(original: Any) -> Any:
    def enter(scope: Any) -> Any:
        entered = original(scope)
        noted = _SCOPES.get()
        if noted is not None:
            _note(scope, *noted)
        return entered

    return enter


def _note(scope: Any, scopes: dict[str, str], rows: Mapping[int, str]) -> None:
    import keras
    import tensorflow as tf

    path = tf.get_current_name_scope()
    caller = scope.caller
    if isinstance(caller, keras.Model) or path in scopes:
        return
    if isinstance(caller, keras.Layer):
        # A layer within a layer (the Dense inside an attention) belongs to the outer one.
        scopes[path] = _row(path.rpartition("/")[0], scopes) or rows.get(id(caller), caller.name)
    elif isinstance(caller, keras.optimizers.Optimizer):
        scopes[path] = OPTIMIZER
    elif isinstance(caller, keras.Metric):
        scopes[path] = METRICS
    elif scope.name == "compile_loss":
        scopes[path] = LOSS


def _row(path: str, scopes: Mapping[str, str]) -> str | None:
    """The row of the innermost noted scope around ``path``."""
    while path:
        if path in scopes:
            return scopes[path]
        path = path.rpartition("/")[0]
    return None


def owners(graph: StepGraph, scopes: Mapping[str, str], variable_rows: Mapping[int, str]) -> list[Owner]:
    """The owner of each node's outputs. variable_rows: argument number of a resource -> the row of its variable."""
    found: list[Owner] = []
    places = [_place(node.name, scopes) for node in graph.nodes]
    backward = _backward(graph.nodes)
    gradients = {source for source, _ in _weight_gradients(graph.nodes, places, backward)}
    readers = _places_of_readers(graph.nodes, places)
    for index, node in enumerate(graph.nodes):
        place = places[index]
        # Of what it reads; a constant that the runtime folded stands behind its readers.
        rows = [found[n].layer if n < index else places[n] or UNATTRIBUTED for n, _ in node.inputs]
        if index in graph.arguments:
            row = variable_rows.get(graph.arguments[index], INPUT)
            found.append(Owner(row, Category.INPUT))
        elif place == OPTIMIZER:
            # An update works on the weights of one layer: that of the gradient or variable it reads.
            row = next((r for r in rows if r not in (OPTIMIZER, METRICS, INPUT, UNATTRIBUTED)), OPTIMIZER)
            found.append(Owner(row, Category.TEMPORARY))
        elif backward[index]:
            kind = Category.GRADIENT if index in gradients else Category.ACTIVATION_GRADIENT
            found.append(Owner(place or _inherited(rows), kind))
        elif place is None:
            row = _inherited(rows) if rows else readers.get(index, METRICS)
            found.append(Owner(row, Category.TEMPORARY))
        else:
            found.append(Owner(place, Category.ACTIVATION))
    return found


def owner_by_name(name: str, scopes: Mapping[str, str]) -> Owner:
    """The owner of an op that is not in the graph itself, such as one in the body of a loop."""
    place = _place(name, scopes)
    if place is None or place == OPTIMIZER:
        return Owner(place or UNATTRIBUTED, Category.TEMPORARY)
    return Owner(place, Category.ACTIVATION_GRADIENT if _is_gradient(name) else Category.ACTIVATION)


def _place(name: str, scopes: Mapping[str, str]) -> str | None:
    """The row that a node's name puts it into. The optimizer's names are kept by TensorFlow's graph optimizer."""
    name = _BRANCH.sub("", name)
    while name.startswith(("ConstantFolding/", _GRADIENT)):
        name = name.partition("/")[2]
    return _row(name, scopes)


def _is_gradient(name: str) -> bool:
    return _BRANCH.sub("", name).startswith((_GRADIENT, "ConstantFolding/" + _GRADIENT))


def _inherited(rows: Sequence[str]) -> str:
    """The row of what a node without a scope of its own works on, such as the input that a model casts; Keras updates
    its loss tracker in no scope.
    """
    beside = INPUT if INPUT in rows else UNATTRIBUTED
    return next((row for row in rows if row not in (INPUT, UNATTRIBUTED)), beside if rows else METRICS)


def _places_of_readers(nodes: Sequence[Node], places: Sequence[str | None]) -> dict[int, str]:
    """Per node, the place of the first reader that has one: whose a constant without a scope is."""
    found: dict[int, str] = {}
    for node, place in zip(nodes, places, strict=True):
        if place is not None:
            for source, _ in node.inputs:
                found.setdefault(source, place)
    return found


def _backward(nodes: Sequence[Node]) -> list[bool]:
    """Which nodes are of the backward pass; the sums of gradients from several places stand in no scope."""
    found = [_is_gradient(node.name) for node in nodes]
    for index, node in enumerate(nodes):
        found[index] |= node.op == "AddN" and any(found[at] for at, _ in node.inputs)
    return found


def _weight_gradients(
    nodes: Sequence[Node], places: Sequence[str | None], backward: Sequence[bool]
) -> set[tuple[int, int]]:
    """Outputs (node, slot) of the backward pass that the optimizer reads, directly, through an alias, or as terms of a
    sum; a loop adds up what it was given at first.
    """
    found: set[tuple[int, int]] = set()
    todo = [source for node, place in zip(nodes, places, strict=True) if place == OPTIMIZER for source in node.inputs]
    while todo:
        at, slot = first = todo.pop()
        # What a loss was scaled by, its gradients are divided by; the Merge of a loop hands on what came before.
        while (
            nodes[at].op in kernels.ALIASES
            or (nodes[at].op == "RealDiv" and places[at] is None)
            or (nodes[at].op == "Merge" and len(nodes[at].inputs) == 1)
        ):
            at, slot = nodes[at].inputs[0]
        # Another layer's gradient in another shape: the rows of an embedding's sparse gradient.
        passed_on = at != first[0] and backward[first[0]] and places[first[0]] != places[at]
        if backward[at] and (at, slot) not in found and not passed_on:
            found.add((at, slot))
            node = nodes[at]
            todo += node.inputs if node.op == "AddN" else []
    return found


def layers_of(model: Any) -> list[Any]:
    """The layers that get a row: those of nested models in place of the model itself, in order, each once."""
    import keras

    found: dict[int, Any] = {}
    for layer in model.layers:
        for inner in layers_of(layer) if isinstance(layer, keras.Model) else [layer]:
            if not isinstance(inner, keras.layers.InputLayer):
                found.setdefault(id(inner), inner)
    return list(found.values())


def rows_of(model: Any) -> dict[int, str]:
    """The row of each layer, by its id: its name, numbered where another layer or row has it too."""
    taken: dict[str, int] = dict.fromkeys((*ROWS_BESIDE_LAYERS, UNATTRIBUTED), 1)
    rows = {}
    for layer in layers_of(model):
        taken[layer.name] = count = taken.get(layer.name, 0) + 1
        rows[id(layer)] = layer.name if count == 1 else f"{layer.name} ({count})"
    return rows


def plans_of(model: Any) -> tuple[LayerPlan, ...]:
    """What each layer with a row is, by the row's name."""
    rows = rows_of(model)
    return tuple(_plan(layer, rows[id(layer)]) for layer in layers_of(model))


def _plan(layer: Any, name: str) -> LayerPlan:
    weights, buffers = (
        tuple(tuple(v.shape) for v in each) for each in (layer.trainable_variables, layer.non_trainable_variables)
    )
    activation = getattr(getattr(layer, "activation", None), "__name__", None)
    arguments = {"activation": activation} if activation else {}
    ends = _of_an_example(layer, "output"), _of_an_example(layer, "input")
    return LayerPlan(name, type(layer).__name__, arguments, ends[0], weights, buffers, ends[1])


def _of_an_example(layer: Any, side: str) -> tuple[int, ...]:
    """The shape of a layer's input or output in a graph of layers, if it is one tensor whose sizes are known."""
    with suppress(AttributeError, ValueError):  # called in a `call`, or at several places
        shape = tuple(getattr(layer, side).shape)[1:]
        if all(isinstance(size, int) for size in shape):
            return shape
    return ()


def variable_owners(model: Any, made: Sequence[Any]) -> dict[int, Owner]:
    """Row and category of each variable, by its id. A slot belongs to the layer of the weight it serves."""
    names = rows_of(model)
    rows = {id(v): names[id(layer)] for layer in layers_of(model) for v in layer.variables}
    found = {id(v): Owner(rows.get(id(v), model.name), Category.BUFFER) for v in model.variables}
    for v in model.trainable_variables:
        found[id(v)] = Owner(rows.get(id(v), model.name), Category.PARAMETER)
    for metric in model.metrics:
        for v in metric.variables:
            found[id(v)] = Owner(METRICS, Category.BUFFER)
    weight_rows = {
        (v.path.replace("/", "_"), tuple(v.shape)): rows.get(id(v), OPTIMIZER) for v in model.trainable_variables
    }
    for v in model.optimizer.variables:
        found[id(v)] = Owner(_slot_row(v, weight_rows), Category.OPTIMIZER_STATE)
    for v in made:
        found.setdefault(id(v), Owner(OPTIMIZER, Category.BUFFER))
    return found


def _slot_row(slot: Any, weight_rows: Mapping[tuple[str, tuple[int, ...]], str]) -> str:
    """The row of the weight a slot is named after (base_optimizer.py, `add_variable_from_reference`: path_name)."""
    name = slot.path.rpartition("/")[2]
    served = [path for path, _ in weight_rows if name.startswith(path + "_")]
    longest = max(served, key=len, default="")  # "a_kernel" begins the name of a slot of "a_kernel_gate" too
    return next((row for (path, _), row in weight_rows.items() if path == longest), OPTIMIZER)
