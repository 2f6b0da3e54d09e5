"""Records as plain data for JSON and back: profiles, estimates, and the setups that travel to a child process.

Allocations go as columns, so that 10,000 of them are quick to write and to read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from memviz.estimation.result import Estimate
from memviz.models.network import serialized
from memviz.models.training import make_loss
from memviz.profile import Allocation, Category, MemoryProfile, Phase
from memviz.setup import TrainingSetup

VERSION = 1
PROFILE, ESTIMATE = "memviz-profile", "memviz-estimate"


def profile_to_dict(profile: MemoryProfile) -> dict[str, Any]:
    """A profile as plain data; `profile_from_dict` gives back an equal one."""
    columns = {f.name: [getattr(a, f.name) for a in profile.allocations] for f in fields(Allocation)}
    return _written(PROFILE, profile) | {"setup": dict(profile.setup), "allocations": columns}


def profile_from_dict(data: Mapping[str, Any]) -> MemoryProfile:
    """The profile that `profile_to_dict` described; ValueError for anything else."""
    with _refused_unless(PROFILE, data):
        columns = {f.name: data["allocations"][f.name] for f in fields(Allocation)}
        columns["category"] = map(Category, columns["category"])
        columns["shape"] = [None if shape is None else tuple(shape) for shape in columns["shape"]]
        record = {f.name: data[f.name] for f in fields(MemoryProfile)}
        record["allocations"] = tuple(Allocation(*row) for row in zip(*columns.values(), strict=True))
        return MemoryProfile(**record | {name: tuple(record[name]) for name in ("layers", "not_counted")})


def estimate_to_dict(estimate: Estimate) -> dict[str, Any]:
    """An estimate as plain data, its profiles included; `estimate_from_dict` gives back an equal one."""
    phases = [(p.name, p.peak_bytes, p.profile and profile_to_dict(p.profile)) for p in estimate.phases.values()]
    return _written(ESTIMATE, estimate) | {"phases": phases}


def estimate_from_dict(data: Mapping[str, Any]) -> Estimate:
    """The estimate that `estimate_to_dict` described; ValueError for anything else."""
    with _refused_unless(ESTIMATE, data):
        record = {f.name: data[f.name] for f in fields(Estimate)}
        phases = [Phase(name, peak, profile and profile_from_dict(profile)) for name, peak, profile in data["phases"]]
        record["phases"] = {phase.name: phase for phase in phases}
        record["peak_ranges"] = {name: tuple(ends) for name, ends in data["peak_ranges"].items()}
        return Estimate(**record)


def setup_to_message(setup: TrainingSetup) -> dict[str, Any]:
    """A setup as plain data; optimizer and loss objects as their serialized Keras configs.

    Raises ValueError for a loss that only exists in this process.
    """
    message = {f.name: getattr(setup, f.name) for f in fields(TrainingSetup)}
    for part in ("optimizer", "loss"):
        if not isinstance(message[part], str | None):
            message[part] = serialized(message[part])
    make_loss(message["loss"])
    return message


def setup_from_message(message: Mapping[str, Any]) -> TrainingSetup:
    """The setup that `setup_to_message` described, optimizer and loss as configs."""
    return TrainingSetup(**message)


def _written(kind: str, record: MemoryProfile | Estimate) -> dict[str, Any]:
    return {"format": kind, "version": VERSION} | {f.name: getattr(record, f.name) for f in fields(record)}


@contextmanager
def _refused_unless(kind: str, data: Mapping[str, Any]) -> Iterator[None]:
    try:
        if (found := (data["format"], data["version"])) != (kind, VERSION):
            raise ValueError(f"it says {found}")
        yield
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        why = f"{type(error).__name__}: {error}"
        raise ValueError(
            f"This {kind} is damaged or not of version {VERSION} ({why}); write it with this memviz."
        ) from error
