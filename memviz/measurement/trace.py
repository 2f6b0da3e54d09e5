"""What TensorFlow's profiler and allocator wrote down: every allocation and release, our own marks, a dump of the end.

The one adapter to their files (`xplane_pb2`, `bfc_memory_map_pb2`), checked with TensorFlow 2.21.
Source: xla/tsl/framework/bfc_allocator.cc, `AddTraceMe` and `MaybeWriteMemoryMap`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from memviz.estimation.attribution import Owner

_MARK = "memviz/"
_KINDS = {"MemoryAllocation": True, "MemoryDeallocation": False}
_DUMP = "chunks"


@dataclass(frozen=True, slots=True)
class Event:
    """One allocation or release. Time in picoseconds of the profiler's clock; sizes in bytes.

    in_use_bytes: what the allocator had handed out afterwards. temporary: the kernel's own, not one of its outputs.
    """

    time: int
    allocates: bool
    address: int
    requested_bytes: int
    charged_bytes: int
    in_use_bytes: int
    op: str
    shape: tuple[int, ...] | None
    dtype: str
    temporary: bool


@dataclass(frozen=True, slots=True, order=True)
class Mark:
    """A span of time that this package has named."""

    start: int
    end: int
    name: str


@dataclass(eq=False, slots=True)
class Block:
    """What was held from event number ``start`` (-1: since before the recording) to event ``end`` (None: for ever).

    owners: (event number, whose it is from there on), in order.
    """

    event: Event
    start: int
    end: int | None = None
    owners: list[tuple[int, Owner]] = field(default_factory=list)


def mark(name: str) -> AbstractContextManager[Any]:
    """Names a span of time in the trace; without a recording it does nothing."""
    import tensorflow as tf

    return tf.profiler.experimental.Trace(_MARK + name)


def start_trace(folder: str) -> None:
    """Begin to record; what is recorded goes to the folder at the end."""
    import tensorflow as tf

    options = tf.profiler.experimental.ProfilerOptions(
        host_tracer_level=2, python_tracer_level=0, device_tracer_level=0
    )
    tf.profiler.experimental.start(folder, options=options)


def stop_trace(folder: str, allocator: str) -> tuple[list[Event], list[Mark]]:
    """End the recording and read it: the events of one allocator and the marks, each in the order of time."""
    import tensorflow as tf

    tf.profiler.experimental.stop()
    return read_trace(next(Path(folder).rglob("*.xplane.pb")), allocator)


def read_trace(path: Path, allocator: str) -> tuple[list[Event], list[Mark]]:
    """Events and marks of a trace file. Raises ValueError where it is damaged or tells of no allocation."""
    from google.protobuf.message import DecodeError
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    try:
        space = xplane_pb2.XSpace.FromString(path.read_bytes())
    except DecodeError as error:
        raise ValueError("The profiler's trace is damaged or cut short; run the trial again.") from error
    events, marks = [], []
    for plane in space.planes:
        names = {number: data.name for number, data in plane.event_metadata.items()}
        for line in plane.lines:
            for raw in line.events:
                name, time = names[raw.metadata_id], line.timestamp_ns * 1000 + raw.offset_ps
                if name in _KINDS:
                    told = dict(_stats(plane, raw))
                    if told["allocator_name"] == allocator:
                        events.append(_event(time, _KINDS[name], told))
                elif name.startswith(_MARK):
                    marks.append(Mark(time, time + raw.duration_ps, name.removeprefix(_MARK)))
    if not events:
        raise ValueError(f"The profiler's trace tells of no allocation by {allocator}; is it the BFC allocator?")
    return sorted(events, key=lambda event: event.time), sorted(marks)


def _stats(plane: Any, event: Any) -> Iterator[tuple[str, Any]]:
    for stat in event.stats:
        kind = stat.WhichOneof("value")
        value = getattr(stat, kind)
        yield (
            plane.stat_metadata[stat.metadata_id].name,
            (plane.stat_metadata[value].name if kind == "ref_value" else value),
        )


def _event(time: int, allocates: bool, told: dict[str, Any]) -> Event:
    shape = re.fullmatch(r"\[([\d,]*)\]", str(told.get("shape", "")))
    return Event(
        time, allocates, told["addr"], told["requested_bytes"], told["allocation_bytes"], told["bytes_allocated"],
        op=told.get("tf_op", ""),
        shape=tuple(int(n) for n in shape.group(1).split(",") if n) if shape else None,
        dtype=_dtype_name(told.get("data_type", 0)),
        temporary=told.get("region_type") == "temp",
    )  # fmt: skip


def _dtype_name(number: int) -> str:
    import tensorflow as tf

    return tf.dtypes.as_dtype(number).name if number else ""


def follow(events: Sequence[Event], overhead_bytes: int) -> list[Block]:
    """Every block that the events tell of. Those from before the recording come as far as they can be told apart.

    overhead_bytes: in use before the trial began. Raises ValueError where events are missing.
    """
    first = events[0]
    in_use = first.in_use_bytes - (first.charged_bytes if first.allocates else -first.charged_bytes)
    nameless = in_use - overhead_bytes  # from before the recording
    blocks: list[Block] = []
    alive: dict[int, Block] = {}
    for number, event in enumerate(events):
        in_use += event.charged_bytes if event.allocates else -event.charged_bytes
        if event.allocates:
            blocks.append(Block(event, number))
            alive[event.address] = blocks[-1]
        elif event.address in alive:
            alive.pop(event.address).end = number
        else:
            nameless -= event.charged_bytes
            blocks.append(Block(event, -1, number))
        if in_use != event.in_use_bytes or nameless < 0:
            raise ValueError(
                f"The profiler's trace lacks allocations: after event {number + 1:,} of {len(events):,} it accounts "
                f"for {in_use:,} B where the allocator had handed out {event.in_use_bytes:,} B. Run the trial again."
            )
    if nameless:
        blocks.append(Block(Event(0, True, 0, nameless, nameless, nameless, "", None, "", False), -1))
    return blocks


@dataclass(frozen=True)
class Dump:
    """The allocator's memory when it last could not serve a request. chunks: address -> charged bytes of those in use.

    in_use_bytes: their sum. free_bytes: of all chunks that are free; largest_free_bytes: of the largest one.
    """

    chunks: dict[int, int]
    in_use_bytes: int
    free_bytes: int
    largest_free_bytes: int


def dump_environment(folder: str) -> dict[str, str]:
    """What has to stand in the environment before TensorFlow is imported, so that a dump is written to the folder."""
    return {"TF_BFC_MEMORY_DUMP": os.path.join(folder, _DUMP)}


def read_dump(folder: str, allocator: str) -> Dump:
    """The latest dump of an allocator. Raises ValueError where there is none, or it is damaged."""
    from google.protobuf.message import DecodeError
    from tensorflow.core.protobuf.bfc_memory_map_pb2 import MemoryDump

    files = sorted(Path(folder).glob(f"{_DUMP}*"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    try:
        dumps = (MemoryDump.FromString(path.read_bytes()) for path in files)
        dump = next((dump for dump in dumps if dump.allocator_name == allocator), None)
    except DecodeError as error:
        raise ValueError("The allocator's dump is damaged or cut short.") from error
    if dump is None:
        raise ValueError(f"The allocator {allocator} wrote no dump of its memory.")
    in_use = {chunk.address: chunk.size for chunk in dump.chunk if chunk.in_use}
    free = [chunk.size for chunk in dump.chunk if not chunk.in_use]
    return Dump(in_use, sum(in_use.values()), sum(free), max(free, default=0))


def number_at(events: Sequence[Event], dump: Dump) -> int:
    """The number of the event after which the dump was written. Raises ValueError where none fits."""
    alive: set[int] = set()
    found = None
    for number, event in enumerate(events):
        (alive.add if event.allocates else alive.discard)(event.address)
        if event.in_use_bytes == dump.in_use_bytes and alive <= dump.chunks.keys():
            found = number
    if found is None:
        raise ValueError("The allocator's dump does not fit the profiler's trace; run the trial again.")
    return found
