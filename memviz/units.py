"""Bytes to text and back, and the size of a dtype. The only file that knows 1024.

Inside memviz every size is an integer number of bytes; text appears only at the edge.
KiB, MiB, GiB are powers of two; kB, MB, GB are powers of ten. One label, one size.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from fractions import Fraction
from typing import Literal

UnitSystem = Literal["binary", "decimal"]

KIB = 1024
MIB = 1024**2
GIB = 1024**3
TIB = 1024**4

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB")
_DECIMAL = ("B", "kB", "MB", "GB", "TB")
_FACTORS = {name.lower(): 1024**power for power, name in enumerate(_BINARY)} | {
    name.lower(): 1000**power for power, name in enumerate(_DECIMAL)
}
# A comma separates thousands only: "9,29 GiB", the decimal comma of many languages, must not pass for 929 GiB.
_SIZE = re.compile(r"\s*([0-9]{1,3}(?:[,_][0-9]{3})+(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]+)\s*")

_DTYPE_BYTES = {
    "bool": 1, "int8": 1, "uint8": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "int16": 2, "uint16": 2, "float16": 2, "bfloat16": 2,
    "int32": 4, "uint32": 4, "float32": 4,
    "int64": 8, "uint64": 8, "float64": 8, "complex64": 8, "complex128": 16,
}  # fmt: skip


def parse_bytes(value: int | str) -> int:
    """Bytes from an integer (taken as bytes) or from text such as ``"9513 MiB"`` or ``"11 GB"``.

    Raises ValueError for text that is not a positive number with a known unit, TypeError for other types.
    """
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError(f"A size is a whole number of bytes or text such as '9513 MiB', not {value!r}.")
    if isinstance(value, int):
        return _positive(value, value)
    match = _SIZE.fullmatch(value)
    unit = match.group(2).lower() if match else ""
    if match is None or unit not in _FACTORS:
        units = ", ".join(dict.fromkeys(_BINARY + _DECIMAL))
        raise ValueError(f"{value!r} is not a size: write a number and a unit ({units}), for example '9513 MiB'.")
    number = Fraction(match.group(1).replace(",", "").replace("_", ""))
    return _positive(round(number * _FACTORS[unit]), value)


def _positive(nbytes: int, original: object) -> int:
    if nbytes <= 0:
        raise ValueError(f"A size must be at least 1 byte, not {original!r}.")
    return nbytes


def format_bytes(nbytes: float, system: UnitSystem = "binary", digits: int = 2) -> str:
    """Text for a number of bytes: ``2.87 GiB`` (binary) or ``3.08 GB`` (decimal); whole bytes below 1 KiB (1 kB).

    Negative values keep their sign, so that a difference can be shown.
    """
    size: float = abs(nbytes)
    for _ in range(2):
        # 1023.999 MiB must read 1.00 GiB, not 1,024.00 MiB: round first, then look for the unit again.
        factor, label = unit_for(size, system)
        places = digits if factor > 1 else 0
        size = round(size / factor, places) * factor
    sign = "-" if nbytes < 0 < size else ""
    return f"{sign}{size / factor:,.{places}f} {label}"


def unit_for(nbytes: float, system: UnitSystem = "binary") -> tuple[int, str]:
    """The factor and label of the largest unit that is not larger than ``nbytes``: ``(1073741824, "GiB")``."""
    base, names = (1024, _BINARY) if system == "binary" else (1000, _DECIMAL)
    power = 0
    while power + 1 < len(names) and nbytes >= base ** (power + 1):
        power += 1
    return base**power, names[power]


def shape_text(shape: Iterable[int]) -> str:
    """A shape for people: ``6,019,376 x 128``; nothing for a scalar."""
    return " x ".join(f"{n:,}" for n in shape)


def dtype_bytes(dtype: str) -> int:
    """Bytes of one element of a dtype given by name, such as ``"float32"`` or ``"bfloat16"``.

    Raises ValueError for a name that has no fixed size here (string, variant, resource).
    """
    try:
        return _DTYPE_BYTES[dtype]
    except KeyError:
        raise ValueError(f"dtype {dtype!r} has no known size; known are {', '.join(_DTYPE_BYTES)}.") from None


def tensor_bytes(shape: tuple[int, ...], dtype: str) -> int:
    """Bytes of a dense tensor: the product of ``shape`` (in elements; 1 for a scalar) times the dtype's size."""
    return math.prod(shape) * dtype_bytes(dtype)
