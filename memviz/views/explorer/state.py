"""What the explorer shows, as data: one frozen state, and what the knobs say of it. No widgets here."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from memviz.child.machine import budget_of, default_device
from memviz.models import presets
from memviz.models.convnet import ConvBlock, ConvNet
from memviz.models.network import Call, Network, serialized
from memviz.setup import OPTIMIZER_CLASSES, REFERENCE, TrainingSetup
from memviz.units import GIB, MIB, UnitSystem, format_bytes, parse_bytes
from memviz.views.figures import Order, Scale

BUDGET_BYTES = 9513 * MIB  # the 9.29 GiB card of the founding question
NEEDED_FREE_BYTES = 11 * GIB  # what a trial of bird_audio under that budget asks of the host
CUSTOM = "your own"
# The knobs that are the state's own; those below are as the records name them.
DISPLAY = ("phase", "scale", "order", "units")
SETUP = ("batch_size", "dtype_policy", "jit_compile", "device", "memory_growth")
BLOCK = ("filters", "kernel", "strides", "batch_norm", "padding", "activation", "dropout")
# A knob: Keras' argument, its value where the knob is on, and the optimizers that take it (None: all). Each is one more
# slot or copy of every weight.
OPTIMIZER_OPTIONS: dict[str, tuple[str, Any, tuple[str, ...] | None]] = {
    "momentum": ("momentum", 0.9, ("sgd", "rmsprop")),
    "centered": ("centered", True, ("rmsprop",)),
    "amsgrad": ("amsgrad", True, ("adam", "adamw")),
    "moving_average": ("use_ema", True, None),
}
ACCUMULATION = "gradient_accumulation_steps"
ITS_OWN = "its own"  # of one's own network: the optimizer it is compiled with, the dtype policy it is built with
ARGUMENT = "argument "  # begins the name of a knob for an argument of one's own function


@dataclass(frozen=True, kw_only=True)
class ExplorerState:
    """A network, how it is trained, and how that is displayed. Every change is a new value."""

    network: ConvNet | Network  # a ConvNet for all knobs, or one's own
    setup: TrainingSetup
    phase: str = "steady_step"  # whose peak the bars show
    scale: Scale = "linear"
    order: Order = "model"
    units: UnitSystem = "binary"

    @property
    def question(self) -> tuple[ConvNet | Network, TrainingSetup]:
        """What an estimate or a trial is asked; the rest of the state is display."""
        return self.network, self.setup


def opening_state(network: ConvNet | Network | None, free_bytes: int, **options: Any) -> tuple[ExplorerState, str]:
    """The first state, and a sentence where it is not the usual one because the host has little memory free.

    options: keywords of `memviz.estimate`, in place of how a preset, or one's own network, usually is trained.
    """
    notice = ""
    if isinstance(network, Network):
        options = {"batch_size": 32, "device": default_device()} | options
    if "device" in options and "budget" not in options:
        options["budget"] = default_budget(options["device"]) or None
    if isinstance(network, Network):
        return ExplorerState(network=network, setup=_created(**options)), notice
    if network is None and free_bytes < NEEDED_FREE_BYTES:
        network = presets.bird_audio_pooled
        notice = (
            f"This machine has {format_bytes(free_bytes)} of memory free. A trial of bird_audio needs "
            f"{format_bytes(NEEDED_FREE_BYTES)}, so the panel opens on {network.name}; estimates work for any size."
        )
    network = network or presets.bird_audio
    policy = network.dtype_policy or "float32"
    setup = TrainingSetup(
        batch_size=1, optimizer="adam", dtype_policy=policy, device=REFERENCE, budget_bytes=BUDGET_BYTES
    )
    state = with_preset(ExplorerState(network=network, setup=setup), network)
    return replace(state, setup=_created(**{**state.setup.options(), **options})), notice


def with_preset(state: ExplorerState, network: ConvNet) -> ExplorerState:
    """The state with another network, trained as that preset is; device and display stay."""
    training: dict[str, Any] = {"batch_size": 1, "optimizer": "adam"} | presets.TRAINING.get(preset_name(network), {})
    return replace(state, network=network, setup=replace(state.setup, **training))


def preset_name(network: ConvNet | Network) -> str:
    """The preset that a network equals, else `CUSTOM`."""
    return next((name for name, preset in presets.ALL.items() if preset == network), CUSTOM)


def default_steps(network: ConvNet | Network) -> int:
    """Steps of a trial that stays bearable: few for a network that needs seconds per step."""
    if isinstance(network, Network):
        return 10
    if network.parameters > 50_000_000:
        return 5
    return 20 if max(math.prod(layer.output_shape) for layer in network.plan) > 1_000_000 else 100


def default_budget(device: str) -> str:
    """The budget's text for a device: on the reference device the founding question's card, else all there is."""
    return _budget_text(BUDGET_BYTES) if device == REFERENCE else ""


def knobs_of(state: ExplorerState) -> dict[str, Any]:
    """The controls' values for a state, the budget as text, a pooling as ``none``, ``max 2``, ``average 4``."""
    network, setup = state.question
    return {
        **(_convnet_knobs(network) if isinstance(network, ConvNet) else _own_knobs(network)),
        "budget": _budget_text(setup.budget_bytes),
        **_optimizer_knobs(setup.optimizer),
        **{name: getattr(setup, name) for name in SETUP},
        "dtype_policy": setup.dtype_policy or ITS_OWN,
        **{name: getattr(state, name) for name in DISPLAY},
    }  # fmt: skip


