"""Where a recorded step and its estimate differ, op by op, the largest difference first.

    python benchmarks/evidence.py [NETWORK] [--batch-size 8] [--optimizer adam] [--phase steady_step] [--rows 30]

NETWORK is a preset, a row of the accuracy benchmark (zoo.py), or module:function. Both sides are requests to the
allocator within the phase; what was there before it is compared as one sum. Kinds: missing (recorded, not estimated),
extra (estimated, not recorded), size, and order (the same request at another place).
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
from collections import Counter
from dataclasses import dataclass

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from zoo import ROWS

from memviz import Allocation, Category, MemoryProfile, estimate, measure, presets
from memviz.profile import OPTIMIZER


@dataclass(frozen=True)
class Difference:
    """One op that differs. nbytes: of the larger side; recorded, estimated: requested bytes, None where absent."""

    kind: str
    op: str
    layer: str
    nbytes: int
    recorded: int | None
    estimated: int | None


def differences(recorded: MemoryProfile, estimated: MemoryProfile) -> list[Difference]:
    """Every request of the phase that is not in both profiles alike, largest first."""
    real, model = requests(recorded), requests(estimated)
    matcher = difflib.SequenceMatcher(None, [*map(key, real)], [*map(key, model)], autojunk=False)
    found: list[Difference] = []
    missing: list[Allocation] = []
    extra: list[Allocation] = []
    for tag, a0, a1, b0, b1 in matcher.get_opcodes():
        if tag != "equal":
            missing += real[a0:a1]
            extra += model[b0:b1]
            continue
        for a, b in zip(real[a0:a1], model[b0:b1], strict=True):
            if a.requested_nbytes != b.requested_nbytes:
                found.append(_difference("size", a, b))
    moved = Counter((key(a), a.requested_nbytes) for a in missing) & Counter(
        (key(b), b.requested_nbytes) for b in extra
    )
    for kind, side in (("missing", missing), ("extra", extra)):
        left = Counter(moved)
        for a in side:
            request = key(a), a.requested_nbytes
            if left[request] > 0:
                left[request] -= 1
                found += [_difference("order", a, a)] if kind == "missing" else []
            else:
                found.append(_difference(kind, a if kind == "missing" else None, a if kind == "extra" else None))
    return sorted(found, key=lambda d: -d.nbytes)


def key(a: Allocation) -> str:
    """The same on both sides: an op's name in the graph, and for what is made outside of one, whose it is."""
    outside = "/" not in a.op or a.op.startswith(f"{a.layer}/") or a.category == Category.OPTIMIZER_STATE
    return f"{a.layer} {a.requested_nbytes}" if outside and a.layer != OPTIMIZER else a.op


def requests(profile: MemoryProfile) -> list[Allocation]:
    """The requests made within the phase, in order; a block that becomes a variable's storage counts once.

    What TensorFlow takes while it optimizes the graph (named after the whole function) is left out.
    """
    blocks = [a for a in profile.allocations if a.start > 0 and not a.op.startswith("__inference_")]
    blocks.sort(key=lambda a: a.start)
    handed_over = {(a.address, a.end) for a in profile.allocations if a.end is not None}
    return [a for a in blocks if (a.address, a.start) not in handed_over]


def _difference(kind: str, recorded: Allocation | None, estimated: Allocation | None) -> Difference:
    sizes = [a.requested_nbytes if a else None for a in (recorded, estimated)]
    known = recorded or estimated
    assert known is not None
    return Difference(kind, known.op, known.layer, max(size or 0 for size in sizes), *sizes)


def _network(name: str) -> object:
    if name in presets.ALL:
        return presets.ALL[name]
    if ":" in name:
        module, _, function = name.partition(":")
        return getattr(importlib.import_module(module), function)
    return next(row.network for row in ROWS if row.name == name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("network", nargs="?", default="digits")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--optimizer", default="adam")
    parser.add_argument("--phase", default="steady_step", choices=["build", "first_step", "steady_step"])
    parser.add_argument("--budget", default="4 GiB")
    parser.add_argument("--rows", type=int, default=30)
    given = parser.parse_args()
    options = {"batch_size": given.batch_size, "optimizer": given.optimizer, "jit_compile": False}
    network = _network(given.network)
    trial = measure(network, **options, device="reference", budget=given.budget, record=True)
    if trial.status != "completed":
        raise SystemExit(trial.error)
    recorded = trial.phases[given.phase].profile
    estimated = estimate(network, **options).phases[given.phase].profile
    print(f"{given.network}, batch {given.batch_size}, {given.optimizer}, {given.phase}")
    print(f"peak: recorded {recorded.peak_bytes:,} B, estimated {estimated.peak_bytes:,} B")
    before = [sum(a.nbytes for a in p.allocations if a.start == 0) for p in (recorded, estimated)]
    print(f"held before the phase: recorded {before[0]:,} B, estimated {before[1]:,} B")
    found = differences(recorded, estimated)
    print(f"{len(found):,} of {len(requests(recorded)):,} requests differ: {dict(Counter(d.kind for d in found))}")
    print(f"{'kind':8} {'recorded':>14} {'estimated':>14}  op (layer)")
    for d in found[: given.rows]:
        sides = " ".join(f"{'-' if size is None else f'{size:,}':>14}" for size in (d.recorded, d.estimated))
        print(f"{d.kind:8} {sides}  {d.op} ({d.layer})")


if __name__ == "__main__":
    main()
