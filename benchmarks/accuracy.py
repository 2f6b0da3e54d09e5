"""Estimates against real training on the reference device, row by row, beside the rules of thumb people use.

Every row is estimated, then really trained in a child process (five steps, jit off). Rows are kept in
benchmarks/results/accuracy.json and only missing ones are run: interrupt and go on at will. ``--fresh`` starts anew,
``--only NAME`` runs some rows. ``--budgets`` trains each row twice more, under 1.02 and 0.95 times the budget that the
estimate requires, and counts who dies and who survives. Errors are signed, in percent of what was measured.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import psutil
from baselines import RULES, baselines
from zoo import ROWS, Row

import memviz
from memviz.estimation.service import shared_service
from memviz.models.network import Network
from memviz.profile import TRAINING_PHASES as PHASES
from memviz.setup import TrainingSetup
from memviz.units import GIB, MIB, format_bytes

RESULTS = Path(__file__).parent / "results" / "accuracy.json"
BUDGET = 6 * GIB
FACTORS = MORE, LESS = "1.02", "0.95"


def measured_row(row: Row) -> dict[str, object]:
    """Estimate and measurement of one row, as plain data."""
    options = {"batch_size": row.batch_size, "optimizer": row.optimizer, "jit_compile": False}
    setup = TrainingSetup(**options, device="reference", budget_bytes=BUDGET)
    began = time.perf_counter()
    estimate = shared_service().estimate(Network.of(row.network), setup)
    seconds = time.perf_counter() - began
    trial = memviz.measure(row.network, **options, device="reference", budget=BUDGET)
    return {
        "status": trial.status,
        "error": trial.error,
        "seconds": seconds,
        "required": estimate.required_bytes,
        "estimated": {phase: estimate.phases[phase].peak_bytes for phase in PHASES},
        "ranges": estimate.peak_ranges,
        "measured": {phase: trial.phases[phase].peak_bytes for phase in trial.phases},
        "steps": [step.peak_bytes for step in trial.steps],
        "baselines": baselines(row.network, row.batch_size, row.optimizer),
    }


def budget_trials(row: Row, required: int) -> dict[str, str]:
    """How training ends with a little more, and a little less, than the estimate requires."""
    found = {}
    for factor in FACTORS:
        trial = memviz.measure(
            row.network, batch_size=row.batch_size, optimizer=row.optimizer, jit_compile=False, device="reference",
            budget=math.ceil(float(factor) * required / MIB) * MIB,
        )  # fmt: skip
        found[factor] = trial.status
    return found


def load(fresh: bool) -> dict[str, dict]:
    return json.loads(RESULTS.read_text()) if RESULTS.exists() and not fresh else {}


def error_percent(result: dict, phase: str) -> float:
    return 100 * (result["estimated"][phase] / result["measured"][phase] - 1)


def print_table(results: dict[str, dict]) -> None:
    print(f"{'':44}{'measured':>12}{'estimated':>12}{'build':>9}{'first':>9}{'steady':>9}{'range':>16}{'time':>8}")
    for row in ROWS:
        result = results.get(row.key)
        if result is None or result["status"] != "completed":
            print(f"{row.key:44}{'not measured' if result is None else result['status']:>12}")
            continue
        steady = result["measured"]["steady_step"]
        low, high = (100 * (end / steady - 1) for end in result["ranges"]["steady_step"])
        errors = "".join(f"{error_percent(result, phase):+8.2f}%" for phase in PHASES)
        mark = "*" if row.validation else " "
        print(
            f"{mark + row.key:44}{format_bytes(steady):>12}{format_bytes(result['estimated']['steady_step']):>12}"
            f"{errors}{low:+8.1f}{high:+7.1f}%{result['seconds']:7.2f}s"
        )


def print_baselines(results: dict[str, dict]) -> None:
    print(f"\nsigned error of the steady peak\n{'':44}{'memviz':>12}" + "".join(f"{rule:>30}" for rule in RULES))
    for row in ROWS:
        if (result := results.get(row.key)) and result["status"] == "completed":
            errors = [rule_error(result, rule) for rule in RULES]
            print(
                f"{row.key:44}{error_percent(result, 'steady_step'):+11.1f}%" + "".join(f"{e:+29.0f}%" for e in errors)
            )


def rule_error(result: dict, rule: str) -> float:
    return 100 * (result["baselines"][rule] / result["measured"]["steady_step"] - 1)


def print_summary(results: dict[str, dict]) -> None:
    for title, chosen in (("all rows", ROWS), ("validation rows (*)", [row for row in ROWS if row.validation])):
        done = [results[row.key] for row in chosen if results.get(row.key, {}).get("status") == "completed"]
        if not done:
            continue
        print(f"\n{title}: {len(done)} of {len(chosen)}")
        for phase in PHASES:
            errors = sorted(abs(error_percent(result, phase)) for result in done)
            ninth = errors[int(0.9 * (len(errors) - 1))]
            print(
                f"  {phase:12} absolute error: median {statistics.median(errors):.2f} %, "
                f"90th percentile {ninth:.2f} %, worst {errors[-1]:.2f} %"
            )
        right = sum(largest(r["estimated"]) == largest(r["measured"]) for r in done)
        print(f"  phase with the largest peak named rightly: {right} of {len(done)}")
        for rule in RULES:
            print(f"  {rule}: median error {statistics.median(abs(rule_error(r, rule)) for r in done):.0f} %")
        tried = [r["budgets"] for r in done if "budgets" in r]
        if tried:
            dead = sum(each[MORE] != "completed" for each in tried)
            alive = sum(each[LESS] == "completed" for each in tried)
            print(
                f"  of {len(tried)} rows, with {MORE} x required {dead} died, with {LESS} x required {alive} survived"
            )


def largest(peaks: dict[str, int]) -> str:
    return max(peaks, key=peaks.__getitem__)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fresh", action="store_true", help="forget earlier rows")
    parser.add_argument("--budgets", action="store_true", help="also train with about the required budget")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    arguments = parser.parse_args()
    results = load(arguments.fresh)
    RESULTS.parent.mkdir(exist_ok=True)
    for row in ROWS:
        known = results.get(row.key)
        if arguments.only not in row.key or (known and ("budgets" in known or not arguments.budgets)):
            continue
        if psutil.virtual_memory().available < BUDGET + 2 * GIB:
            print(f"skipped {row.key}: it may need {format_bytes(BUDGET)}, which this machine does not have free")
            continue
        try:
            results[row.key] = known or measured_row(row)
            if arguments.budgets and results[row.key]["status"] == "completed":
                results[row.key]["budgets"] = budget_trials(row, results[row.key]["required"])
        except (ValueError, MemoryError, RuntimeError) as error:
            print(f"refused: {row.key}: {error}")
            continue
        RESULTS.write_text(json.dumps(results, indent=1))
        print(f"done: {row.key}", flush=True)
    print_table(results)
    print_baselines(results)
    print_summary(results)


if __name__ == "__main__":
    main()
