"""Estimates against real training on the reference device, row by row, beside the rules of thumb people use.

Every row is estimated, then really trained in a child process (five steps, jit off). TensorFlow draws the order of
execution anew in each process: where the estimated orders differ by more than 5 %, five trainings are run, and the
median of their peaks is what was measured. Rows are kept in
benchmarks/results/accuracy.json and only missing ones are run: interrupt and go on at will. ``--fresh`` starts anew,
``--only NAME`` runs some rows. ``--budgets`` trains each row twice more, under 1.02 and 0.95 times the budget that the
estimate requires, and counts who dies and who survives. ``--recorded`` records a step of each row: the requested bytes
at its peak, and the order of its allocations over 1 MB, which is the same where one of fifty estimated orders is the
recorded one. ``--xla`` has each row estimated and trained once more, compiled by XLA. Errors are signed, in percent of
what was measured.
"""

from __future__ import annotations

import argparse
import difflib
import json
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from memviz.setup import REFERENCE_ENVIRONMENT, TrainingSetup

os.environ.update(REFERENCE_ENVIRONMENT)  # before TensorFlow is imported

import psutil
from baselines import RULES, baselines
from breadth import BREADTH
from evidence import key, requests
from zoo import ROWS, Row

import memviz
from memviz.estimation.service import shared_service
from memviz.models.network import Network
from memviz.profile import TRAINING_PHASES as PHASES
from memviz.profile import MemoryProfile
from memviz.units import GIB, MIB, format_bytes

RESULTS = Path(__file__).parent / "results" / "accuracy.json"
BUDGET = 6 * GIB
WIDE, DRAWS = 1.05, 5
FACTORS = MORE, LESS = "1.02", "0.95"
ORDERS, LARGE = 50, 1_000_000
LONGEST_COMPILE = 120  # seconds
ALL_ROWS = (*ROWS, *BREADTH)


def measured_row(row: Row) -> dict[str, object]:
    """Estimate and measurement of one row, as plain data."""
    setup = TrainingSetup.create(**row.options(), budget=BUDGET)
    began = time.perf_counter()
    estimate = shared_service().estimate(Network.of(row.network), setup)
    seconds = time.perf_counter() - began
    low, high = estimate.peak_ranges["steady_step"]
    trials = [
        memviz.measure(row.network, **row.options(), budget=BUDGET) for _ in range(DRAWS if high > WIDE * low else 1)
    ]
    died = next((trial for trial in trials if trial.status != "completed"), trials[0])
    return {
        "status": died.status,
        "error": died.error,
        "seconds": seconds,
        "required": estimate.required_bytes,
        "largest": estimate.largest_phase,
        "estimated": {phase: estimate.phases[phase].peak_bytes for phase in PHASES},
        "ranges": estimate.peak_ranges,
        "measured": {
            phase: statistics.median_low(trial.phases[phase].peak_bytes for trial in trials if phase in trial.phases)
            for phase in died.phases
        },
        "drawn": [trial.phases["steady_step"].peak_bytes for trial in trials if "steady_step" in trial.phases],
        "baselines": baselines(row.network, setup),
    }


def budget_trials(row: Row, required: int) -> dict[str, str]:
    """How training ends with a little more, and a little less, than the estimate requires."""
    found = {}
    for factor in FACTORS:
        # TensorFlow takes whole MiB: the next ones that are not less than the more, nor more than the less.
        rounded = math.ceil if factor == MORE else math.floor
        budget = max(1, rounded(float(factor) * required / MIB)) * MIB
        trial = memviz.measure(row.network, **row.options(), budget=budget)
        found[factor] = trial.status
    return found


