"""Another batch size without another trace.

Between two traced batch sizes whose graphs are alike every size is known: it is the same in both, or in proportion to
the batch. Where a graph holds any other (one that grows with the square of the batch), nothing is concluded from it.
What cannot be seen so: at a single batch size a constant may happen to equal another one (1 / 100, and 1 less
BatchNorm's momentum of 0.99), and the graph optimizer keeps one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace

from memviz.estimation.estimate import Traced
from memviz.estimation.graph import Node, TensorType
from memviz.estimation.replay import Step
from memviz.units import tensor_bytes

_KEPT = 6  # traces of one network; each of a large one takes some 10 MB
_SMALLEST = 3  # a batch of one has a graph of its own: what is summed over more examples is not summed there


class TracesByBatch:
    """The traces of one network and training; `at` gives the one of a batch size, as ``trace`` would.

    The second batch size asked for costs a trace as the first did; those between, or twice as large, mostly none:
    TensorFlow's graph optimizer rewrites some ops once a tensor is larger than 10 MB, so that a graph may change.
    """

    def __init__(self, trace: Callable[[int], Traced], *, ahead: bool = True) -> None:
        self._trace = trace
        self._traced: dict[int, Traced] = {}
        self._derived: tuple[int, Traced] | None = None  # the last one: the next budget may be asked for it
        self._ahead = ahead  # whether it pays to trace a batch size that was not asked for

    def at(self, batch_size: int) -> Traced:
        """Raises ValueError where the network cannot be traced with this batch size."""
        if self._derived is not None and self._derived[0] == batch_size:
            return self._derived[1]
        if batch_size not in self._traced:
            while len(self._traced) >= _KEPT:
                del self._traced[next(iter(self._traced))]  # the oldest
            derived = self._between(batch_size)
            if derived is not None:
                self._derived = batch_size, derived
                return derived
            self._traced[batch_size] = self._trace(batch_size)
        return self._traced[batch_size]

    def _between(self, batch_size: int) -> Traced | None:
        """The trace of a batch size from those around it; None where they do not tell."""
        ends = sorted(traced for traced in self._traced if traced >= _SMALLEST)
        if not ends or batch_size <= _SMALLEST:
            return None
        low = max((each for each in ends if each < batch_size), default=_SMALLEST)
        # Python code may ask whether the batch is even: of one even and one odd end the graphs are not alike then.
        higher = [h for h in ends if h > batch_size and ((h - low) % 2 or (batch_size - low) % 2 == 0)]
        if self._ahead and (low not in ends or not higher):
            higher = higher or [2 * batch_size + 1 - low % 2]  # the next ones asked for lie between
            self._ahead = self._traces_ahead(low, higher[0])
        for high in higher if low in self._traced else ():
            with suppress(_UnlikeError, KeyError):
                return _derived(self._traced[low], self._traced[high], (low, high), batch_size)
        return None

    def _traces_ahead(self, low: int, high: int) -> bool:
        """Trace batch sizes that were not asked for; whether their graphs are alike, so that it pays."""
        try:
            for end in {low, high} - self._traced.keys():
                self._traced[end] = self._trace(end)
            _derived(self._traced[low], self._traced[high], (low, high), low)
        except (_UnlikeError, ValueError):
            return False
        return True


class _UnlikeError(Exception):
    """Two graphs of one network differ by more than sizes in proportion to the batch."""


def _derived(low: Traced, high: Traced, batches: tuple[int, int], batch_size: int) -> Traced:
    def size(a: int, b: int) -> int:
        if a == b:
            return a
        exact, left = divmod(a * batch_size, batches[0])
        if left or a * batches[1] != b * batches[0]:
            raise _UnlikeError
        return exact

    def shape(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(map(size, a, b))

    def fed(a: Step, b: Step) -> Iterator[tuple[int, tuple[int, ...], str]]:
        for (_, shape_a, dtype), (_, shape_b, _) in zip(a.batch, b.batch, strict=True):
            between = shape(shape_a, shape_b)
            yield tensor_bytes(between, dtype), between, dtype

    def nodes(a: Iterable[Node], b: Iterable[Node]) -> Iterator[Node]:
        for node, other in zip(a, b, strict=True):
            if node.outputs == other.outputs:
                yield node
                continue
            outputs = (
                one if one.shape is None or two.shape is None else TensorType(shape(one.shape, two.shape), one.dtype)
                for one, two in zip(node.outputs, other.outputs, strict=True)
            )
            yield replace(node, outputs=tuple(outputs))

    one, two = low.training.step, high.training.step
    if one.blocks:
        raise _UnlikeError  # XLA decides anew for each batch size
    made = [[(w.shape, w.dtype) for w in (*t.training.weights, *t.training.slots)] for t in (low, high)]
    if made[0] != made[1] or [*map(_structure, one.graph.nodes)] != [*map(_structure, two.graph.nodes)]:
        raise _UnlikeError
    graph = replace(one.graph, nodes=tuple(nodes(one.graph.nodes, two.graph.nodes)))
    step = replace(one, batch=tuple(fed(one, two)), graph=graph)
    return replace(low, training=replace(low.training, step=step))


def _structure(node: Node) -> tuple[object, ...]:
    kinds = [(each.dtype, None if each.shape is None else len(each.shape)) for each in node.outputs]
    return node.op, node.inputs, node.controls, kinds
