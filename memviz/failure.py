"""The request that could not be served, estimated or measured, and TensorFlow's own words for it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from memviz.units import format_bytes, parse_bytes, shape_text, tensor_bytes

PHASE_WORDS = {
    "import": "the import of TensorFlow",
    "build": "the build",
    "first_step": "the first step",
    "steady_step": "a steady step",
    "evaluate": "evaluation",
    "predict": "prediction",
}
BATCH = "batch"  # in place of an operation's name, where it is the batch that finds no room
_SHAPE = re.compile(r"allocating tensor with shape\s*\[([\d,]*)\] and type (\w+)")
# Inside a function the node is named; the wrapper that an eager op runs in is called {{function_node ...}}.
_OP = re.compile(r"(?:\{\{node |\[Op:)([^\]}]+)")
# A step that XLA compiled asks for its memory as a whole, and says how much in rounded words.
_COMPILED = re.compile(r"trying to allocate ([\d.]+ ?[KMGT]iB)\b.*\[Op:__inference_", re.DOTALL)
COMPILED_STEP = "the compiled step"
_DTYPES = {"float": "float32", "double": "float64", "half": "float16"}  # TensorFlow's C++ names where they differ


@dataclass(frozen=True)
class Failure:
    """The request that could not be served. shape in elements, sizes in bytes; None or "" where the error is silent.

    in_graph: it belongs to the step's graph; else it ran by itself, as when weights and slots are made. weight: the
    path of a weight with this shape, which is as large for any batch.
    In an estimate, and where the trial was recorded: in_use_bytes at that moment, free_bytes that nobody held,
    largest_free_bytes of them in one piece.
    """

    phase: str
    op: str = ""  # the operation's name in the graph, or its type where it ran by itself; `BATCH` for the input
    shape: tuple[int, ...] | None = None
    dtype: str = ""
    requested_bytes: int | None = None
    limit_bytes: int | None = None
    in_graph: bool = False
    weight: str = ""
    in_use_bytes: int | None = None
    free_bytes: int | None = None
    largest_free_bytes: int | None = None


def parse_failure(text: str, phase: str, limit_bytes: int | None) -> Failure:
    """The failure that the message of a `ResourceExhaustedError` describes."""
    op, asked = _OP.search(text), _SHAPE.search(text)
    if compiled := _COMPILED.search(text):
        nbytes = parse_bytes(compiled.group(1))
        return Failure(phase, COMPILED_STEP, requested_bytes=nbytes, limit_bytes=limit_bytes, in_graph=True)
    failure = Failure(phase, op.group(1) if op else "", limit_bytes=limit_bytes, in_graph="{{node " in text)
    if asked is None:
        return failure
    shape = tuple(int(n) for n in asked.group(1).split(",") if n)
    dtype = _DTYPES.get(asked.group(2), asked.group(2))
    return replace(failure, shape=shape, dtype=dtype, requested_bytes=tensor_bytes(shape, dtype))


def failure_sentences(failure: Failure, batch_size: int) -> str:
    """The failure in words: phase, operation, what it asked for, the limit, and the ways out that can help."""
    asked = "could not get its memory"
    if failure.requested_bytes is not None:
        shape = "" if failure.shape is None else f" ({shape_text(failure.shape) or 'a scalar'}, {failure.dtype})"
        asked = f"asked for {format_bytes(failure.requested_bytes)}{shape}"
    limit = "" if failure.limit_bytes is None else f"; the limit is {format_bytes(failure.limit_bytes)}"
    if failure.free_bytes is not None and failure.largest_free_bytes is not None:
        largest = format_bytes(failure.largest_free_bytes)
        limit += f", of which {format_bytes(failure.free_bytes)} were free, {largest} of them in one piece"
    ways, of_batch = ["a larger budget"], failure.op == BATCH
    in_step = failure.in_graph or of_batch
    if failure.weight:
        limit += f". That is the shape of the weight {failure.weight}, which is as large for any batch"
    elif in_step and batch_size > 1:
        ways.append("a smaller batch")
    of_weights = bool(failure.weight) or not in_step
    if of_weights and failure.phase != "build":
        ways.append("an optimizer with fewer slots")
    what = f"{'the batch' if of_batch else failure.op or 'an operation'} {asked}{limit}. Way out: {', '.join(ways)}"
    parameters = "or fewer parameters (pooling before Flatten, a smaller Dense)"
    fewer = parameters if of_weights else "or a smaller input, fewer filters or earlier pooling"
    return f"Out of memory in {PHASE_WORDS[failure.phase]}: {what}, {fewer}."