def recorded_step(row: Row, required: int) -> dict[str, object]:
    """A recorded steady step against the estimated ones: requested bytes at the peak, and the likest order."""
    trial = memviz.measure(row.network, **row.options(), budget=BUDGET, record=True)
    if trial.profile is None:
        return {"error": trial.error or trial.note}
    estimated = [*estimated_steps(row)]
    real = large_requests(trial.profile)
    matchers = [difflib.SequenceMatcher(None, real, large_requests(step), autojunk=False) for step in estimated]
    likest = max(matchers, key=difflib.SequenceMatcher.ratio)
    differences = [code for code in likest.get_opcodes() if code[0] != "equal"]
    shown = [[tag, likest.a[a0:a1][:3], likest.b[b0:b1][:3]] for tag, a0, a1, b0, b1 in differences[:5]]
    return {
        "requested": requested_at_peak(trial.profile),
        "estimated_requested": statistics.median_low(map(requested_at_peak, estimated)),
        "large": len(real),
        "alike": likest.ratio(),
        "differences": shown,
    }


def compiled_step(row: Row, required: int) -> dict[str, object]:
    """The same training compiled by XLA: the steady peak by the compiler's own plan, and measured."""
    options = row.options(jit_compile=True)
    began = time.perf_counter()
    estimate = memviz.estimate(row.network, **options)
    seconds = time.perf_counter() - began
    if seconds > LONGEST_COMPILE:
        return {"error": f"compiled in {seconds:.0f} s"}
    trial = memviz.measure(row.network, **options, budget=BUDGET)
    measured = {phase: trial.phases[phase].peak_bytes for phase in trial.phases}
    estimated = {phase: estimate.phases[phase].peak_bytes for phase in PHASES}
    return {"error": trial.error, "seconds": seconds, "estimated": estimated, "measured": measured}


def estimated_steps(row: Row) -> Iterator[MemoryProfile]:
    """The estimated steady step in each order."""
    from memviz.estimation.allocator import BfcAllocator
    from memviz.estimation.estimate import trace_training
    from memviz.estimation.replay import run

    setup = TrainingSetup.create(**row.options())
    traced = trace_training(Network.of(row.network), setup, orders=ORDERS)
    for lines in traced.scripts:
        *_, (phase, allocations) = run(lines, BfcAllocator(BUDGET, (BUDGET,)))
        yield MemoryProfile(phase, "estimated", allocations)


def large_requests(profile: MemoryProfile) -> list[str]:
    return [f"{key(a)} {a.requested_nbytes}" for a in requests(profile) if a.requested_nbytes > LARGE]


def requested_at_peak(profile: MemoryProfile) -> int:
    return sum(a.requested_nbytes for a in profile.at_peak())


def load(fresh: bool) -> dict[str, dict]:
    return json.loads(RESULTS.read_text()) if RESULTS.exists() and not fresh else {}


def error_percent(result: dict, phase: str) -> float:
    return 100 * (result["estimated"][phase] / result["measured"][phase] - 1)


def print_table(results: dict[str, dict]) -> None:
    print(f"{'':44}{'measured':>12}{'estimated':>12}{'build':>9}{'first':>9}{'steady':>9}{'range':>16}{'time':>8}")
    for row in ALL_ROWS:
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
    for row in ALL_ROWS:
        if (result := results.get(row.key)) and result["status"] == "completed":
            errors = [rule_error(result, rule) for rule in RULES]
            print(
                f"{row.key:44}{error_percent(result, 'steady_step'):+11.1f}%" + "".join(f"{e:+29.0f}%" for e in errors)
            )


def rule_error(result: dict, rule: str) -> float:
    return 100 * (result["baselines"][rule] / result["measured"]["steady_step"] - 1)


