"""The recorder's bars: peaks, attribution, what recording costs, dying steps, and how quick and small the views are.

    python benchmarks/recording.py [NAME ...]

Every network is trained on the reference device, jit off. ``cost`` is the recorded steps' time over that of the later,
unrecorded ones of the same trial (bar: 1.5). Peak error bar: 0.1 %; attributed bytes at the peak: 99.5 %; no
allocation over 1 MB without a layer. What needs more memory than there is free is skipped, and said so.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.append(str(Path(__file__).parents[1] / "tests" / "measurement"))

import keras
import recorded

from memviz import MemoryProfile, Trial, interchange, measure, presets
from memviz.measurement.trial import RECORDED_STEP, HostMemoryError
from memviz.profile import UNATTRIBUTED
from memviz.views import figures
from memviz.views.page import save_html

STEPS = 12


def large_embedding() -> keras.Model:
    return keras.Sequential([
        keras.Input((64,), dtype="int32"), keras.layers.Embedding(400_000, 128), keras.layers.GlobalAveragePooling1D(),
        keras.layers.Dense(10, "softmax"),
    ])  # fmt: skip


NETWORKS = {name: (network, 64) for name, network in recorded.ALL.items()} | {
    "large_embedding": (large_embedding, 64),
    "VGG16": (lambda: keras.applications.VGG16(weights=None), 4),
    "ResNet50": (lambda: keras.applications.ResNet50(weights=None), 8),
    "MobileNetV2": (lambda: keras.applications.MobileNetV2(weights=None), 8),
}


def row(name: str) -> bool:
    """Record one network and print its bars; whether all of them hold."""
    network, batch_size = NETWORKS[name]
    options = {"batch_size": batch_size, "jit_compile": False, "device": "reference", "budget": "4 GiB"}
    trial = measure(network, **options, steps=STEPS, record=True)
    if trial.status != "completed":
        print(f"{name:16} {trial.status}: {trial.error}")
        return False
    profiles = [phase.profile for phase in trial.phases.values() if phase.profile is not None]
    errors = [abs(p.peak_bytes / p.allocator_peak_bytes - 1) for p in profiles if p.allocator_peak_bytes]
    shares = [1 - sum(a.nbytes for a in p.at_peak() if a.layer == UNATTRIBUTED) / p.peak_bytes for p in profiles]
    large = [a for p in profiles for a in p.allocations if a.nbytes > 1e6]
    lost = [a for a in large if a.layer == UNATTRIBUTED]
    sums = all(p.by_layer().to_numpy().sum() == p.by_category().sum() == p.peak_bytes for p in profiles)
    cost = recording_cost(trial)
    print(
        f"{name:16} peak {profiles[-1].peak_bytes / 1e6:9.2f} MB  error {100 * max(errors):.4f} %  sums exact: {sums}  "
        f"attributed {100 * min(shares):.3f} %  over 1 MB: {len(large) - len(lost)} of {len(large)}  cost {cost:.2f}  "
        f"blocks {[len(p.allocations) for p in profiles]}"
    )
    return max(errors) <= 0.001 and min(shares) >= 0.995 and not lost and sums and cost <= 1.5


def recording_cost(trial: Trial) -> float:
    """Seconds of the two recorded steps that follow the warm-up over those of later ones of the same trial: the quicker
    of two each, since other programs only make a step slower, and of more the quickest is quicker; the median of the
    later pairs.
    """
    seconds = [step.seconds for step in trial.steps]
    later = seconds[RECORDED_STEP:]
    return min(seconds[2:RECORDED_STEP]) / statistics.median(map(min, zip(later[::2], later[1::2], strict=True)))


def dying(growth: bool) -> bool:
    """bird_audio under the founding question's budget; what was alive against the allocator's own sum."""
    name = f"bird_audio, 9,513 MiB, {'growth' if growth else 'one region'}"
    options = {"batch_size": 1, "budget": "9513 MiB", "memory_growth": growth, "jit_compile": False}
    try:
        trial = measure(presets.bird_audio, **options, device="reference", record=True)
    except HostMemoryError as error:
        print(f"{name}: skipped. {error}")
        return True
    failure, alive = trial.failure, trial.at_failure
    if failure is None or alive is None or failure.limit_bytes is None or failure.free_bytes is None:
        print(f"{name}: {trial.status}: {trial.error}")
        return False
    in_use = failure.limit_bytes - failure.free_bytes  # by the allocator's own chunks
    error = abs(alive.peak_bytes / in_use - 1)
    print(f"{name}: alive {alive.peak_bytes:,} B, in use {in_use:,} B, error {100 * error:.4f} %\n  {trial.error}")
    print(alive.by_layer().loc[lambda table: table.sum(axis=1) > 1e6].T.loc[lambda t: t.sum(axis=1) > 1e6].to_string())
    return error <= 0.01


def views() -> bool:
    """A profile of 50,000 events, loaded and drawn, and its page."""
    first = measure(recorded.residual, batch_size=8, device="reference", budget="1 GiB", record=True)
    step = first.phases["first_step"].profile
    assert step is not None
    profile = repeated(step, 25_000)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "step.json"
        interchange.save(profile, path)
        figures.timeline(step), figures.address_map(step)  # imports
        began = time.perf_counter()
        loaded = interchange.load(path)
        drawn = [figures.timeline(loaded), figures.timeline(loaded, by="layer"), figures.address_map(loaded)]
        seconds = time.perf_counter() - began
        save_html(loaded, Path(folder) / "step.html")
        size = (Path(folder) / "step.html").stat().st_size
    print(
        f"{2 * len(profile.allocations):,} events: loaded and {len(drawn)} figures in {seconds:.2f} s; page {size:,} B"
    )
    return seconds < 2 and size < 6_000_000


def repeated(profile: MemoryProfile, count: int) -> MemoryProfile:
    """The phase's passing blocks again and again, one after the other, until there are so many."""
    passing = [a for a in profile.allocations if a.end is not None]
    length = max(a.end or 0 for a in passing)
    blocks = [
        replace(a, start=a.start + turn * length, end=(a.end or 0) + turn * length)
        for turn in range(-(-count // len(passing)))
        for a in passing
    ]
    return replace(profile, allocations=tuple(blocks[:count]))


def main() -> None:
    names = sys.argv[1:] or list(NETWORKS)
    held = {name: row(name) for name in names}
    if not sys.argv[1:]:
        held |= {"views": views(), "one region": dying(False), "growth": dying(True)}
    missed = [name for name, good in held.items() if not good]
    print("All bars hold." if not missed else f"Missed: {', '.join(missed)}")
    raise SystemExit(bool(missed))


if __name__ == "__main__":
    main()
