"""What would help: changes of the network and of how it is trained, each with what training requires after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from memviz.advice.devices import capacity
from memviz.advice.fits import Fit, fit_of
from memviz.cards import card
from memviz.models.convnet import ConvNet
from memviz.models.network import Network
from memviz.setup import REFERENCE, TrainingSetup
from memviz.units import UnitSystem, format_bytes

if TYPE_CHECKING:
    import pandas as pd

_WORTH = 0.01  # a share of what is required; a change that saves less is no advice
_ORDER = {"yes": 0, "close": 1, "no": 2}
_OTHER_NETWORK = "Another network, to be trained anew"


@dataclass(frozen=True)
class Change:
    """One change, or several together, and what training requires after it.

    what, cost: in words. kinds: what is changed, such as "head" or "optimizer". network, options: what
    `memviz.estimate`, `memviz.measure` and `memviz.fits` take: ``memviz.estimate(change.network, **change.options)``.
    saved_bytes: of what was required before.
    """

    what: str
    cost: str
    kinds: tuple[str, ...]
    network: Any = field(repr=False)
    options: Mapping[str, Any] = field(repr=False)
    fit: Fit
    saved_bytes: int

    @property
    def required_bytes(self) -> int:
        """The budget that training requires after the change, as `Estimate.required_bytes`."""
        return self.fit.required_bytes

    def __str__(self) -> str:
        return self.text()

    def text(self, units: UnitSystem = "binary") -> str:
        """What is changed, what is required after it, whether that fits, and the cost."""
        fits = {"yes": "fits", "close": "is close", "no": "does not fit"}[self.fit.verdict]
        return f"{self.what}: {format_bytes(self.required_bytes, units)}, {fits}. {self.cost}."


@dataclass(frozen=True)
class Advice:
    """What would help. now: as it is. changes: single ones, those that fit first, then by what is required after.
    combinations: where no single one fits: of changes that leave the network as it is, and of all.
    """

    now: Fit
    changes: tuple[Change, ...]
    combinations: tuple[Change, ...] = ()

    def table(self) -> pd.DataFrame:
        """A row per change and combination: ``required`` and ``saved`` bytes, ``verdict``, ``cost``."""
        import pandas as pd

        rows = [
            (c.what, c.required_bytes, c.saved_bytes, c.fit.verdict, c.cost) for c in self.changes + self.combinations
        ]
        return pd.DataFrame(rows, columns=["change", "required", "saved", "verdict", "cost"]).set_index("change")

    def __str__(self) -> str:
        lines = [str(self.now), *(f"- {change}" for change in self.changes + self.combinations)]
        return "\n".join(lines if len(lines) > 1 else [*lines, "No change that memviz knows saves 1 % or more."])


@dataclass(frozen=True)
class _Proposal:
    """A change not estimated yet: from a network and a setup to others; None where there is nothing to change."""

    kind: str
    what: str
    cost: str
    network: Callable[[Network], Network | None] = lambda network: network
    setup: Callable[[TrainingSetup], TrainingSetup] = lambda setup: setup

    @property
    def keeps_network(self) -> bool:
        return not self.cost.startswith(_OTHER_NETWORK)


def advise(
    network: Any,
    *,
    batch_size: int,
    device: str | None = None,
    budget: int | str | None = None,
    on_change: Callable[[Change], None] | None = None,
    **options: Any,
) -> Advice:
    """What would make training ``network`` fit, or need less: changes with `Estimate.required_bytes` after each.

    Every change is itself estimated; those that save less than 1 % are left out, and a smaller batch too where even a
    batch of one would not fit. The keywords are those of `memviz.fits`. XLA is proposed for the reference device only:
    what it would do on a card is not known here. A batch is made smaller by gradient accumulation, which keeps the size
    of an update.
    on_change is called with each `Change` as it is known; an exception that it raises, or Ctrl-C, ends the work.

    Raises ValueError or TypeError as `memviz.estimate` does.
    """
    device, budget_bytes = capacity(device, budget)
    setup = TrainingSetup.create(batch_size=batch_size, device=device, budget=budget_bytes, **options)
    return _Adviser(Network.of(network), setup, on_change).advice()


class _Adviser:
    def __init__(self, network: Network, setup: TrainingSetup, on_change: Callable[[Change], None] | None) -> None:
        self._network, self._setup, self._on_change = network, setup, on_change
        self._now = fit_of(network, setup)
        if setup.optimizer is None:  # the one it was compiled with
            own = network.compiled.optimizer or self._now.estimate.profile.setup["optimizer"]
            self._setup = replace(setup, optimizer=own)

    def advice(self) -> Advice:
        tried = [(proposal, self._change([proposal])) for proposal in self._proposals()]
        found = [(proposal, change) for proposal, change in tried if change is not None]
        found.sort(key=lambda each: (_ORDER[each[1].fit.verdict], each[1].required_bytes))
        changes = tuple(change for _, change in found)
        if self._now or any(change.fit for change in changes):
            return Advice(self._now, changes)
        kept = [proposal for proposal, _ in found if proposal.keeps_network]
        combined = [self._combined(kept), self._combined([proposal for proposal, _ in found])]
        return Advice(self._now, changes, tuple({change.what: change for change in combined if change}.values()))

    def _combined(self, proposals: list[_Proposal]) -> Change | None:
        """Those that help most, one of each kind, until it fits; None where two together help no more than one."""
        taken: list[_Proposal] = []
        best: Change | None = None
        for proposal in proposals:
            if any(proposal.kind == other.kind for other in taken):
                continue
            change = self._change([*taken, proposal])
            if change and (best is None or change.required_bytes < (1 - _WORTH) * best.required_bytes):
                taken, best = [*taken, proposal], change
            if best and best.fit:
                break
        return best if len(taken) > 1 else None

    def _change(self, proposals: list[_Proposal]) -> Change | None:
        """The change by these proposals together, if it is possible and worth it."""
        network: Network | None = self._network
        setup = self._setup
        for proposal in proposals:
            network = network and proposal.network(network)
            setup = proposal.setup(setup)
        if network is None or (network, setup) == (self._network, self._setup):
            return None
        try:
            fit = fit_of(network, setup)
        except ValueError:  # such as a window that is larger than what is left
            return None
        saved = self._now.required_bytes - fit.required_bytes
        if saved < _WORTH * self._now.required_bytes:
            return None
        what, cost = ("; ".join(getattr(p, name) for p in proposals) for name in ("what", "cost"))
        given = network.source if isinstance(network.source, ConvNet) else network
        change = Change(what, cost, tuple(p.kind for p in proposals), given, setup.options(), fit, saved)
        if self._on_change is not None:
            self._on_change(change)
        return change

    def _proposals(self) -> Iterator[_Proposal]:
        yield from _OF_CONVNETS if isinstance(self._network.source, ConvNet) else _OF_MODELS
        for optimizer, cost in _OPTIMIZERS.items():
            change = lambda setup, optimizer=optimizer: replace(setup, optimizer=optimizer)  # noqa: E731
            yield _Proposal("optimizer", f"Optimizer {optimizer}", cost, setup=change)
        yield from self._smaller_batch()
        half = "mixed_bfloat16" if self._has_bfloat16() else "mixed_float16"
        cost = "Activations of 16 bits, with fewer digits; weights and optimizer state stay float32"
        yield _Proposal("dtype_policy", f"dtype_policy {half!r}", cost, setup=lambda s: replace(s, dtype_policy=half))
        if self._setup.device == REFERENCE:
            cost = "The first step compiles, for seconds to minutes"
            yield _Proposal("xla", "XLA (jit_compile=True)", cost, setup=lambda s: replace(s, jit_compile=True))

    def _has_bfloat16(self) -> bool:
        known = card(self._setup.device or "")
        return known is None or int(known.capability.partition(".")[0]) >= 8

    def _smaller_batch(self) -> Iterator[_Proposal]:
        """The largest part of the batch that fits, in several steps; none where the batch is not the cause."""
        batch_size, parts = self._setup.batch_size, 2
        alone = fit_of(self._network, replace(self._setup, batch_size=1)) if batch_size > 1 else self._now
        if batch_size == 1 or (alone.verdict == "no" and not self._now):
            return
        while parts <= batch_size:
            if batch_size % parts == 0:
                proposal = _accumulated(batch_size // parts, parts)
                try:
                    done = bool(fit_of(self._network, proposal.setup(self._setup)))
                except ValueError:  # an optimizer that does not accumulate
                    return
                if done or parts == batch_size:
                    yield proposal
                    return
            parts += 1


def _accumulated(batch_size: int, parts: int) -> _Proposal:
    def changed(setup: TrainingSetup) -> TrainingSetup:
        from memviz.models.network import serialized

        optimizer = setup.optimizer
        if isinstance(optimizer, str):
            optimizer = {"class_name": optimizer, "config": {}}
        elif not isinstance(optimizer, Mapping):
            optimizer = serialized(optimizer)
        config = optimizer["config"] | {"gradient_accumulation_steps": parts}
        return replace(setup, batch_size=batch_size, optimizer={**optimizer, "config": config})

    what = f"Batch {batch_size:,}, gradients added up over {parts} steps"
    cost = (
        f"{parts} steps per update, and one copy of the weights for the sums; BatchNormalization sees the smaller batch"
    )
    return _Proposal("batch", what, cost, setup=changed)


def _convnet(kind: str, what: str, cost: str, change: Callable[[ConvNet], ConvNet]) -> _Proposal:
    def changed(network: Network) -> Network | None:
        assert isinstance(network.source, ConvNet)
        try:
            source = change(network.source)
        except ValueError:
            return None
        return None if source == network.source else replace(network, source=source)

    return _Proposal(kind, what, f"{_OTHER_NETWORK}: {cost}", changed)


def _pooled(network: ConvNet, most: int) -> ConvNet:
    """Max pooling by 2 after blocks that have none, at most so many."""
    bare = [number for number, block in enumerate(network.blocks) if not block.pooling][:most]
    blocks = (replace(b, pooling="max", pool_size=2) if n in bare else b for n, b in enumerate(network.blocks))
    return replace(network, blocks=tuple(blocks))


def _strided(network: ConvNet) -> ConvNet:
    first, *others = network.blocks or [None]
    return replace(network, blocks=(replace(first, strides=2), *others)) if first and first.strides == 1 else network


def _narrower(network: ConvNet) -> ConvNet:
    widest = max(network.dense, default=1)
    return replace(network, dense=tuple(max(1, n // 2) if n == widest else n for n in network.dense))


_DETAIL = "fine detail is lost where the image becomes smaller"
_WHERE = "where in the image something lies is lost, each channel counts by its average"
_CAPACITY = "that layer has half the capacity"
_OPTIMIZERS = {
    "sgd": "No slots; mostly another learning rate and more epochs",
    "adafactor": "Slots of rows and columns in place of whole copies; other steps than Adam's",
}
_OF_CONVNETS = (
    _convnet("pooling", "Max pooling after the first block without", _DETAIL, lambda net: _pooled(net, 1)),
    _convnet("pooling", "Max pooling after every block", _DETAIL, lambda net: _pooled(net, len(net.blocks))),
    _convnet("head", "Global average pooling instead of Flatten", _WHERE, lambda n: replace(n, head="global_average")),
    _convnet("stride", "Stride 2 in the first convolution", _DETAIL, _strided),
    _convnet("dense", "Half the units in the widest Dense", _CAPACITY, _narrower),
)


def _edit(kind: str, name: str, what: str, cost: str) -> _Proposal:
    def changed(network: Network) -> Network:
        return replace(network, edits=(*network.edits, name))

    return _Proposal(kind, what, f"{_OTHER_NETWORK}: {cost}", changed)


_OF_MODELS = (
    _edit("pooling", "pool_first", "Max pooling after the first convolution without", _DETAIL),
    _edit("head", "global_average", "Global average pooling instead of Flatten", _WHERE),
    _edit("stride", "stride", "Stride 2 in the first convolution", _DETAIL),
    _edit("dense", "half_dense", "Half the units in the largest Dense", _CAPACITY),
)