def state_of(knobs: Mapping[str, Any], base: ExplorerState) -> ExplorerState:
    """The state for the controls' values. What no knob sets (more dense layers, output activation, an optimizer's other
    settings) is as in ``base``.

    Raises ValueError in words for people where a value is not possible.
    """
    network, budget = base.network, budget_of(knobs["budget"].strip() or None, knobs["device"])
    setup = replace(
        base.setup,
        budget_bytes=None if budget is None else parse_bytes(budget),
        optimizer=_optimizer(knobs, base.setup.optimizer),
        **{name: knobs[name] for name in SETUP if name != "dtype_policy"},
        dtype_policy=None if knobs["dtype_policy"] == ITS_OWN else knobs["dtype_policy"],
    )
    network = _convnet(knobs, network) if isinstance(network, ConvNet) else _own(knobs, network)
    return ExplorerState(network=network, setup=setup, **{name: knobs[name] for name in DISPLAY})


def takes(optimizer: str, option: str) -> bool:
    """Whether an optimizer has an option of `OPTIMIZER_OPTIONS`."""
    takers = OPTIMIZER_OPTIONS[option][2]
    return optimizer != ITS_OWN and (takers is None or optimizer in takers)


def arguments_of(network: ConvNet | Network) -> Mapping[str, Any]:
    """The arguments of one's own function that have a knob."""
    source = network.source if isinstance(network, Network) else None
    return source.arguments if isinstance(source, Call) else {}


def saved(state: ExplorerState) -> str:
    """A state as JSON, for `restored`; of one's own network the arguments only."""
    network = asdict(state.network) if isinstance(state.network, ConvNet) else dict(arguments_of(state.network))
    setup = {name: getattr(state.setup, name) for name in ("optimizer", "budget_bytes", *SETUP)}
    display = {name: getattr(state, name) for name in DISPLAY}
    return json.dumps({"memviz": 1, "network": network, "setup": setup, **display}, indent=1)


def restored(text: str, base: ExplorerState) -> ExplorerState:
    """The state that `saved` wrote for a network of the same kind as the base's, from which comes what is not saved.

    Raises ValueError, in one sentence, for any other text.
    """
    try:
        told = json.loads(text)
        network: ConvNet | Network = base.network
        if isinstance(network, ConvNet):
            blocks = [ConvBlock(**block) for block in told["network"]["blocks"]]
            network = ConvNet(**told["network"] | {"blocks": blocks})
        elif {*told["network"]} != {*arguments_of(network)}:
            raise ValueError(f"its arguments are {', '.join(told['network']) or 'none'}")
        else:
            network = _own({ARGUMENT + name: value for name, value in told["network"].items()}, network)
        display = {name: told[name] for name in DISPLAY}
        state = ExplorerState(network=network, setup=replace(base.setup, **told["setup"]), **display)
        return state_of(knobs_of(state), state)  # what no control can show is refused here
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"This is no setup that memviz saved here ({type(error).__name__}: {error}).") from error


