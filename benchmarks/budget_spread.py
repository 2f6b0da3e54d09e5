"""By how much the budget that one and the same training needs differs from process to process, and what follows.

    python benchmarks/budget_spread.py [--orders 30] [--only NAME]

TensorFlow draws the order of execution per process (memviz/estimation/executor.py); so a budget that suffices here may
not suffice there, and one that is larger may fail by fragmentation where a smaller one suffices. Per row of the zoo:
the share of many orders that complete within each of a fine series of budgets, by the modelled allocator. From it the
share of trainings that would die with 1.02 times a required budget, and that would survive with 0.95 times it: for the
estimate's own required bytes; for the best choice per row, made in full knowledge of those orders; and for the choice
made from one half of the orders and judged by the other half, which is what an estimate could know.
"""

from __future__ import annotations

import argparse
import os
import statistics
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from memviz.setup import REFERENCE_ENVIRONMENT, TrainingSetup

os.environ.update(REFERENCE_ENVIRONMENT)  # before TensorFlow is imported

from breadth import BREADTH
from zoo import ROWS, Row

from memviz.estimation.budget import LESS, MORE, ROOMY, one_region, reach, requests
from memviz.estimation.estimate import trace_training
from memviz.estimation.replay import of_training, peaks
from memviz.models.network import Network
from memviz.units import format_bytes

LOWEST = 0.9  # of the lowest peak where there is all the room: where room is short, fewer rests are left in chunks
STEP = 0.005  # of the lowest peak: how fine the series is
ENOUGH = 8  # so many budgets in a row in which every order completes end the series
WEIGHTS = (1, 1.5, 2, 2.5, 3, 4, 6, 10, 100)  # how bad a death is, in needless refusals


@dataclass(frozen=True)
class Curve:
    """budgets: rising, in bytes. completed: per budget, which of the orders complete within it."""

    required: int
    budgets: list[int]
    completed: list[list[bool]]

    def shares(self, required: float, orders: Iterable[int]) -> tuple[float, float]:
        """(of orders that die with 1.02 x required, that survive with 0.95 x required), from 0 to 1."""
        orders = [*orders]
        return 1 - self._alive(MORE * required, orders), self._alive(LESS * required, orders)

    def _alive(self, budget: float, orders: Sequence[int]) -> float:
        place = bisect_right(self.budgets, budget + 1) - 1
        return statistics.mean(self.completed[place][order] for order in orders) if place >= 0 else 0.0

    def best(self, weight: float, orders: Sequence[int]) -> float:
        """The required budget with which deaths (times ``weight``) and survivors are fewest among some orders."""

        def cost(required: float) -> float:
            dead, alive = self.shares(required, orders)
            return round(dead * weight + alive, 9)

        costs = {budget / MORE: cost(budget / MORE) for budget in self.budgets}
        alike = [required for required, each in costs.items() if each == min(costs.values())]
        return alike[len(alike) // 2]


def curve_of(row: Row, orders: int) -> Curve:
    setup = TrainingSetup.create(**row.options())
    network = Network.of(row.network)
    required = trace_training(network, setup).required
    scripts = [*map(of_training, trace_training(network, setup, orders=orders).scripts)]
    lowest = min(max(dict(peaks(lines, one_region(ROOMY))).values()) for lines in scripts)
    curve, told = Curve(required, [], []), [*map(requests, scripts)]
    while not (len(curve.completed) >= ENOUGH and all(map(all, curve.completed[-ENOUGH:]))):
        budget = int(lowest * (LOWEST + STEP * len(curve.budgets)))
        curve.budgets.append(budget)
        curve.completed.append([reach(order, budget) is not None for order in told])
    return curve


def print_means(title: str, outcomes: Iterable[tuple[float, float]]) -> None:
    dead, alive = (100 * statistics.mean(column) for column in zip(*outcomes, strict=True))
    print(f"{title}: {dead:.1f} % die with 1.02 x, {alive:.1f} % survive with 0.95 x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--orders", type=int, default=30, help="how many orders are played per row")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    arguments = parser.parse_args()
    everyone, curves = range(arguments.orders), []
    for row in (*ROWS, *BREADTH):
        if arguments.only in row.key:
            curve = curve_of(row, arguments.orders)
            curves.append(curve)
            dead, alive = curve.shares(curve.required, everyone)
            first, all_of_them = curve.budgets[0], curve.budgets[-ENOUGH]
            print(
                f"{row.key:44}lowest peak {format_bytes(first):>11}, every order from {all_of_them / first - 1:+6.1%}, "
                f"required {curve.required / first - 1:+6.1%}: {dead:4.0%} die, {alive:4.0%} survive",
                flush=True,
            )
    print_means("required as estimated", (curve.shares(curve.required, everyone) for curve in curves))
    halves = everyone[::2], everyone[1::2]
    for weight in WEIGHTS:
        print(f"a death weighs {weight} needless refusals")
        print_means("  chosen knowing all", (c.shares(c.best(weight, everyone), everyone) for c in curves))
        judged = [
            c.shares(c.best(weight, known), others)
            for c in curves
            for known, others in (halves, halves[::-1])
        ]  # fmt: skip
        print_means("  chosen from half of the orders, judged by the others", judged)


if __name__ == "__main__":
    main()
