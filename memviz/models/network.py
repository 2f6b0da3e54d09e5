"""What the user hands over as `network`, in one form that builds fresh models and can travel to a child process."""

from __future__ import annotations

import base64
import dataclasses
import sys
import textwrap
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memviz.models.abstract import abstract_weights, building_abstractly, is_abstract
from memviz.models.convnet import ConvBlock, ConvNet

if TYPE_CHECKING:
    import keras


@dataclass(frozen=True)
class Network:
    """A `ConvNet`, a function that returns a `keras.Model`, or a model by its config. Every `build` is a fresh model.

    Exactly one of convnet, builder and config is given. loss: the serialized loss a given model was compiled with.
    default_policy: the caller's global dtype policy, which a child process would not know; None: float32.
    """

    name: str
    convnet: ConvNet | None = None
    builder: Callable[[], Any] | None = None
    config: Mapping[str, Any] | None = None
    loss: Any = None
    default_policy: str | None = None

    @classmethod
    def of(cls, network: Any) -> Network:
        """The network of a public function's argument; the argument itself is never changed.

        Raises TypeError for anything but a keras.Model, a function of no arguments or a ConvNet.
        """
        if isinstance(network, Network):
            return network
        if isinstance(network, ConvNet):
            return cls(network.name, convnet=network, default_policy=_global_policy())
        if _is_keras_model(network):
            return cls(network.name, config=_model_config(network), loss=_compiled_loss(network))
        if callable(network) and not isinstance(network, type):
            return cls(getattr(network, "__name__", "network"), builder=network, default_policy=_global_policy())
        raise TypeError(
            f"A network is a keras.Model, a function without arguments that returns one, or a memviz ConvNet, "
            f"not {network!r}."
        )

    def build(self, dtype_policy: str | None = None) -> keras.Model:
        """A fresh Keras model, with ``dtype_policy`` in place of its own where one is given.

        Raises ValueError where the network cannot be built or is not a model; the original error is its cause.
        """
        return self.build_with_loss(dtype_policy)[0]

    def build_with_loss(self, dtype_policy: str | None = None) -> tuple[keras.Model, Any]:
        """A fresh Keras model, to be compiled, and the loss the user compiled it with (None: with none).

        Raises ValueError as `build` does.
        """
        if self.convnet is not None:
            policy = dtype_policy or self.convnet.dtype_policy or self.default_policy
            return dataclasses.replace(self.convnet, dtype_policy=policy).build(), None
        if self.config is not None:
            return _rebuild(self.config, dtype_policy), _loss_from_config(self.loss)
        assert self.builder is not None
        model = _call_builder(self.builder, self.name, dtype_policy or self.default_policy)
        loss = model.loss if model.compiled else None
        if any(is_abstract(variable) != building_abstractly() for variable in model.variables):
            # Made before, all of it or a part: the user's own model. It stays as it is; its config makes another.
            model = _rebuild(_model_config(model), dtype_policy)
        return model, loss

    def to_message(self) -> dict[str, Any]:
        """Plain data for JSON. A function travels by cloudpickle, a model as its config."""
        common = {"name": self.name, "default_policy": self.default_policy}
        if self.convnet is not None:
            return {**common, "convnet": dataclasses.asdict(self.convnet)}
        if self.config is not None:
            return {**common, "config": self.config, "loss": self.loss}
        import cloudpickle

        return {**common, "builder": base64.b64encode(cloudpickle.dumps(self.builder)).decode("ascii")}

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> Network:
        """The network that `to_message` described. Only a builder is unpickled, and only from one's own parent."""
        fields = dict(message)
        if "convnet" in message:
            fields["convnet"] = convnet_from_dict(message["convnet"])
        elif "builder" in message:
            import cloudpickle

            # A model that the function refers to comes along with its weights; here they would count as memory in use.
            with abstract_weights():
                fields["builder"] = cloudpickle.loads(base64.b64decode(message["builder"]))
        return cls(**fields)


def convnet_from_dict(data: Mapping[str, Any]) -> ConvNet:
    """A ConvNet from the plain data of `dataclasses.asdict`, lists taken as tuples."""
    fields = dict(data)
    fields["blocks"] = tuple(ConvBlock(**block) for block in fields["blocks"])
    return ConvNet(**fields)


def _is_keras_model(network: Any) -> bool:
    # Without importing Keras: an object can only be a Keras model if Keras is loaded already.
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(network, keras.Model)


def _global_policy() -> str | None:
    keras = sys.modules.get("keras")
    name = None if keras is None else keras.config.dtype_policy().name
    return None if name == "float32" else name


def _model_config(model: Any) -> dict[str, Any]:
    try:
        return _serialized(model)
    except Exception as error:
        raise ValueError(
            f"The model {model.name!r} has no usable config ({type(error).__name__}: {_in_a_line(error)}); "
            "pass a function without arguments that builds and returns a new one."
        ) from error


def _compiled_loss(model: Any) -> Any:
    return _serialized(model.loss) if getattr(model, "compiled", False) else None


def _serialized(part: Any) -> Any:
    import keras

    with warnings.catch_warnings():
        # Keras warns that a lambda is unsafe to load from somewhere else; this one only goes to our own child.
        warnings.filterwarnings("ignore", "The object being serialized includes a `lambda`", UserWarning)
        return keras.saving.serialize_keras_object(part)


def _call_builder(builder: Callable[[], Any], name: str, dtype_policy: str | None) -> keras.Model:
    import keras

    policy_before = keras.config.dtype_policy()
    try:
        if dtype_policy is not None:
            keras.config.set_dtype_policy(dtype_policy)
        model = builder()
    except Exception as error:
        _raise_out_of_memory(error)
        if building_abstractly() and type(error).__module__.startswith("tensorflow."):
            said = "memviz builds without storage; let the function build the model without using its weights' values."
        else:
            said = _in_a_line(error)
        raise ValueError(f"The function {name} raised {type(error).__name__} while building: {said}") from error
    finally:
        keras.config.set_dtype_policy(policy_before)
    if not isinstance(model, keras.Model):
        raise ValueError(f"The function {name} returned {model!r}; it must return a keras.Model.")
    return model


def _rebuild(config: Mapping[str, Any], dtype_policy: str | None) -> keras.Model:
    import keras

    try:
        # The config is this user's own model, so its Lambda layers are trusted as the user's functions are.
        return keras.saving.deserialize_keras_object(_edited(config, dtype_policy), safe_mode=False)
    except Exception as error:
        _raise_out_of_memory(error)
        raise ValueError(
            f"The model cannot be rebuilt from its config ({type(error).__name__}: {_in_a_line(error)}); "
            "pass a function without arguments that builds and returns a new one."
        ) from error


def _loss_from_config(loss: Any) -> Any:
    import keras

    try:
        return keras.saving.deserialize_keras_object(loss, safe_mode=False)
    except Exception as error:
        raise ValueError(
            f"The loss the model was compiled with cannot be made anew ({_in_a_line(error)}); pass it as loss=."
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


def _in_a_line(error: Exception) -> str:
    """The start of an error's text; Keras' run over many lines, and the whole stays as the cause."""
    return textwrap.shorten(str(error), 300, placeholder=" ...")


def _raise_out_of_memory(error: BaseException | None) -> None:
    """Raise the out-of-memory error that ``error`` is or comes from, if any; Keras wraps it while rebuilding."""
    while error is not None:
        if isinstance(error, MemoryError) or type(error).__name__ == "ResourceExhaustedError":
            raise error
        error = error.__cause__ or error.__context__