def _created(**options: Any) -> TrainingSetup:
    """A setup whose optimizer is a name or plain data."""
    setup = TrainingSetup.create(**options | {"budget": budget_of(options["budget"], options["device"])})
    named = setup.optimizer is None or isinstance(setup.optimizer, str | Mapping)
    return setup if named else replace(setup, optimizer=serialized(setup.optimizer))


def _convnet_knobs(network: ConvNet) -> dict[str, Any]:
    height, width, channels = network.input_shape
    return {
        "height": height, "width": width, "channels": channels,
        "blocks": [
            {name: getattr(block, name) for name in BLOCK}
            | {"pooling": f"{block.pooling} {block.pool_size}" if block.pooling else "none"}
            for block in network.blocks
        ],
        "head": network.head, "dense": network.dense[0] if network.dense else 0, "outputs": network.outputs,
    }  # fmt: skip


def _convnet(knobs: Mapping[str, Any], base: ConvNet) -> ConvNet:
    return replace(
        base,
        input_shape=(knobs["height"], knobs["width"], knobs["channels"]),
        blocks=tuple(_block(values, base.blocks[: i + 1]) for i, values in enumerate(knobs["blocks"])),
        head=knobs["head"],
        dense=((knobs["dense"],) if knobs["dense"] else ()) + base.dense[1:],
        outputs=knobs["outputs"],
        dtype_policy=None,
    )


def _own_knobs(network: Network) -> dict[str, Any]:
    return {"blocks": []} | {ARGUMENT + name: value for name, value in arguments_of(network).items()}


def _own(knobs: Mapping[str, Any], base: Network) -> Network:
    if not isinstance(base.source, Call):
        return base
    arguments = {name: knobs[ARGUMENT + name] for name in base.source.arguments}
    return replace(base, source=replace(base.source, arguments=arguments))


def _block(values: Mapping[str, Any], bases: Sequence[ConvBlock]) -> ConvBlock:
    """A row's block: the base's own in its place or, in a new row, another like the last one."""
    base = bases[-1] if bases else ConvBlock(filters=16)
    kind, _, size = values["pooling"].partition(" ")
    pooling = {"pooling": kind, "pool_size": int(size)} if size else {"pooling": None}
    return replace(base, **{**values, **pooling})


def _budget_text(budget: int | None) -> str:
    return f"{budget // MIB} MiB" if budget and budget % MIB == 0 else f"{budget} B" if budget else ""


def _named(optimizer: Any) -> tuple[str, dict[str, Any]]:
    """An optimizer's name in our spelling, and its settings as far as they are given."""
    if optimizer is None or isinstance(optimizer, str):
        return optimizer or ITS_OWN, {}
    kind = optimizer["class_name"]
    return next((name for name, known in OPTIMIZER_CLASSES.items() if known == kind), kind), dict(optimizer["config"])


def _optimizer_knobs(optimizer: Any) -> dict[str, Any]:
    name, config = _named(optimizer)
    options = {knob: bool(config.get(argument)) for knob, (argument, _, _) in OPTIMIZER_OPTIONS.items()}
    return {"optimizer": name, "accumulate": config.get(ACCUMULATION) or 1, **options}


def _optimizer(knobs: Mapping[str, Any], base: Any) -> Any:
    """A name or, with settings of its own, a serialized config; None: the one that a network is compiled with."""
    name, steps = knobs["optimizer"], knobs["accumulate"]
    if steps < 1:
        raise ValueError(
            f"accumulate={steps} is not possible; gradients are added up over 1 step (that is all) or more."
        )
    if name == ITS_OWN and steps > 1:
        raise ValueError(f"accumulate={steps} needs an optimizer that is known here; choose one in place of its own.")
    known, given = _named(base)
    config = dict(given) if name == known else {}
    wanted: dict[str, tuple[bool, Any]] = {
        argument: (knobs[knob], value) for knob, (argument, value, _) in OPTIMIZER_OPTIONS.items() if takes(name, knob)
    }
    wanted[ACCUMULATION] = (steps > 1, steps)
    for argument, (on, value) in wanted.items():
        if not on and config.get(argument):
            del config[argument]
        elif on and (not config.get(argument) or argument == ACCUMULATION):
            config[argument] = value
    if name == known and config == given:
        return base
    kind = base if name == known and isinstance(base, Mapping) else {"class_name": name}
    return {**kind, "config": config} if config else None if name == ITS_OWN else name
