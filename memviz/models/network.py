"""What the user hands over as `network`, in one form that builds fresh models and can travel to a child process."""

from __future__ import annotations

import base64
import dataclasses
import re
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memviz.models.abstract import abstract_weights, building_abstractly, is_abstract
from memviz.models.convnet import ConvNet
from memviz.setup import TrainingSetup

if TYPE_CHECKING:
    import keras

_BOLD = re.compile(r"\x1b\[\d+m")  # and its end


@dataclass(frozen=True)
class Compiled:
    """What a model was compiled with, as objects or as serialized configs; None: with none."""

    loss: Any = None
    optimizer: Any = None
    loss_weights: Any = None
    metrics: Any = None
    weighted_metrics: Any = None

    @classmethod
    def of(cls, model: keras.Model) -> Compiled:
        """What a user's model was compiled with, if it was; the objects themselves."""
        if not model.compiled:
            return cls()
        # Keras keeps the metrics as they were given nowhere else (3.13); a `compile` of one's own may not call Keras'.
        given = getattr(getattr(model, "_compile_config", None), "config", {})
        others = {name: given.get(name) for name in ("loss_weights", "metrics", "weighted_metrics")}
        return cls(model.loss, model.optimizer, **others)

    def serialized(self) -> Compiled:
        """The same as serialized configs."""
        return Compiled(**{field.name: serialized(getattr(self, field.name)) for field in dataclasses.fields(self)})


@dataclass(frozen=True)
class Call:
    """A function and the keyword arguments it is called with: a builder that equals another where both are the same."""

    function: Callable[..., Any]
    arguments: Mapping[str, Any]

    @property
    def __name__(self) -> str:
        return getattr(self.function, "__name__", "network")

    def __call__(self) -> Any:
        """What the function returns."""
        return self.function(**self.arguments)


@dataclass(frozen=True)
class Network:
    """A `ConvNet`, a function that returns a `keras.Model`, or a model's config. Every `build` makes a fresh model.

    compiled: what a given model was compiled with, serialized. default_policy: the caller's global dtype policy, which
    a child process would not know. edits: changes made in the built model, by name (models/edits.py).
    """

    source: ConvNet | Callable[[], Any] | Mapping[str, Any]
    compiled: Compiled = Compiled()
    default_policy: str = "float32"
    edits: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The model's name, or that of the function which builds it."""
        if isinstance(self.source, Mapping):
            return self.source["config"].get("name", "network")
        return getattr(self.source, "name" if isinstance(self.source, ConvNet) else "__name__", "network")

    @classmethod
    def of(cls, network: Any) -> Network:
        """The network of a public function's argument; the argument itself is never changed.

        Raises TypeError for anything but a keras.Model, a function of no arguments or a ConvNet.
        """
        if isinstance(network, Network):
            return network
        keras = sys.modules.get("keras")  # not imported here: without Keras there is neither a model nor a policy
        if keras is not None and isinstance(network, keras.Model):
            with _config_needed():
                return cls(serialized(network), Compiled.of(network).serialized())
        own_class = keras is not None and isinstance(network, type) and issubclass(network, keras.Model)
        own_class = own_class and not network.__module__.startswith("keras.")
        if isinstance(network, ConvNet) or own_class or (callable(network) and not isinstance(network, type)):
            return cls(network, default_policy="float32" if keras is None else keras.config.dtype_policy().name)
        raise TypeError(
            f"A network is a keras.Model, a function without arguments that returns one, or a memviz ConvNet, "
            f"not {network!r}."
        )

    def build(self, dtype_policy: str | None = None) -> tuple[keras.Model, Compiled]:
        """A fresh Keras model, to be compiled, with ``dtype_policy`` in place of its own where one is given; and what
        the user compiled it with, for `training` to make anew.

        Raises ValueError where the network cannot be built or is not a model; the original error is its cause.
        """
        if self.edits:
            from memviz.models.edits import edited

            with abstract_weights():  # the model as it was is only read
                model, compiled = dataclasses.replace(self, edits=()).build(dtype_policy)
            return edited(model, self.edits), compiled
        if isinstance(self.source, ConvNet):
            policy = dtype_policy or self.source.dtype_policy or self.default_policy
            with global_policy(policy):  # the model's own, which decides whether Keras scales its loss
                return dataclasses.replace(self.source, dtype_policy=policy).build(), Compiled()
        if isinstance(self.source, Mapping):
            return _rebuild(self.source, dtype_policy), self.compiled
        model = _call_builder(self.source, dtype_policy or self.default_policy)
        compiled = Compiled.of(model)
        if any(is_abstract(variable) != building_abstractly() for variable in model.variables):
            # Made before, all of it or a part: the user's own model. It stays as it is; its config makes another.
            with _config_needed():
                model = _rebuild(serialized(model), dtype_policy)
        return model, compiled


