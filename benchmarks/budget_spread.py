"""By how much the budget that one and the same training needs differs from process to process, and what follows.

    python benchmarks/budget_spread.py [--orders 60] [--only NAME]

TensorFlow draws the order of execution per process (memviz/estimation/executor.py); so a budget that suffices here may
not suffice there. Per row of the zoo: the smallest budget of each of many orders, as the estimate searches it. A budget
below that may suffice by chance: chunks fall otherwise in it, so that what suffices is not one range without gaps.
Then, for a required budget chosen as a quantile of those: the share of trainings that would die with 1.02 times it, and
the share that would survive with 0.95 times it, over all rows; and the least that would survive, of any choice per row
by which at most 3 % die, taking the searched budgets for the only ones.
"""

from __future__ import annotations

import argparse
import os
import statistics

from memviz.setup import REFERENCE_ENVIRONMENT, TrainingSetup

os.environ.update(REFERENCE_ENVIRONMENT)  # before TensorFlow is imported

from zoo import ROWS, Row

from memviz.estimation.allocator import BfcAllocator
from memviz.estimation.estimate import smallest_budget, trace_training
from memviz.estimation.replay import of_training, peaks
from memviz.models.network import Network
from memviz.units import format_bytes

ROOM = 1 << 46  # bytes; more than any row needs


def needs_of(row: Row, orders: int) -> list[int]:
    """The smallest budget of each order, in bytes, rising."""
    setup = TrainingSetup(batch_size=row.batch_size, optimizer=row.optimizer, jit_compile=False, device="reference")
    scripts = map(of_training, trace_training(Network.of(row.network), setup, orders=orders).scripts)
    return sorted(
        smallest_budget(lines, max(dict(peaks(lines, BfcAllocator(ROOM, (ROOM,)))).values())) for lines in scripts
    )


def shares(needs: list[int], required: float) -> tuple[float, float]:
    """(of trainings that die with 1.02 x required, that survive with 0.95 x required), from 0 to 1."""
    dead = sum(need > 1.02 * required for need in needs)
    alive = sum(need <= 0.95 * required for need in needs)
    return dead / len(needs), alive / len(needs)


def best(found: list[list[int]], most_dead: float) -> tuple[float, float]:
    """The mean shares of the choice per row, made in full knowledge of its needs, with which the fewest survive."""
    outcomes = []
    # A candidate lets the training with that need live, 1.0199 and not 1.02 since the quotient is rounded.
    for weight in (2.0**power for power in range(-8, 9)):  # how bad a survivor is, in dead
        chosen = [
            min((shares(needs, need / 1.0199) for need in needs), key=lambda share: share[0] + weight * share[1])
            for needs in found
        ]
        outcomes.append(tuple(map(statistics.mean, zip(*chosen, strict=True))))
    return min((each for each in outcomes if each[0] <= most_dead), key=lambda share: share[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--orders", type=int, default=60, help="how many orders are played per row")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    arguments = parser.parse_args()
    found = []
    for row in ROWS:
        if arguments.only in row.key:
            needs = needs_of(row, arguments.orders)
            found.append(needs)
            spread = 100 * (needs[-1] / needs[0] - 1)
            print(f"{row.key:44}{format_bytes(needs[0]):>12}{format_bytes(needs[-1]):>12}{spread:+7.1f}%", flush=True)
    for percent in (50, 70, 80, 90, 95, 100):
        chosen = [shares(needs, needs[(len(needs) - 1) * percent // 100]) for needs in found]
        dead, alive = (100 * statistics.mean(column) for column in zip(*chosen, strict=True))
        print(f"required = quantile {percent:3}: {dead:.1f} % die with 1.02 x, {alive:.1f} % survive with 0.95 x")
    dead, alive = (100 * share for share in best(found, 0.03))
    print(f"the best choice per row: {dead:.1f} % die with 1.02 x, {alive:.1f} % survive with 0.95 x")


if __name__ == "__main__":
    main()
