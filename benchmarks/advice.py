"""Pieces of advice, applied: what is required after each as promised, and the peak as really trained.

    python benchmarks/advice.py

Bars: required bytes of the applied change within 1 % of the promise; with 2 % more than the promised bytes it trains,
and its peak is within 5 % of the estimated one. Exit code 1 where a bar is missed.
"""

from __future__ import annotations

import math
import os

from memviz.setup import REFERENCE_ENVIRONMENT

os.environ.update(REFERENCE_ENVIRONMENT)  # before TensorFlow is imported

from zoo import NORMED, dwarfing_dense, gesture_cnn

import memviz
from memviz.estimation.budget import MORE
from memviz.units import MIB, format_bytes

ASKED = (  # network, batch, share of what it requires that there is
    ("bird_audio_pooled", memviz.presets.bird_audio_pooled, 4, 0.6),
    ("gesture CNN (C22)", gesture_cnn, 32, 0.6),
    ("normed", NORMED, 64, 0.5),
    ("dwarfing Dense (C19)", dwarfing_dense, 4, 0.5),
)
PIECES = 5  # of each network at most


def tried(change: memviz.Change) -> tuple[str, bool]:
    """A change applied, estimated and trained: in words, and whether it keeps the bars."""
    applied = memviz.estimate(change.network, **change.options)
    promised = abs(applied.required_bytes / change.required_bytes - 1) <= 0.01
    within = change.options | {"budget": math.ceil(MORE * change.required_bytes / MIB) * MIB}
    estimate, trial = memviz.estimate(change.network, **within), memviz.measure(change.network, **within)
    told = f"{format_bytes(change.required_bytes):>12}{format_bytes(estimate.peak_bytes):>12}"
    if trial.status != "completed":
        return f"{told}  {trial.status}: {trial.error}", False
    error = estimate.peak_bytes / trial.peak_bytes - 1
    return f"{told}{format_bytes(trial.peak_bytes):>12}{100 * error:+8.2f} %", promised and abs(error) <= 0.05


def main() -> int:
    count = missed = 0
    print(f"{'':80}{'promised':>12}{'peak':>12}{'measured':>12}{'error':>10}")
    for name, network, batch_size, share in ASKED:
        options = {"batch_size": batch_size, "jit_compile": False, "device": "reference"}
        required = memviz.estimate(network, **options).required_bytes
        advice = memviz.advise(network, budget=int(share * required), **options)
        for change in (advice.changes + advice.combinations)[:PIECES]:
            told, kept = tried(change)
            print(f"{(name + ': ' + change.what)[:79]:80}{told}{'' if kept else '  MISSED'}", flush=True)
            count, missed = count + 1, missed + (not kept)
    print(f"{count - missed} of {count} pieces give what they promise, estimated and measured")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
