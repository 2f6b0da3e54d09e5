"""What TensorFlow's profiler and allocator wrote down: every allocation and release, our own marks, a dump of the end.

The one adapter to their files, checked with TensorFlow 2.21.
Source: xla/tsl/framework/bfc_allocator.cc, `AddTraceMe` and `MaybeWriteMemoryMap`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf.bfc_memory_map_pb2 import MemoryDump
from tensorflow.tsl.profiler.protobuf.xplane_pb2 import XSpace

from memviz.estimation.attribution import Owner

_MARK = "memviz/"
_KINDS = {"MemoryAllocation": True, "MemoryDeallocation": False}


class Event(NamedTuple):
    """One allocation or release. Time in picoseconds of the profiler's clock; sizes in bytes.

    in_use_bytes: what the allocator had handed out afterwards. temporary: the kernel's own, not one of its outputs.
    """

    time: int
    allocates: bool
    address: int
    requested_bytes: int
    charged_bytes: int
    in_use_bytes: int
    op: str = ""
    shape: tuple[int, ...] | None = None
    dtype: str = ""
    temporary: bool = False


class Mark(NamedTuple):
    """A span of time that this package has named, in picoseconds of the profiler's clock."""

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


@dataclass(frozen=True)
class Dump:
    """The allocator's memory when it last could not serve a request. chunks: address -> charged bytes of those in use.

    in_use_bytes: their sum. free_bytes: of all chunks that are free; largest_free_bytes: of the largest one.
    """

    chunks: dict[int, int]
    in_use_bytes: int
    free_bytes: int
    largest_free_bytes: int


def mark(name: str) -> AbstractContextManager[Any]:
    """Names a span of time in the trace; without a recording it does nothing."""
    return tf.profiler.experimental.Trace(_MARK + name)


def start_trace(folder: str) -> None:
    """Begin to record; what is recorded goes to the folder at the end, and the allocator's dumps when it fails."""
    os.environ["TF_BFC_MEMORY_DUMP"] = os.path.join(folder, "chunks")
    options = tf.profiler.experimental.ProfilerOptions(device_tracer_level=0)
    tf.profiler.experimental.start(folder, options=options)


def stop_trace(folder: str, allocator: str) -> tuple[list[Event], list[Mark]]:
    """End the recording and read it: the events of one allocator and the marks, each in the order of time."""
    tf.profiler.experimental.stop()
    return read_trace(next(Path(folder).rglob("*.xplane.pb")), allocator)


def read_trace(path: Path, allocator: str) -> tuple[list[Event], list[Mark]]:
    """Events and marks of a trace file. Raises ValueError where it is damaged or tells of no allocation."""
    try:
        space = XSpace.FromString(path.read_bytes())
    except DecodeError as error:
        raise ValueError("The profiler's trace is damaged or cut short; run the trial again.") from error
    events, marks = [], []
    for plane in space.planes:
        names = {number: data.name for number, data in plane.event_metadata.items()}
        for line in plane.lines:
            for raw in line.events:
                name, time = names[raw.metadata_id], line.timestamp_ns * 1000 + raw.offset_ps
                if name in _KINDS:
                    told = {plane.stat_metadata[s.metadata_id].name: _value(plane, s) for s in raw.stats}
                    if told["allocator_name"] == allocator:
                        events.append(_event(time, _KINDS[name], told))
                elif name.startswith(_MARK):
                    marks.append(Mark(time, time + raw.duration_ps, name.removeprefix(_MARK)))
    if not events:
        raise ValueError(f"The profiler's trace tells of no allocation by {allocator}; is it the BFC allocator?")
    return sorted(events, key=lambda event: event.time), sorted(marks)


def _value(plane: Any, stat: Any) -> Any:
    kind = stat.WhichOneof("value")
    return plane.stat_metadata[stat.ref_value].name if kind == "ref_value" else getattr(stat, kind)


def _event(time: int, allocates: bool, told: dict[str, Any]) -> Event:
    shape, dtype = re.fullmatch(r"\[([\d,]*)\]", str(told.get("shape"))), told.get("data_type")
    return Event(
        time, allocates, told["addr"], told["requested_bytes"], told["allocation_bytes"], told["bytes_allocated"],
        told.get("tf_op", ""), tuple(int(n) for n in shape[1].split(",") if n) if shape else None,
        tf.dtypes.as_dtype(dtype).name if dtype else "", told.get("region_type") == "temp",
    )  # fmt: skip


def follow(events: Sequence[Event], overhead_bytes: int) -> list[Block]:
    """Every block that the events tell of. Those from before the recording come as far as they can be told apart.

    overhead_bytes: in use before the trial began. Raises ValueError where events are missing.
    """
    changes = [event.charged_bytes if event.allocates else -event.charged_bytes for event in events]
    in_use = events[0].in_use_bytes - changes[0]
    nameless = in_use - overhead_bytes  # from before the recording
    blocks: list[Block] = []
    alive: dict[int, Block] = {}
    for number, (event, change) in enumerate(zip(events, changes, strict=True)):
        in_use += change
        if event.allocates:
            blocks.append(Block(event, number))
            alive[event.address] = blocks[-1]
        elif event.address in alive:
            alive.pop(event.address).end = number
        else:
            nameless += change
            blocks.append(Block(event, -1, number))
        if in_use != event.in_use_bytes or nameless < 0:
            raise ValueError(
                f"The profiler's trace lacks allocations: after event {number + 1:,} of {len(events):,} it accounts "
                f"for {in_use:,} B where the allocator had handed out {event.in_use_bytes:,} B. Run the trial again."
            )
    if nameless:
        blocks.append(Block(Event(0, True, 0, nameless, nameless, nameless), -1))
    return blocks


def read_dump(folder: str, allocator: str) -> Dump:
    """The latest dump of an allocator. Raises ValueError where there is none, or it is damaged."""
    files = sorted(Path(folder).glob(f"chunks_{allocator}.*"))  # named by their time
    if not files:
        raise ValueError(f"The allocator {allocator} wrote no dump of its memory.")
    try:
        dump = MemoryDump.FromString(files[-1].read_bytes())
    except DecodeError as error:
        raise ValueError("The allocator's dump is damaged or cut short.") from error
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
