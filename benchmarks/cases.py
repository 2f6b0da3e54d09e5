"""Public reports of who ran out of memory and who did not, beside what memviz says of the same network and card.

    python benchmarks/cases.py [--only CASE]

Every line is one training that somebody reported: it ran, or it ran out. A verdict agrees with a report of TensorFlow
1.x, whose graphs and kernels were others, where what is required lies within a factor of 1.5 of the right side of what
the card has; of a report of TensorFlow 2, where it lies on that side. Then what the reports say in order: which needs
more, and by what factor. Everything is estimated without XLA, for a GPU; nothing is trained. Exit code 1 where a report
and its verdict disagree.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from memviz.setup import REFERENCE_ENVIRONMENT

os.environ.update(REFERENCE_ENVIRONMENT)  # before TensorFlow is imported

from bars import kept
from case_networks import (
    application,
    densenet,
    flattened_pixels,
    padded_vgg16,
    ssd300,
    unet,
    wide_autoencoder,
    wide_head,
    yolo3,
)

import memviz
from memviz.units import GIB, format_bytes

OLD = 1.5  # what a report of TensorFlow 1.x is good for
SGD = {"class_name": "SGD", "config": {"momentum": 0.9}}
DENSENET_40 = partial(densenet, 40, 12)
DENSENET_100 = partial(densenet, 100, 12)


@dataclass(frozen=True)
class Report:
    """One training that was reported. has: a card by name, or bytes. phase: where it ended, if not in training."""

    case: str
    what: str
    network: Callable[[], Any]
    batch_size: int
    has: str | int
    ran: bool
    optimizer: Any = "adam"
    factor: float = OLD
    phase: str = ""

    def line(self) -> tuple[str, bool]:
        """The report beside the verdict, and whether they agree."""
        where = {"device": self.has} if isinstance(self.has, str) else {"device": "GPU:0", "budget": self.has}
        fit = memviz.fits(
            self.network, batch_size=self.batch_size, optimizer=self.optimizer, jit_compile=False, **where
        )
        required = fit.required_bytes
        if self.phase:
            required = estimated(self.network, self.batch_size, self.optimizer).phases[self.phase].peak_bytes
        share = required / fit.budget_bytes
        agree = share <= self.factor if self.ran else share >= 1 / self.factor
        verdict = fit.verdict if not self.phase else ("no" if share > 1 else "yes")
        has = self.has if isinstance(self.has, str) else format_bytes(self.has)
        return (
            f"{self.case:5}{self.what:34}{self.batch_size:>6} {has:16}{format_bytes(fit.budget_bytes):>11}"
            f"{format_bytes(required):>11}{100 * share:>6.0f} %  {verdict:7}{'ran' if self.ran else 'ran out':9}"
        ), agree


def pair(case: str, what: str, network: Any, has: str | int, fails: int, works: int, **more: Any) -> list[Report]:
    """The batch that ran out, and the one that ran."""
    return [Report(case, what, network, size, has, ran, **more) for size, ran in ((fails, False), (works, True))]


REPORTS = [
    Report("C02", "VGG16, padded explicitly", padded_vgg16, 16, 4 * GIB, False, SGD),
    Report("C02", "VGG16, padded explicitly", partial(padded_vgg16, 2), 64, int(3.55 * GIB), False, SGD),
    Report("C04", "U-Net", unet, 1, int(3.2 * GIB), True, factor=1),
    Report("C04", "U-Net, evaluated by 32", unet, 1, int(3.2 * GIB), False, factor=1, phase="evaluate"),
    Report("C08", "SSD300", ssd300, 32, 7_510_566_502, False, SGD, 1),
    *pair("C10", "YOLOv3, all trained", yolo3, "GTX 1080 Ti", 32, 10),
    Report("C10", "YOLOv3, all trained", yolo3, 4, "GTX 1080 Ti", True),
    Report("C10", "YOLOv3, all trained", yolo3, 16, "GTX 1070 Ti", True),
    Report("C10", "YOLOv3, all trained", yolo3, 32, "V100 32GB", True),
    Report("C10", "YOLOv3, body frozen", partial(yolo3, frozen=True), 128, "V100 32GB", True),
    *pair("C12", "InceptionResNetV2", application("InceptionResNetV2", 299, 5), "GTX 1080", 32, 20, optimizer="sgd"),
    Report("C12", "InceptionResNetV2", application("InceptionResNetV2", 299, 5), 32, "GTX 1050 Ti", False, "sgd"),
    *pair("C12", "InceptionV3", application("InceptionV3", 299), 12 * GIB, 128, 32, optimizer="rmsprop"),
    *pair("C13", "EfficientNetB4, 380", application("EfficientNetB4", 380), "RTX 2080 Ti", 16, 8),
    *pair("C13", "InceptionV3, 299", application("InceptionV3", 299), "RTX 2080 Ti", 128, 64),
    Report("C15", "wide autoencoder, Adam", wide_autoencoder, 32, 10 * GIB, False),
    Report("C23", "Dense(4096) head", wide_head, 32, "RTX 2070 SUPER", False, factor=1),
    Report("C25", "Flatten into Dense(64)", flattened_pixels, 1, int(2.5e9), False, factor=1),
    *pair("C53", "DenseNet-100-12", DENSENET_100, "GTX 1070", 64, 8, optimizer=SGD),
    *pair("C53", "DenseNet-40-12", DENSENET_40, 8 * GIB, 64, 32, optimizer=SGD),
    *pair("C53", "DenseNet-40-12", DENSENET_40, 4 * GIB, 64, 16, optimizer=SGD),
]


def estimated(network: Any, batch_size: int, optimizer: Any = "adam") -> memviz.Estimate:
    return memviz.estimate(network, batch_size=batch_size, optimizer=optimizer, jit_compile=False, device="GPU:0")


def required(network: Any, batch_size: int, optimizer: Any = "adam") -> int:
    return estimated(network, batch_size, optimizer).required_bytes


def frozen_body() -> tuple[str, bool]:
    frozen, trained = required(partial(yolo3, frozen=True), 8), required(yolo3, 8)
    return f"a frozen body needs less: {format_bytes(frozen)} of {format_bytes(trained)}", frozen < 0.5 * trained


def fewer_parameters() -> tuple[str, bool]:
    where = {"jit_compile": False, "device": "RTX 2080 Ti"}
    b4, v3 = (
        memviz.max_batch_size(application(name, side), **where).batch_size
        for name, side in (("EfficientNetB4", 380), ("InceptionV3", 299))
    )
    return f"largest batch of InceptionV3 {v3}, of EfficientNetB4 {b4}; reported 64 and 8", 8 / OLD < v3 / b4 < 8 * OLD


def slots() -> tuple[str, bool]:
    adam, sgd = required(wide_autoencoder, 1), required(wide_autoencoder, 1, "sgd")
    holds = adam > 10e9 and 5e9 <= sgd < OLD * 5e9
    return f"over 10 GB with Adam ({format_bytes(adam, 'decimal')}), 5 with SGD ({format_bytes(sgd, 'decimal')})", holds


def smaller_batch() -> tuple[str, bool]:
    one, many = required(flattened_pixels, 1), required(flattened_pixels, 8)
    return f"a smaller batch hardly helps: {format_bytes(one)} at 1, {format_bytes(many)} at 8", many < 1.25 * one


def deeper() -> tuple[str, bool]:
    large, small = required(DENSENET_100, 16, SGD), required(DENSENET_40, 16, SGD)
    return f"the deeper one needs more: {format_bytes(large)}, {format_bytes(small)}", large > 2 * small


# What the reports say in order.
ORDERS = {"C10": frozen_body, "C13": fewer_parameters, "C15": slots, "C25": smaller_batch, "C53": deeper}


def lines(only: str) -> Iterator[tuple[str, bool]]:
    yield from (report.line() for report in REPORTS if only in report.case)
    for case, order in ORDERS.items():
        if only in case:
            text, holds = order()
            yield f"{case} {text}", holds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="the case of this number")
    only = parser.parse_args().only
    print(f"{'case':5}{'network':34}{'batch':>6} {'card':16}{'usable':>11}{'required':>11}{'':10}memviz reported")
    return kept(lines(only), "agree", "DISAGREES")


if __name__ == "__main__":
    raise SystemExit(main())
