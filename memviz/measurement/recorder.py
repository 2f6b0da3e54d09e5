"""The recorder, inside a trial's child: every allocation of the recorded phases, by layer, category and address.

One session of TensorFlow's profiler runs from before the build to after the recorded step, so that nothing is missed.
Each op in the trace is looked up by its name in the very graph that was run; variables are found by the addresses of
their storage. Private names: Keras' `Variable._initialize` (see models/abstract.py).
"""

from __future__ import annotations

import ctypes
import re
import weakref
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common.global_state import get_global_attribute
from keras.src.backend.tensorflow.core import Variable

from memviz.estimation import assignment, attribution
from memviz.estimation.attribution import Owner, rows_of, variable_owners
from memviz.estimation.graph import step_graph
from memviz.measurement import trace
from memviz.measurement.device import Device
from memviz.measurement.trace import Block, Dump, Event
from memviz.models.training import trained_with
from memviz.profile import INPUT, NOT_COUNTED, OPTIMIZER, PHASES, UNATTRIBUTED, Allocation, Category, MemoryProfile
from memviz.setup import TrainingSetup

BATCH, _PHASE = "batch", "phase/"  # names of marks; any other is a variable's number


class Recorder:
    """Records from when it is made until `stop`. folder: for TensorFlow's files; the parent removes it."""

    def __init__(self, device: Device, folder: str, setup: TrainingSetup) -> None:
        self.recording = True
        self._device, self._folder, self._setup = device, folder, setup
        self._made: list[weakref.ref[Any]] = []  # every Keras variable, in the order of making
        self._makers: list[Owner] = []  # whose each is, as far as that is known while it is made
        self._storage: dict[str, dict[int, int]] = {}  # phase -> variable's number -> address, after it
        self._peaks: dict[str, int] = {}
        self._model: Any = None
        self._concrete: Any = None
        self._scopes: Mapping[str, str] = {}
        self._note_variables()
        trace.start_trace(folder)

    def _note_variables(self) -> None:
        original = Variable._initialize

        def initialize(variable: Any, value: Any) -> None:
            self._made.append(weakref.ref(variable))
            self._makers.append(_calling(variable))
            with trace.mark(str(len(self._made) - 1)):
                original(variable, value)

        Variable._initialize = initialize

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """What happens inside belongs to the phase."""
        if not self.recording:
            yield
            return
        with trace.mark(_PHASE + name):
            yield
        self._peaks[name] = self._device.memory()[1]
        self._storage[name] = self._addresses()

    @contextmanager
    def traced(self, model: Any, step: Any, specs: Any) -> Iterator[None]:
        """The first call of the step function happens inside, with a batch of these TensorSpecs: which layer makes
        which op is noted.
        """
        self._model, self._step, self._specs = model, step, specs
        with attribution.scopes_noted(model) as self._scopes:
            try:
                yield
            finally:
                if step.experimental_get_tracing_count():
                    self._concrete = step.get_concrete_function(specs)

    def stop(self) -> None:
        """End the recording and read what was recorded. Raises ValueError where it is not complete."""
        self.recording = False
        self._events, marks = trace.stop_trace(self._folder, self._allocator)
        self._blocks = trace.follow(self._events, self._device.overhead_bytes)
        self._phases = {m.name.removeprefix(_PHASE): m for m in marks if m.name.startswith(_PHASE)}
        self._marks = [m for m in marks if not m.name.startswith(_PHASE)]

    def profiles(self) -> list[MemoryProfile]:
        """The phases that were completed, but for those that warm up; after `stop`."""
        self._attribute()
        arenas = self._arenas()
        done = [name for name in self._phases if name in self._peaks and name in PHASES]
        return [self._profile(name, [*_divided(self._allocations(name), arenas)], self._peaks[name]) for name in done]

    def at_failure(self) -> tuple[MemoryProfile, Dump]:
        """What was alive when a request could not be served, and the allocator's own word on it; after `stop`.

        Raises ValueError where the allocator's dump and the trace do not fit.
        """
        dump = trace.read_dump(self._folder, self._allocator)
        failed_after = trace.number_at(self._events, dump)
        name = list(self._phases)[-1]
        self._storage.setdefault(name, self._addresses())
        self._attribute()
        alive = [a for a in self._allocations(name, failed_after + 1) if a.end is None]
        return self._profile(name if name in PHASES else "steady_step", alive, None), dump

    def _arenas(self) -> dict[int, assignment.Block]:
        """Where XLA compiled the step: what one run of it takes, by its requested bytes, as the compiler divides it."""
        if self._concrete is None or not self._model.jit_compile:
            return {}
        try:
            program = assignment.compile_step(self._step, self._specs, ())
        except tf.errors.OpError:  # no room for the batch that is compiled for: the arena stays one block
            return {}
        rows = variable_owners(self._model, [])
        weights = [(rows[id(v)].layer, v.shape) for v in self._model.trainable_variables]
        return {block.nbytes: block for block in assignment.blocks(program, self._scopes, weights)}

    @property
    def _allocator(self) -> str:
        return "bfc_cpu_allocator_for_gpu" if self._device.name == "CPU:0" else "GPU_0_bfc"

    def _profile(self, phase: str, allocations: list[Allocation], peak_bytes: int | None) -> MemoryProfile:
        model, described = self._model, self._setup.describe()
        layers: tuple[str, ...] = ()
        if model is not None:
            described = trained_with(model, self._setup)
            layers = tuple(rows_of(model).values())
        return MemoryProfile(phase, "measured", tuple(allocations), layers, described, NOT_COUNTED, peak_bytes)

    def _numbers(self, name: str) -> tuple[int, int]:
        """The numbers of a phase's first event, and of the first one after it."""
        phase = self._phases[name]
        low = bisect_left(self._events, phase.start, key=lambda event: event.time)
        return low, bisect_right(self._events, phase.end, key=lambda event: event.time)

    def _allocations(self, name: str, before: int | None = None) -> list[Allocation]:
        """A phase's allocations, those from before it included; only what had happened before an event's number."""
        low, high = self._numbers(name)
        high = high if before is None else before
        found = []
        for block in self._blocks:
            ends = [start for start, _ in block.owners[1:]] + [block.end]
            for (start, owner), end in zip(block.owners, ends, strict=True):
                if start < high and (end is None or (end >= low and end > start)):
                    kept = None if end is None or end >= high else end
                    found.append(self._record(block.event, owner, start, kept, low, self._phases[name].start))
        return found

    def _record(self, event: Event, owner: Owner, start: int, end: int | None, low: int, began: int) -> Allocation:
        return Allocation(
            event.charged_bytes, event.requested_bytes, max(0, start - low + 1), end if end is None else end - low + 1,
            owner.layer, owner.category, event.op, event.shape, event.dtype,
            address=event.address - self._lowest if event.address else None,
            start_seconds=(self._events[start].time - began) / 1e12 if start >= low else None,
            end_seconds=None if end is None else (self._events[end].time - began) / 1e12,
        )  # fmt: skip

    def _attribute(self) -> None:
        """Whose each block is: by its mark or its op while it is made, and as a variable's storage from then on."""
        self._lowest = min(event.address for event in self._events)
        self._of_op = self._owners_of_ops()
        variables = self._variable_owners()
        for block in self._blocks:
            block.owners = [(block.start, self._maker(block.event, variables))]
        holders: dict[int, Block] = {}
        for name, storage in self._storage.items():
            high = self._numbers(name)[1]
            alive = {b.event.address: b for b in self._blocks if b.start < high and (b.end is None or b.end >= high)}
            for number, address in storage.items():
                if address in alive and alive[address] not in holders.values():
                    _hand_over(alive[address], holders.get(number), variables[number])
                    holders[number] = alive[address]

    def _owners_of_ops(self) -> Mapping[str, Owner]:
        """Of the nodes of the graph that was run, by their names."""
        if self._concrete is None:
            return {}
        try:
            graph = step_graph(self._concrete)
        except ValueError:  # a loop of which it is not known how often it runs
            return {}
        rows = variable_owners(self._model, [])
        row = {id(v.value.handle): rows[id(v)].layer for v in self._alive().values() if id(v) in rows}
        by_argument = {argument: row.get(id(handle), OPTIMIZER) for argument, handle in graph.resources.items()}
        found = attribution.owners(graph, self._scopes, by_argument)
        return {_in_loops(node.name): owner for node, owner in zip(graph.nodes, found, strict=True)}

    def _maker(self, event: Event, variables: Mapping[int, Owner]) -> Owner:
        """Whose an allocation is when it is made."""
        at = bisect_right(self._marks, event.time, key=lambda mark: mark.start) - 1
        mark = self._marks[at].name if at >= 0 and event.time <= self._marks[at].end else ""
        if mark == BATCH:
            return Owner(INPUT, Category.INPUT)
        if mark:
            return Owner(variables[int(mark)].layer, Category.TEMPORARY)
        if not event.op or not self._scopes:
            return Owner(UNATTRIBUTED, Category.TEMPORARY)
        owner = self._of_op.get(_in_loops(event.op)) or attribution.owner_by_name(event.op, self._scopes)
        return Owner(owner.layer, Category.TEMPORARY) if event.temporary else owner

    def _alive(self) -> dict[int, Any]:
        return {number: v for number, made in enumerate(self._made) if (v := made()) is not None}

    def _variable_owners(self) -> dict[int, Owner]:
        """By number; those of a model that was never finished as they were known while they were made."""
        found = dict(enumerate(self._makers))
        alive = self._alive()
        known = {} if self._model is None else variable_owners(self._model, list(alive.values()))
        return found | {number: known[id(v)] for number, v in alive.items() if id(v) in known}

    def _addresses(self) -> dict[int, int]:
        """Where each variable's storage is."""
        return {number: address for number, v in self._alive().items() if (address := _address(v))}


