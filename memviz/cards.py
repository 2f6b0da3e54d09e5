"""The cards people train on, as data (cards.json), and what TensorFlow can use of each.

Nominal memory is the vendor's; what CUDA sees of it is less, since the driver and error correction keep a part, and is
what TensorFlow, PyTorch or deviceQuery printed for such a card in public logs under Linux (some only as GiB with two
digits: good to 5 MiB). Compute capabilities: developer.nvidia.com/cuda-gpus and /cuda-legacy-gpus.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from memviz.units import GIB, MIB

_MAKERS = re.compile(r"nvidia|geforce|tesla|[^a-z0-9]")
# Below 2 GiB so much stays free; else by the compute capability's major number.
_RESERVED_OF_SMALL = 225 * MIB
_RESERVED = {6: 500 * MIB, 7: 1050 * MIB, 8: 1536 * MIB}
_RESERVED_OF_NEWER = 1800 * MIB


@dataclass(frozen=True)
class Card:
    """A card. nominal_gb: as its vendor counts. visible_mib: what CUDA sees. capability: compute capability as text.
    aliases: other names, as TensorFlow prints them. source: where its memory is stated.
    """

    name: str
    nominal_gb: int
    visible_mib: int
    capability: str
    aliases: tuple[str, ...]
    source: str

    @property
    def memory_bytes(self) -> int:
        """All of its memory that CUDA sees."""
        return self.visible_mib * MIB

    @property
    def usable_bytes(self) -> int:
        """What TensorFlow takes at most: all but its reserve. CUDA's context and other processes come off it."""
        return usable_bytes(self.memory_bytes, self.capability)


def usable_bytes(free_bytes: int, capability: str) -> int:
    """What TensorFlow's allocator takes of a card's free bytes where neither a limit nor growth is set.

    Source: tensorflow/core/common_runtime/gpu/gpu_device.cc, `MinSystemMemory`.
    """
    major = int(capability.partition(".")[0])
    reserved = _RESERVED.get(max(major, 6), _RESERVED_OF_NEWER) if free_bytes >= 2 * GIB else _RESERVED_OF_SMALL
    return max(0, free_bytes - reserved)


@cache
def cards() -> Mapping[str, Card]:
    """All cards by name, older ones first."""
    listed = json.loads(Path(__file__).with_suffix(".json").read_text())
    return {each["name"]: Card(**each | {"aliases": tuple(each["aliases"])}) for each in listed}


def card(name: str) -> Card | None:
    """The card of that name or alias, however it is spelled: ``"rtx 3090"``, ``"NVIDIA GeForce RTX 3090"``."""
    return _by_spelling().get(_spelled(name))


def nearest(name: str) -> list[str]:
    """Up to three names of cards that resemble a name, the likeliest first."""
    near = difflib.get_close_matches(_spelled(name), _by_spelling(), n=6, cutoff=0.4)
    return list(dict.fromkeys(_by_spelling()[spelled].name for spelled in near))[:3]


@cache
def _by_spelling() -> Mapping[str, Card]:
    return {_spelled(name): each for each in cards().values() for name in (each.name, *each.aliases)}


def _spelled(name: str) -> str:
    return _MAKERS.sub("", name.lower())
