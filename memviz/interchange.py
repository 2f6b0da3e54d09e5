"""Records as plain data for JSON and back: profiles, estimates, and the setups that travel to a child process.

Allocations go as columns, so that 10,000 of them are quick to write and to read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from memviz.estimation.result import Estimate
from memviz.profile import Allocation, Category, MemoryProfile, Phase
from memviz.setup import TrainingSetup

VERSION = 1
PROFILE, ESTIMATE = "memviz-profile", "memviz-estimate"
_COLUMNS = tuple(f.name for f in fields(Allocation))


def profile_to_dict(profile: MemoryProfile) -> dict[str, Any]:
    """A profile as plain data; `profile_from_dict` gives back an equal one."""
    data = {f.name: getattr(profile, f.name) for f in fields(MemoryProfile)}
    columns = {name: [getattr(a, name) for a in profile.allocations] for name in _COLUMNS}
    return {"format": PROFILE, "version": VERSION, **data, "setup": dict(profile.setup), "allocations": columns}


def profile_from_dict(data: Mapping[str, Any]) -> MemoryProfile:
    """The profile that `profile_to_dict` described; ValueError for anything else."""
    _check_format(data, PROFILE)
    try:
        columns = {name: data["allocations"][name] for name in _COLUMNS}
        columns["category"] = [Category(c) for c in columns["category"]]
        columns["shape"] = [None if shape is None else tuple(shape) for shape in columns["shape"]]
        rows = zip(*columns.values(), strict=True)
        record = {f.name: data[f.name] for f in fields(MemoryProfile)}
        record["allocations"] = tuple(Allocation(*row) for row in rows)
        record |= {name: tuple(record[name]) for name in ("layers", "not_counted")}
        return MemoryProfile(**record)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(_broken(PROFILE, error)) from error


def estimate_to_dict(estimate: Estimate) -> dict[str, Any]:
    """An estimate as plain data, its profiles included; `estimate_from_dict` gives back an equal one."""
    data = {f.name: getattr(estimate, f.name) for f in fields(Estimate)}
    phases = {
        name: {
            "name": phase.name,
            "peak_bytes": phase.peak_bytes,
            "profile": None if phase.profile is None else profile_to_dict(phase.profile),
        }
        for name, phase in estimate.phases.items()
    }
    return {"format": ESTIMATE, "version": VERSION, **data, "phases": phases}


def estimate_from_dict(data: Mapping[str, Any]) -> Estimate:
    """The estimate that `estimate_to_dict` described; ValueError for anything else."""
    _check_format(data, ESTIMATE)
    try:
        record = {f.name: data[f.name] for f in fields(Estimate)}
        record["phases"] = {
            name: Phase(
                phase["name"],
                phase["peak_bytes"],
                None if phase["profile"] is None else profile_from_dict(phase["profile"]),
            )
            for name, phase in data["phases"].items()
        }
        record["peak_ranges"] = {name: tuple(ends) for name, ends in data["peak_ranges"].items()}
        return Estimate(**record)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(_broken(ESTIMATE, error)) from error


def setup_to_message(setup: TrainingSetup) -> dict[str, Any]:
    """A setup as plain data; optimizer and loss objects as their serialized Keras configs.

    Raises ValueError for a loss that only exists in this process.
    """
    message = {f.name: getattr(setup, f.name) for f in fields(TrainingSetup)}
    if hasattr(setup.optimizer, "get_config"):
        import keras

        message["optimizer"] = keras.optimizers.serialize(setup.optimizer)
    if setup.loss is not None and not isinstance(setup.loss, str | Mapping):
        import keras

        message["loss"] = keras.losses.serialize(setup.loss)
        _loss_from_config(message["loss"])
    return message


def setup_from_message(message: Mapping[str, Any]) -> TrainingSetup:
    """The setup that `setup_to_message` described; a loss object is made anew here."""
    loss = message["loss"]
    return TrainingSetup(**{**message, "loss": _loss_from_config(loss) if isinstance(loss, Mapping) else loss})


def _loss_from_config(config: Mapping[str, Any]) -> Any:
    import keras

    try:
        loss = keras.losses.deserialize(config)
    except Exception:
        loss = None
    if loss is None or isinstance(loss, str):  # a function that Keras does not know comes back as its name
        raise ValueError(
            f"The loss {config.get('registered_name') or config.get('class_name')} {config.get('config')!r} cannot be "
            "made anew in a child process. Use a loss of Keras, or compile the model with your own inside the function "
            "that builds it."
        )
    return loss


def _check_format(data: Mapping[str, Any], wanted: str) -> None:
    found = (data.get("format"), data.get("version")) if isinstance(data, Mapping) else type(data).__name__
    if found != (wanted, VERSION):
        raise ValueError(f"This is no {wanted} of version {VERSION}, but {found!r}; write it with this memviz.")


def _broken(wanted: str, error: Exception) -> str:
    return f"This {wanted} is damaged ({type(error).__name__}: {error}); write it anew."
