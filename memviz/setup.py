"""How a network is trained: everything beside the network itself that decides its memory. Validated and frozen."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from numbers import Integral
from pathlib import Path
from typing import Any, Literal

from memviz import cards
from memviz.units import MIB, TIB, format_bytes, parse_bytes

# Keras' own names, written down so that a mistake is found without importing TensorFlow; a test holds them equal.
_NAMES = json.loads(Path(__file__).with_name("keras_names.json").read_text())
OPTIMIZER_CLASSES: Mapping[str, str] = _NAMES["optimizers"]
OPTIMIZERS, LOSSES = tuple(OPTIMIZER_CLASSES), tuple(_NAMES["losses"])
DTYPE_POLICIES = ("float32", "float64", "float16", "bfloat16", "mixed_float16", "mixed_bfloat16")

INFERENCE = {"evaluate": "test", "predict": "predict"}  # phase -> Keras' name of its step
INFERENCE_BATCH = 32  # Keras' default, whatever the batch of training

REFERENCE = "reference"
BACKEND = {"KERAS_BACKEND": "tensorflow"}  # whatever the user's environment says
# What its process is told before it imports TensorFlow: no GPU, and none of oneDNN's fusions, scratch and layouts,
# which are no GPU's. An estimate is traced under the same.
REFERENCE_ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", "TF_ENABLE_ONEDNN_OPTS": "0"} | BACKEND
# Beside the budget the reference device has a region of this size. There lie, until it is full, small tensors such as
# shapes, which on a GPU lie in the host's memory; without it, TensorFlow itself aborts when the budget is used up.
FIRST_REGION_BYTES = 2 << 20
_BUDGETS = MIB, 64 * TIB  # TensorFlow's limits are whole MiB; no device has more than the upper end
LARGEST = 2**31 - 1  # a TensorFlow dimension may be larger, most kernels index with 32 bits


@dataclass(frozen=True, kw_only=True)
class TrainingSetup:
    """How one network is trained.

    batch_size: examples per step.
    optimizer: a Keras optimizer's name, an instance, or its serialized config; None: the compiled one, else adam.
    loss: a Keras loss's name, an instance, a function, a serialized config, or a list of such, or a mapping from output
    names to them; None: the compiled loss, else one that suits the output.
    dtype_policy: a Keras dtype policy's name; None: the network's own.
    jit_compile: True (XLA), False, or "auto" (Keras' own rule for the device).
    device: "reference", "GPU:0" or, for estimates, a card such as "T4" (`memviz.devices`); None: this machine's GPU,
    else the reference device.
    budget_bytes: the device memory training may take, in bytes; None: no limit beyond the device.
    memory_growth: False: one region taken at the start, as on a GPU by default; True: regions that grow on demand.
    inputs: what a model takes that does not know it yet: TensorSpecs or arrays of a batch, in the model's structure.
    Kept as text for one example, such as "float32[32,32,3]"; None: the model knows.
    sample_weight: whether each example comes with a weight, as by sample_weight or class_weight of Keras' fit.

    Raises ValueError (TypeError for a wrong type) with the value, what is allowed, and the way out.
    """

    batch_size: int
    optimizer: Any = None
    loss: Any = None
    dtype_policy: str | None = None
    jit_compile: bool | Literal["auto"] = "auto"
    device: str | None = None
    budget_bytes: int | None = None
    memory_growth: bool = False
    inputs: Any = None
    sample_weight: bool = False

    def __post_init__(self) -> None:
        kept: dict[str, Any] = {"batch_size": whole_number("batch_size", self.batch_size)}
        if self.optimizer is not None:
            kept["optimizer"] = _choice("optimizer", self.optimizer, OPTIMIZERS, "a keras.optimizers.Optimizer")
        if self.loss is not None:
            kept["loss"] = _choice("loss", self.loss, LOSSES, "a function, a keras.losses.Loss")
        if self.budget_bytes is not None:
            kept["budget_bytes"] = _budget(self.budget_bytes)
        if self.inputs is not None:
            kept["inputs"] = _of_one_example(self.inputs)
        for name, value in kept.items():
            object.__setattr__(self, name, value)
        for name in ("memory_growth", "sample_weight"):
            if not isinstance(value := getattr(self, name), bool):
                raise TypeError(f"{name} is True or False, not {value!r}.")
        if not (isinstance(self.jit_compile, bool) or self.jit_compile == "auto"):
            raise ValueError(f"jit_compile={self.jit_compile!r} is not known; it is True, False or 'auto'.")
        if self.dtype_policy not in (None, *DTYPE_POLICIES):
            said = unknown_name("dtype_policy", self.dtype_policy, DTYPE_POLICIES)
            raise ValueError(f"{said} None means the network's own policy.")
        if self.device is not None:
            object.__setattr__(self, "device", _device(self.device))

    @classmethod
    def create(cls, *, budget: int | str | None = None, **options: Any) -> TrainingSetup:
        """A setup from the keywords of the public functions; ``budget`` is bytes or text such as ``"9513 MiB"``."""
        return cls(budget_bytes=None if budget is None else parse_bytes(budget), **options)

    def options(self) -> dict[str, Any]:
        """The keywords of the public functions that make this setup: what `create` takes."""
        kept = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "budget_bytes"}
        return kept | {"budget": self.budget_bytes}

    def describe(self) -> dict[str, object]:
        """The setup as plain data (text, numbers, None), for a profile's record and for JSON."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self)}


def unknown_name(what: str, value: object, allowed: Iterable[str]) -> str:
    """One sentence for a name that is not known: the value, the nearest known one, all that are allowed."""
    allowed = tuple(allowed)
    near = difflib.get_close_matches(str(value), allowed, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"{what} {value!r} is not known.{hint} Known: {', '.join(allowed)}."


def whole_number(name: str, value: Any) -> int:
    """A count from 1 on as a Python integer, numpy's integers taken too. Raises TypeError or ValueError."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} is a whole number, not {value!r}.")
    if not 1 <= (number := int(value)) <= LARGEST:
        raise ValueError(f"{name}={number} is not possible; it is a whole number from 1 to {LARGEST:,}.")
    return number


def _budget(value: Any) -> int:
    nbytes, (lowest, highest) = parse_bytes(value), _BUDGETS
    if not lowest <= nbytes <= highest:
        allowed = f"{format_bytes(lowest)} to {format_bytes(highest)}"
        raise ValueError(f"A budget of {nbytes:,} B is not possible; it is from {allowed}, such as '9513 MiB'.")
    return nbytes


def _choice(what: str, value: Any, names: tuple[str, ...], others: str) -> Any:
    """The value, a name in our spelling: Keras takes "Adam" and "BinaryCrossentropy" too. What an object or a config
    describes is checked where Keras reads it.
    """
    if what == "loss" and isinstance(value, list | tuple):  # of several outputs
        return [_choice(what, each, names, others) for each in value]
    if isinstance(value, str):
        found = next((name for name in names if name.replace("_", "") == value.replace("_", "").lower()), None)
        if found is None:
            raise ValueError(f"{unknown_name(what, value, names)} Or give {others} or its serialized config.")
        return found
    if isinstance(value, type):
        raise TypeError(f"{what}={value.__name__} is a class; give an instance of it: {value.__name__}().")
    if not (isinstance(value, Mapping) or hasattr(value, "get_config") or (what == "loss" and callable(value))):
        raise TypeError(f"{what} is a name, {others} or its serialized config, not {value!r}.")
    return value


def _device(value: Any) -> str:
    """The device in our spelling, of a card its name."""
    if value == REFERENCE or re.fullmatch(r"GPU:\d+", str(value)):
        return str(value)
    if isinstance(value, str) and (card := cards.card(value)):
        return card.name
    near = " or ".join(map(repr, cards.nearest(str(value))))
    raise ValueError(
        f"device={value!r} is not known; it is 'reference' (the CPU under the GPU's allocator), 'GPU:0' (or another "
        "number), for estimates a card of memviz.devices(), or None for this machine's GPU, else the reference device."
        + (f" Did you mean {near}?" if near else "")
    )


def _of_one_example(inputs: Any) -> Any:
    """A structure of TensorSpecs or arrays as one of texts; texts are taken as they are."""
    if isinstance(inputs, str):
        return inputs
    if isinstance(inputs, Mapping):
        return {name: _of_one_example(value) for name, value in inputs.items()}
    if isinstance(inputs, list | tuple):
        return [_of_one_example(value) for value in inputs]
    try:
        _, *sizes = inputs.shape
        text, dtype = ",".join(str(int(size)) for size in sizes), inputs.dtype
    except (AttributeError, TypeError, ValueError):
        raise ValueError(
            f"inputs={inputs!r} is not possible; give an array of a batch, or tf.TensorSpec((None, 32, 32, 3), "
            "'float32') with every size but the batch known, in the structure that the model takes."
        ) from None
    return f"{getattr(dtype, 'name', dtype)}[{text}]"


def _plain(value: object) -> object:
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return getattr(value, "__name__", type(value).__name__)  # not an instance's name: Keras counts it up, adam_14
