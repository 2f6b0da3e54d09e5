"""Records as plain data for JSON and back: profiles and estimates.

Allocations go as columns, so that 10,000 of them are quick to write and to read.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, get_args

from memviz.estimation.result import Estimate
from memviz.failure import Failure
from memviz.profile import Allocation, Category, MemoryProfile, Phase, Source, checked_profile

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
        _check(data, columns)
        columns["category"] = map(Category, columns["category"])
        columns["shape"] = [None if shape is None else tuple(shape) for shape in columns["shape"]]
        record = {f.name: data[f.name] for f in fields(MemoryProfile)}
        record["allocations"] = tuple(Allocation(*row) for row in zip(*columns.values(), strict=True))
        return MemoryProfile(**record | {name: tuple(record[name]) for name in ("layers", "not_counted")})


_LARGEST = 2**62  # bytes or positions; beyond it, sums leave 64 bits


def _check(data: Mapping[str, Any], columns: Mapping[str, list[Any]]) -> None:
    """Raises ValueError for values of another type than `save` writes; the records themselves check their ranges."""
    texts = [*data["layers"], *data["not_counted"]]
    texts += [text for name in ("layer", "op", "dtype") for text in columns[name]]
    counts = [n for name in ("nbytes", "requested_nbytes", "start") for n in columns[name]]
    counts += [n for name in ("end", "address") for n in columns[name] if n is not None]
    counts += [n for shape in columns["shape"] if shape is not None for n in shape]
    lists = [data["layers"], data["not_counted"], *(shape for shape in columns["shape"] if shape is not None)]
    if not all(type(each) is list for each in lists):
        raise ValueError("a list is something else")
    if not all(type(text) is str for text in texts):
        raise ValueError("a text is something else")
    if not all(type(n) is int and 0 <= n < _LARGEST for n in counts):
        raise ValueError("a number of bytes, a size or a position is something else, negative or too large")
    if not isinstance(data["setup"], dict) or data["source"] not in get_args(Source):
        raise ValueError("the setup is no mapping, or the source is not known")


def save(profile: MemoryProfile, path: str | Path) -> None:
    """Write a profile to a file: ``.json``, which `load` reads, or ``.csv``, a row per allocation, for spreadsheets.

    Raises ValueError for another ending. The schema is in docs/profile-format.md.
    """
    path, data = Path(path), profile_to_dict(checked_profile(profile))
    if path.suffix == ".json":
        path.write_text(json.dumps(data), encoding="utf-8")
    elif path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(data["allocations"])
            writer.writerows(zip(*data["allocations"].values(), strict=True))
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
    }  # fmt: skip


def estimate_from_dict(data: Mapping[str, Any]) -> Estimate:
    """The estimate that `estimate_to_dict` described; ValueError for anything else."""
    with _refused_unless(ESTIMATE, data):
        record = {f.name: data[f.name] for f in fields(Estimate)}
        phases = [Phase(name, peak, profile and profile_from_dict(profile)) for name, peak, profile in data["phases"]]
        record["phases"] = {phase.name: phase for phase in phases}
        record["peak_ranges"] = {name: tuple(ends) for name, ends in data["peak_ranges"].items()}
        if record["failure"]:
            shape = data["failure"]["shape"]
            record["failure"] = Failure(**data["failure"] | {"shape": None if shape is None else tuple(shape)})
            record["at_failure"] = profile_from_dict(data["at_failure"])
        return Estimate(**record)


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