def _in_loops(op: str) -> str:
    """The op's name without the numbers that TensorFlow gives to the bodies of loops, in the order of its work."""
    return re.sub(r"/(body|cond)/_\d+/", r"/\1/", op)


def _divided(allocations: list[Allocation], arenas: Mapping[int, assignment.Block]) -> Iterator[Allocation]:
    for allocation in allocations:
        block = arenas.get(allocation.requested_nbytes) if allocation.layer == UNATTRIBUTED else None
        yield from [allocation] if block is None else block.divided(allocation)


def _calling(variable: Any) -> Owner:
    """The outermost layer that is being built, whose variable this is."""
    callers = [scope.caller for scope in get_global_attribute("name_scope_stack") or []]
    layers = [c for c in callers if isinstance(c, keras.Layer) and not isinstance(c, keras.Model)]
    category = Category.PARAMETER if variable.trainable else Category.BUFFER
    return Owner(layers[0].name, category) if layers else Owner(OPTIMIZER, Category.OPTIMIZER_STATE)


def _hand_over(block: Block, before: Block | None, owner: Owner) -> None:
    """A block has become a variable's storage, in place of another; when, follows from what the assignment does:
    it makes the block itself, as a copy, or takes over a value and lets go of the storage before.
    """
    if before is None or before.end is None or before.end <= block.start or "Assign" in block.event.op:
        block.owners = [(block.start, owner)]
        if before is not None and (before.end is None or before.end > block.start):
            before.owners.append((block.start, Owner(owner.layer, Category.TEMPORARY)))
    else:
        block.owners.append((before.end, owner))


def _address(variable: Any) -> int | None:
    """The address of a Keras variable's storage, through DLPack's pointer (the first field of a DLTensor)."""
    try:
        value = variable.value
        capsule = tf.experimental.dlpack.to_dlpack(tf.raw_ops.ReadVariableOp(resource=value.handle, dtype=value.dtype))
    except (tf.errors.OpError, AttributeError, BufferError):  # no storage yet, or a dtype that DLPack does not know
        return None
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    return ctypes.c_void_p.from_address(pointer(capsule, b"dltensor")).value
