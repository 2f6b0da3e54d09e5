"""Records as plain data for JSON and back: profiles and estimates. msgspec checks every type on the way back.

Allocations go as columns, so that 10,000 of them are quick to write and to read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypedDict, get_type_hints

import msgspec

from memviz.estimation.result import Estimate
from memviz.failure import Failure
from memviz.profile import Allocation, MemoryProfile, Phase, checked_profile

VERSION = 1
PROFILE, ESTIMATE = "memviz-profile", "memviz-estimate"
_LARGEST = 2**62  # bytes or positions; beyond it, sums leave 64 bits
_columns = {name: list[kind] for name, kind in get_type_hints(Allocation).items()}  # type: ignore[valid-type]
_Allocations = TypedDict("_Allocations", _columns)  # type: ignore[misc]
_Profile = TypedDict("_Profile", get_type_hints(MemoryProfile) | {"allocations": _Allocations})  # type: ignore[misc]
_Phases = list[tuple[str, int, _Profile | None]]
_wire = {"phases": _Phases, "failure": Failure | None, "at_failure": _Profile | None}
_Estimate = TypedDict("_Estimate", get_type_hints(Estimate) | _wire)  # type: ignore[misc]


def profile_to_dict(profile: MemoryProfile) -> dict[str, Any]:
    """A profile as plain data; `profile_from_dict` gives back an equal one."""
    columns = {f.name: [getattr(a, f.name) for a in profile.allocations] for f in fields(Allocation)}
    return _written(PROFILE, profile) | {"setup": dict(profile.setup), "allocations": columns}


def profile_from_dict(data: Mapping[str, Any]) -> MemoryProfile:
    """The profile that `profile_to_dict` described; ValueError for anything else."""
    with _refused_unless(PROFILE, data):
        return _profile(msgspec.convert(data, _Profile))


def _profile(record: dict[str, Any]) -> MemoryProfile:
    columns = [record["allocations"][f.name] for f in fields(Allocation)]
    allocations = tuple(Allocation(*row) for row in zip(*columns, strict=True))
    if any(max(a.nbytes, a.end or 0, a.address or 0) >= _LARGEST for a in allocations):
        raise ValueError("a number of bytes or a position is too large")
    return MemoryProfile(**record | {"allocations": allocations})


def save(profile: MemoryProfile, path: str | Path) -> None:
    """Write a profile to a file: ``.json``, which `load` reads, or ``.csv``, a row per allocation, for spreadsheets.

    Raises ValueError for another ending. The schema is in docs/profile-format.md.
    """
    path, data = Path(path), profile_to_dict(checked_profile(profile))
    if path.suffix == ".json":
        path.write_text(json.dumps(data), encoding="utf-8")
    elif path.suffix == ".csv":
        import pandas as pd

        pd.DataFrame(data["allocations"]).to_csv(path, index=False)
    else:
        raise ValueError(f"{path.name!r} ends neither in .json nor in .csv; a page is written by memviz.views.page.")


def load(path: str | Path) -> MemoryProfile:
    """The profile that `save` wrote as JSON. Nothing in the file is executed.

    Raises ValueError, in one sentence, for a file that is damaged, of a newer memviz, or no profile at all.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} is cut short or no memviz profile in JSON ({error}); write it anew as .json (a .csv is not read)."
        ) from error
    if not isinstance(data, dict) or data.get("format") != PROFILE:
        raise ValueError(f"{path} is no memviz profile; memviz.interchange.save writes one.")
    if isinstance(data.get("version"), int) and data["version"] > VERSION:
        raise ValueError(
            f"{path} was written by a newer memviz (format {data['version']}, here {VERSION}); update memviz."
        )
    return profile_from_dict(data)


def estimate_to_dict(estimate: Estimate) -> dict[str, Any]:
    """An estimate as plain data, its profiles included; `estimate_from_dict` gives back an equal one."""
    phases = [(p.name, p.peak_bytes, p.profile and profile_to_dict(p.profile)) for p in estimate.phases.values()]
    alive, failure = estimate.at_failure, estimate.failure
    return _written(ESTIMATE, estimate) | {
        "phases": phases, "failure": failure and asdict(failure), "at_failure": alive and profile_to_dict(alive),
        "layers": [asdict(layer) for layer in estimate.layers],
    }  # fmt: skip


def estimate_from_dict(data: Mapping[str, Any]) -> Estimate:
    """The estimate that `estimate_to_dict` described; ValueError for anything else."""
    with _refused_unless(ESTIMATE, data):
        record: dict[str, Any] = msgspec.convert(data, _Estimate)
        phases = {name: Phase(name, peak, profile and _profile(profile)) for name, peak, profile in record["phases"]}
        alive = record["at_failure"] and _profile(record["at_failure"])
        return Estimate(**record | {"phases": phases, "at_failure": alive})


def _written(kind: str, record: MemoryProfile | Estimate) -> dict[str, Any]:
    return {"format": kind, "version": VERSION} | {f.name: getattr(record, f.name) for f in fields(record)}


@contextmanager
def _refused_unless(kind: str, data: Mapping[str, Any]) -> Iterator[None]:
    try:
        if (found := (data["format"], data["version"])) != (kind, VERSION):
            raise ValueError(f"it says {found}")
        yield
    except (KeyError, TypeError, ValueError) as error:
        why = f"{type(error).__name__}: {error}"
        raise ValueError(
            f"This {kind} is damaged or not of version {VERSION} ({why}); write it with this memviz."
        ) from error
