"""How long estimates take, in a script and in the panel's warm child, and what an op costs in larger and larger graphs.

    python benchmarks/estimate_time.py [--layers 10 50 250 1000]

Bars: bird_audio, traced anew, in a script under 0.4 s, in the warm child under 0.15 s; ResNet50 (SGD, and Adam) under
5 s at first and under 1 s with another batch size or budget; the time per op up to 100,000 ops constant within a factor
of 2. Another batch size is one between two that were asked for: the second one takes a trace as the first did. Exit
code 1 where a bar is missed. Times depend on the machine and its Python (an unoptimized build is a fifth slower).
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras

import memviz
from memviz.estimation.service import shared_service
from memviz.models.convnet import ConvNet
from memviz.models.network import Network
from memviz.setup import TrainingSetup


def seconds(action: Callable[[], Any]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def setup(batch_size: int = 1, budget_bytes: int | None = None, optimizer: str = "adam") -> TrainingSetup:
    return TrainingSetup(
        batch_size=batch_size, optimizer=optimizer, jit_compile=False, device="reference", budget_bytes=budget_bytes
    )


def bird_audios() -> list[ConvNet]:
    """Each one a little narrower, so that none is known already."""
    preset = memviz.presets.bird_audio
    return [replace(preset, input_shape=(1491, width, 1)) for width in range(257, 246, -1)]


def resnet() -> keras.Model:
    return keras.applications.ResNet50(weights=None)


def chain(layers: int) -> Callable[[], keras.Model]:
    def build() -> keras.Model:
        sys.setrecursionlimit(20 * layers + 1000)  # Keras walks through a model by recursion
        return keras.Sequential([keras.Input((8,)), *(keras.layers.Dense(8, "relu") for _ in range(layers))])

    return build


def in_a_script() -> float:
    """The median; the first one loads what is loaded once."""
    times = [
        seconds(lambda: memviz.estimate(network, batch_size=1, jit_compile=False))  # noqa: B023
        for network in bird_audios()
    ]
    return statistics.median(times[1:])


def in_the_child(network: Any, given: TrainingSetup) -> float:
    return seconds(lambda: shared_service().estimate(Network.of(network), given))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    # A Dense layer and its update by Adam are about 100 ops: 1,000 layers are 100,000.
    parser.add_argument("--layers", type=int, nargs="*", default=[10, 50, 250, 1000], help="lengths of the chain")
    layers = parser.parse_args().layers
    missed = []

    def report(name: str, value: float, bar: float) -> None:
        print(f"{name} seconds={value:.3f} bar={bar}", flush=True)
        missed.extend([name] if value > bar else [])

    report("bird_audio_in_a_script", in_a_script(), 0.4)
    shared_service().close()
    bird = [in_the_child(network, setup()) for network in bird_audios()]
    report("bird_audio_in_the_child", statistics.median(bird[1:]), 0.15)
    known = memviz.presets.bird_audio
    batches = [in_the_child(known, setup(batch)) for batch in (4, 12, *range(5, 12))]
    report("bird_audio_other_batch", statistics.median(batches[2:]), 0.15)
    budgets = [in_the_child(known, setup(11, gib << 30)) for gib in range(8, 20)]
    report("bird_audio_other_budget", statistics.median(budgets), 0.15)
    for optimizer in ("sgd", "adam"):
        report(f"resnet50_{optimizer}_first", in_the_child(resnet, setup(8, optimizer=optimizer)), 5)
        report(f"resnet50_{optimizer}_other_budget", in_the_child(resnet, setup(8, 4 << 30, optimizer)), 1)
        in_the_child(resnet, setup(12, optimizer=optimizer))
        report(f"resnet50_{optimizer}_other_batch", in_the_child(resnet, setup(10, optimizer=optimizer)), 1)
    shared_service().close()
    costs = []
    for count in layers:
        costs.append(seconds(lambda: memviz.estimate(chain(count), batch_size=4, jit_compile=False)) / count)  # noqa: B023
        print(f"dense_layers={count} ms_per_layer={1e3 * costs[-1]:.1f}", flush=True)
    ratio = max(costs[1:]) / min(costs[1:])
    print(f"cost_per_op largest/smallest={ratio:.2f} bar=2")
    missed += ["cost_per_op"] if ratio > 2 else []
    print(f"missed: {', '.join(missed)}" if missed else "every bar was met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