def print_summary(results: dict[str, dict]) -> None:
    for title, chosen in (("all rows", ALL_ROWS), ("validation rows (*)", [row for row in ALL_ROWS if row.validation])):
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
        right = sum(r["largest"] in largest(r["measured"]) for r in done)
        print(f"  phase with the largest peak named rightly: {right} of {len(done)}")
        for rule in RULES:
            print(f"  {rule}: median error {statistics.median(abs(rule_error(r, rule)) for r in done):.0f} %")
        recorded = [r["recorded"] for r in done if "requested" in r.get("recorded", {})]
        if recorded:
            errors = [abs(100 * (r["estimated_requested"] / r["requested"] - 1)) for r in recorded]
            same = sum(r["alike"] == 1 for r in recorded)
            print(
                f"  of {len(recorded)} recorded: requested bytes at the peak, absolute error: median "
                f"{statistics.median(errors):.2f} %, worst {max(errors):.2f} %; same order over 1 MB in {same}"
            )
        compiled = [r["xla"] for r in done if "measured" in r.get("xla", {}) and not r["xla"]["error"]]
        if compiled:
            errors = sorted(abs(error_percent(each, "steady_step")) for each in compiled)
            print(
                f"  of {len(compiled)} compiled by XLA: steady step, absolute error: median "
                f"{statistics.median(errors):.2f} %, worst {errors[-1]:.2f} %"
            )
        for least in (0, 64 * MIB):  # of a small budget a MiB is several percent
            tried = [r["budgets"] for r in done if "budgets" in r and r["required"] >= least]
            dead = sum(each[MORE] != "completed" for each in tried)
            alive = sum(each[LESS] == "completed" for each in tried)
            print(
                f"  of {len(tried)} rows that require {format_bytes(least)} or more, {dead} died with {MORE} x, "
                f"{alive} survived with {LESS} x required"
            )


def largest(peaks: dict[str, int]) -> set[str]:
    """The phases with the largest peak: where two differ by less than 0.1 %, both."""
    return {phase for phase, peak in peaks.items() if peak >= 0.999 * max(peaks.values())}


def print_orders(results: dict[str, dict]) -> None:
    print("\nrows whose allocations over 1 MB come in another order, or are others; the first differences")
    for row in ALL_ROWS:
        recorded = results.get(row.key, {}).get("recorded", {})
        if recorded.get("alike", 1) < 1:
            print(f"{row.key}: {100 * recorded['alike']:.1f} % of {recorded['large']} alike")
            for tag, real, estimated in recorded["differences"]:
                print(f"    {tag}: recorded {real}, estimated {estimated}")


def print_compiled(results: dict[str, dict]) -> None:
    print("\ncompiled by XLA: first and steady step, and the time of the estimate")
    for row in ALL_ROWS:
        found = results.get(row.key, {}).get("xla")
        if found and found.get("error"):
            print(f"{row.key:44}{found['error'][:100]}")
        elif found:
            steady = format_bytes(found["measured"]["steady_step"])
            errors = "".join(f"{error_percent(found, phase):+9.2f}%" for phase in PHASES[1:])
            print(f"{row.key:44}{steady:>12}{errors}{found['seconds']:8.1f}s")


MORE_PER_ROW = {"budgets": budget_trials, "recorded": recorded_step, "xla": compiled_step}


def _told(do: Callable[..., dict], *arguments: Any) -> dict:
    """What is found, or why it is refused."""
    try:
        return do(*arguments)
    except (ValueError, MemoryError, RuntimeError) as error:
        return {"status": "refused", "error": str(error)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fresh", action="store_true", help="forget earlier rows")
    parser.add_argument("--budgets", action="store_true", help="also train with about the required budget")
    parser.add_argument(
        "--recorded", action="store_true", help="also record a step, and compare it with the estimate's"
    )
    parser.add_argument("--xla", action="store_true", help="also estimate and train each row compiled by XLA")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    arguments = parser.parse_args()
    results = load(arguments.fresh)
    RESULTS.parent.mkdir(exist_ok=True)
    wanted = {name: do for name, do in MORE_PER_ROW.items() if getattr(arguments, name)}
    for row in ALL_ROWS:
        known = results.get(row.key, {})
        if arguments.only not in row.key or (known and not wanted.keys() - known.keys()):
            continue
        if psutil.virtual_memory().available < BUDGET + 2 * GIB:
            print(f"skipped {row.key}: it may need {format_bytes(BUDGET)}, which this machine does not have free")
            continue
        results[row.key] = known or _told(measured_row, row)
        for name, do in wanted.items():
            if name not in known and (results[row.key]["status"] == "completed" or name == "xla"):
                results[row.key][name] = _told(do, row, results[row.key].get("required", 0))
        RESULTS.write_text(json.dumps(results, indent=1))
        print(f"done: {row.key}", flush=True)
    print_table(results)
    print_baselines(results)
    print_orders(results)
    print_compiled(results)
    print_summary(results)


if __name__ == "__main__":
    main()
