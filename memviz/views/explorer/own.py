"""One's own network for the panel: a model as it is, or a function whose arguments become knobs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args, get_origin

from memviz.models.network import Call, Network

_SIMPLE = (bool, int, float, str)


def own_network(network: Any) -> Network:
    """A network of which a panel can be opened: a function's arguments stand at their defaults.

    Raises TypeError for what is no network, and for a function that has an argument without a default.
    """
    if not callable(network) or isinstance(network, type) or hasattr(network, "layers"):
        return Network.of(network)
    given = _parameters(network)
    needed = [name for name, parameter in given.items() if parameter.default is inspect.Parameter.empty]
    if needed:
        raise TypeError(
            f"The knobs of {getattr(network, '__name__', 'the function')} start at its defaults, and {needed[0]} has "
            f"none; give it one, such as {needed[0]}=16."
        )
    arguments = {name: each.default for name, each in given.items() if _has_knob(each)}
    return Network.of(Call(network, arguments))


def _has_knob(argument: inspect.Parameter) -> bool:
    return type(argument.default) in _SIMPLE and argument.kind is not inspect.Parameter.POSITIONAL_ONLY


def choices_of(function: Callable[..., Any]) -> dict[str, tuple[Any, ...]]:
    """The arguments annotated as a Literal, and what they may be."""
    found = {name: each.annotation for name, each in _parameters(function).items()}
    return {name: get_args(kind) for name, kind in found.items() if get_origin(kind) is Literal}


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    every: Mapping[str, inspect.Parameter]
    try:
        every = inspect.signature(function, eval_str=True).parameters
    except (ValueError, TypeError, NameError):  # none is told, or an annotation cannot be read
        every = {}
    several = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    return {name: each for name, each in every.items() if each.kind not in several}