def packed(network: Network, setup: TrainingSetup) -> str:
    """A network and how it is trained as text for a child process; functions, also of a notebook, by cloudpickle."""
    import cloudpickle

    if not isinstance(setup.optimizer, str | None):  # an instance's variables stay here
        setup = dataclasses.replace(setup, optimizer=serialized(setup.optimizer))
    return base64.b64encode(cloudpickle.dumps((network, setup))).decode("ascii")


def unpacked(text: str) -> tuple[Network, TrainingSetup]:
    """What `packed` packed; for the text of one's own parent process only, since unpickling executes it."""
    import cloudpickle

    # A model that a function refers to comes along with its weights; here they would count as memory in use.
    with abstract_weights():
        return cloudpickle.loads(base64.b64decode(text))


def serialized(part: Any) -> Any:
    """The Keras config of a model, an optimizer, a loss, or of a structure of them; names stay as they are."""
    import keras

    with warnings.catch_warnings():
        # Keras warns that a lambda is unsafe to load from somewhere else; this one only goes to our own child.
        warnings.filterwarnings("ignore", "The object being serialized includes a `lambda`", UserWarning)
        return keras.saving.serialize_keras_object(part)


def in_a_line(error: BaseException) -> str:
    """The start of an error's text; Keras' run over many lines, some in bold, and the whole stays as the cause."""
    try:
        return textwrap.shorten(_BOLD.sub("", str(error)), 300, placeholder=" ...")
    except Exception:  # a text that cannot be made
        return "(no text)"


def _call_builder(builder: Callable[[], Any], dtype_policy: str) -> keras.Model:
    import keras

    name = getattr(builder, "__name__", "network")
    try:
        with global_policy(dtype_policy):
            model = builder()
    except (Exception, SystemExit) as error:
        raise_out_of_memory(error)
        said = in_a_line(error)
        if isinstance(error, RecursionError):
            said += ". Keras walks through a model by recursion: let the function call sys.setrecursionlimit() first."
        reads_values = type(error).__name__ != "OperatorNotAllowedInGraphError"  # that one: a Python `if` on a tensor
        if reads_values and building_abstractly() and type(error).__module__.startswith("tensorflow."):
            said = "memviz builds without storage; let the function build the model without using its weights' values."
        raise ValueError(f"The function {name} raised {type(error).__name__} while building: {said}") from error
    if not isinstance(model, keras.Model):
        raise ValueError(f"The function {name} returned {model!r}; it must return a keras.Model.")
    return model


@contextmanager
def global_policy(name: str | None) -> Iterator[None]:
    """Models made meanwhile have this dtype policy; None: the one there is."""
    import keras

    before = keras.config.dtype_policy()
    try:
        keras.config.set_dtype_policy(name or before)
        yield
    finally:
        keras.config.set_dtype_policy(before)


def _rebuild(config: Mapping[str, Any], dtype_policy: str | None) -> keras.Model:
    import keras

    # The model's own policy is in no config, and decides whether Keras scales its loss.
    with _config_needed(), global_policy(dtype_policy):
        # The config is this user's own model, so its Lambda layers are trusted as the user's functions are.
        return keras.saving.deserialize_keras_object(_edited(config, dtype_policy), safe_mode=False)


@contextmanager
def _config_needed() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise_out_of_memory(error)
        raise ValueError(
            f"The model cannot be made anew from its config ({type(error).__name__}: {in_a_line(error)}); pass a "
            "function without arguments that builds and returns one."
        ) from error


def _edited(node: Any, policy: str | None) -> Any:
    """A copy of a config without its compile parts, which would make optimizer slots, and with another dtype policy."""
    if isinstance(node, Mapping):
        if policy and node.get("class_name") in ("DTypePolicy", "FloatDTypePolicy"):
            return {**node, "config": {**node["config"], "name": policy}}
        return {key: _edited(value, policy) for key, value in node.items() if key != "compile_config"}
    if isinstance(node, list | tuple):
        return type(node)(_edited(value, policy) for value in node)
    return node


def raise_out_of_memory(error: BaseException | None) -> None:
    """Raise the out-of-memory error that ``error`` is or comes from, if any; Keras wraps it while rebuilding."""
    while error is not None:
        if isinstance(error, MemoryError) or type(error).__name__ == "ResourceExhaustedError":
            raise error
        error = error.__cause__ or error.__context__
