"""Pieces of advice, applied: what is required after each as promised, and whether it really trains in it.

    python benchmarks/advice.py

Bars: required bytes of the applied change within 1 % of the promise; and measured within 5 %: with so much more than is
promised it trains, with so much less it runs out of memory. Exit code 1 where a bar is missed.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator

from memviz.setup import REFERENCE_ENVIRONMENT

os.environ.update(REFERENCE_ENVIRONMENT)  # before TensorFlow is imported

from bars import kept
from zoo import NORMED, dwarfing_dense, gesture_cnn

import memviz
from memviz.units import MIB, format_bytes

ASKED = (  # network, batch, share of what it requires that there is
    ("bird_audio_pooled", memviz.presets.bird_audio_pooled, 4, 0.6),
    ("gesture CNN (C22)", gesture_cnn, 32, 0.6),
    ("normed", NORMED, 64, 0.5),
    ("dwarfing Dense (C19)", dwarfing_dense, 4, 0.5),
)
PIECES = 3  # of each network at most
TOLERANCE = 0.05


def tried(change: memviz.Change) -> tuple[str, bool]:
    """A change applied, estimated and trained twice: in words, and whether it keeps the bars."""
    applied = memviz.estimate(change.network, **change.options).required_bytes
    ends = []
    for factor, rounded in ((1 + TOLERANCE, math.ceil), (1 - TOLERANCE, math.floor)):  # TensorFlow takes whole MiB
        budget = rounded(factor * change.required_bytes / MIB) * MIB
        ends.append(memviz.measure(change.network, **change.options | {"budget": budget}).status)
    told = f"{format_bytes(change.required_bytes):>12}{100 * (applied / change.required_bytes - 1):+8.2f} %"
    holds = abs(applied / change.required_bytes - 1) <= 0.01 and ends == ["completed", "out_of_memory"]
    return f"{told}  {ends[0]:14}{ends[1]:14}", holds


def pieces() -> Iterator[tuple[str, bool]]:
    for name, network, batch_size, share in ASKED:
        options = {"batch_size": batch_size, "jit_compile": False, "device": "reference"}
        required = memviz.estimate(network, **options).required_bytes
        advice = memviz.advise(network, budget=int(share * required), **options)
        for change in (advice.changes + advice.combinations)[:PIECES]:
            told, holds = tried(change)
            yield f"{(name + ': ' + change.what)[:79]:80}{told}", holds


def main() -> int:
    print(f"{'':80}{'promised':>12}{'applied':>10}  {'with 5 % more':14}{'with 5 % less':14}")
    return kept(pieces(), "pieces give what they promise, estimated and measured")


if __name__ == "__main__":
    raise SystemExit(main())
