"""The largest batch, estimated and then proved by trials: networks of the zoo under three budgets each.

    python benchmarks/largest_batch.py [--only NAME]

Bar: the estimate's answer equals the measured one, or is at most 3 % (at least one) below it, and never above. The
budgets are so many times what the row's own batch requires. Exit code 1 where the bar is missed.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator

from memviz.setup import REFERENCE_ENVIRONMENT

os.environ.update(REFERENCE_ENVIRONMENT)  # before TensorFlow is imported

from bars import kept
from zoo import ROWS, Row

import memviz
from memviz.units import MIB, format_bytes

FACTORS = (1.2, 1.7, 3.0)
TOLERANCE = 0.03
NAMES = (
    "bird_audio_pooled", "bird_audio_global_pool", "digits", "normed", "MLP", "U-Net", "3-D convolutions", "separable",
    "transposed", "MNIST MLP (C07)", "gesture CNN (C22)", "pooled pixels (C20 / 4)", "dwarfing Dense (C19)",
    "MobileNetV2", "ResNet50V2",
)  # fmt: skip


def one_search(row: Row, budget: int) -> tuple[str, bool]:
    """What was found, in words, and whether it keeps the bar."""
    options = {name: value for name, value in row.options().items() if name != "batch_size"}
    began = time.perf_counter()
    found = memviz.max_batch_size(row.network, budget=budget, measure=True, **options)
    below = found.value - found.estimated
    holds = 0 <= below <= max(1, int(TOLERANCE * found.value))
    trials = sum(probe.measured for probe in found.probes)
    told = f"{found.estimated:>8,}{found.value:>9,}{below:>+7}{len(found.probes) - trials:>8}{trials:>7}"
    return f"{told}{time.perf_counter() - began:7.0f} s", holds


def searches(only: str) -> Iterator[tuple[str, bool]]:
    first = {row.name: row for row in reversed(ROWS)}
    for row in (first[name] for name in NAMES if only in name):
        required = memviz.estimate(row.network, **row.options()).required_bytes
        for factor in FACTORS:
            budget = int(factor * required) // MIB * MIB
            told, holds = one_search(row, budget)
            yield f"{row.name + ', ' + str(row.optimizer):42}{format_bytes(budget):>11}{told}", holds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="rows whose name contains this")
    only = parser.parse_args().only
    print(f"{'':42}{'budget':>11}{'estimate':>9}{'measured':>9}{'below':>6}{'probes':>8}{'trials':>7}{'time':>8}")
    return kept(searches(only), "searches: equal, or at most 3 % (or one) below, never above")


if __name__ == "__main__":
    raise SystemExit(main())
