"""For somebody with a GPU: estimates against real training on it, as text that can be sent to us.

    python benchmarks/gpu_check.py [--device GPU:0] [--only NAME ...]

Ten networks, each estimated in a GPU's order and trained for five steps without XLA, and what the driver sees. On a
machine without a GPU ``--device reference`` shows what it looks like.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
import sys

from zoo import ROWS, Row

import memviz
from memviz.child.machine import chosen_device, nvml
from memviz.profile import TRAINING_PHASES
from memviz.units import format_bytes

NAMES = (
    "digits", "bird_audio_pooled", "normed", "MLP", "VGG16", "ResNet50", "MobileNetV2", "EfficientNetB0", "DenseNet121",
    "U-Net",
)  # fmt: skip


def rows() -> list[Row]:
    """The first row of each network."""
    found: dict[str, Row] = {}
    for row in ROWS:
        found.setdefault(row.name, row)
    return [found[name] for name in NAMES if name in found]


def header(device: str) -> str:
    """Versions, and the card as its driver names it."""
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("tensorflow", "keras")]
    lines = [
        f"memviz {memviz.__version__}, {', '.join(versions)}, Python {platform.python_version()}, {platform.platform()}"
    ]
    with nvml() as library:
        if library is not None and device.startswith("GPU:"):
            handle = library.nvmlDeviceGetHandleByIndex(int(device.removeprefix("GPU:")))
            memory = library.nvmlDeviceGetMemoryInfo(handle)
            lines.append(
                f"{library.nvmlDeviceGetName(handle)}, {format_bytes(memory.total)}, {format_bytes(memory.used)} in "
                f"use, driver {library.nvmlSystemGetDriverVersion()}"
            )
    return "\n".join(lines)


def line(row: Row, device: str) -> str:
    """Estimate and measurement of one network, a line per phase."""
    options = row.options() | {"device": device}
    try:
        trial = memviz.measure(row.network, **options)
    except (ValueError, MemoryError) as error:
        return f"{row.key}: not measured: {error}"
    estimate = memviz.estimate(row.network, **options)
    lines = [f"{row.key}: {trial.status} in {trial.seconds:.0f} s{f'. {trial.error}' if trial.error else ''}"]
    for phase in (name for name in TRAINING_PHASES if name in trial.phases):
        measured, estimated = trial.phases[phase].peak_bytes, estimate.phases[phase].peak_bytes
        low, high = estimate.peak_ranges[phase]
        lines.append(
            f"    {phase:12} measured {measured:>14,} B  estimated {estimated:>14,} B  "
            f"{100 * (estimated / measured - 1):+7.2f} %  range {low:,} to {high:,} B"
        )
    lines.append(f"    {trial.waterfall}")
    return "\n".join(lines)


def main() -> int:
    """Print it all, or why not."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="GPU:0", help="GPU:0 (default), another one, or reference")
    parser.add_argument("--only", nargs="*", help="some networks")
    given = parser.parse_args()
    try:
        chosen_device(given.device)
    except ValueError as error:
        print(f"skipped: {error}")
        return 0
    print(header(given.device), flush=True)
    for row in rows():
        if not given.only or row.name in given.only:
            print(line(row, given.device), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
