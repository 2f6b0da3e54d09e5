"""What the user hands over as `network`, in one form that builds fresh models and can travel to a child process."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memviz.models.convnet import ConvBlock, ConvNet

if TYPE_CHECKING:
    import keras


@dataclass(frozen=True)
class Network:
    """A `ConvNet`, a function that returns a `keras.Model`, or a model by its config. Every `build` is a fresh model.

    Exactly one of convnet, builder and config is given. loss: the serialized loss a given model was compiled with.
    """

    name: str
    convnet: ConvNet | None = None
    builder: Callable[[], Any] | None = None
    config: Mapping[str, Any] | None = None
    loss: Any = None

    @classmethod
    def of(cls, network: Any) -> Network:
        """The network of a public function's argument; the argument itself is never changed.

        Raises TypeError for anything but a keras.Model, a function of no arguments or a ConvNet.
        """
        if isinstance(network, Network):
            return network
        if isinstance(network, ConvNet):
            return cls(network.name, convnet=network)
        if _is_keras_model(network):
            return cls(network.name, config=_model_config(network), loss=_compiled_loss(network))
        if callable(network) and not isinstance(network, type):
            return cls(getattr(network, "__name__", "network"), builder=network)
        raise TypeError(
            f"A network is a keras.Model, a function without arguments that returns one, or a memviz ConvNet, "
            f"not {network!r}."
        )

    def build(self, dtype_policy: str | None = None) -> keras.Model:
        """A fresh Keras model, with ``dtype_policy`` in place of its own where one is given.

        Raises ValueError where the network cannot be built or is not a model; the original error is its cause.
        """
        import keras

        if self.convnet is not None:
            convnet = self.convnet
            if dtype_policy is not None:
                convnet = dataclasses.replace(convnet, dtype_policy=dtype_policy)
            return convnet.build()
        if self.config is not None:
            config = dict(self.config) if dtype_policy is None else _with_policy(self.config, dtype_policy)
            return _rebuild(config)
        assert self.builder is not None
        policy_before = keras.config.dtype_policy()
        try:
            if dtype_policy is not None:
                keras.config.set_dtype_policy(dtype_policy)
            model = self.builder()
        except (MemoryError, KeyboardInterrupt):
            raise
        except Exception as error:
            if _is_resource_exhausted(error):
                raise
            raise ValueError(
                f"The function {self.name} raised {type(error).__name__} while building: {error}"
            ) from error
        finally:
            keras.config.set_dtype_policy(policy_before)
        if not isinstance(model, keras.Model):
            raise ValueError(f"The function {self.name} returned {model!r}; it must return a keras.Model.")
        return model

    def to_message(self) -> dict[str, Any]:
        """Plain data for JSON. A function travels by cloudpickle, a model as its config."""
        if self.convnet is not None:
            return {"name": self.name, "convnet": dataclasses.asdict(self.convnet)}
        if self.config is not None:
            return {"name": self.name, "config": self.config, "loss": self.loss}
        import cloudpickle

        return {"name": self.name, "builder": base64.b64encode(cloudpickle.dumps(self.builder)).decode("ascii")}

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> Network:
        """The network that `to_message` described. Only a builder is unpickled, and only from one's own parent."""
        if "convnet" in message:
            return cls(message["name"], convnet=convnet_from_dict(message["convnet"]))
        if "config" in message:
            return cls(message["name"], config=message["config"], loss=message.get("loss"))
        import cloudpickle

        return cls(message["name"], builder=cloudpickle.loads(base64.b64decode(message["builder"])))


def convnet_from_dict(data: Mapping[str, Any]) -> ConvNet:
    """A ConvNet from the plain data of `dataclasses.asdict`, lists taken as tuples."""
    fields = dict(data)
    fields["blocks"] = tuple(ConvBlock(**block) for block in fields["blocks"])
    return ConvNet(**fields)


def _is_keras_model(network: Any) -> bool:
    # Without importing Keras: an object can only be a Keras model if Keras is loaded already.
    import sys

    keras = sys.modules.get("keras")
    return keras is not None and isinstance(network, keras.Model)


def _model_config(model: Any) -> dict[str, Any]:
    import keras

    try:
        return keras.saving.serialize_keras_object(model)
    except Exception as error:
        raise ValueError(
            f"The model {model.name!r} has no usable config ({type(error).__name__}: {error}); "
            "pass a function without arguments that builds and returns it."
        ) from error


def _compiled_loss(model: Any) -> Any:
    if not getattr(model, "compiled", False):
        return None
    return (model.get_compile_config() or {}).get("loss")


def _rebuild(config: Mapping[str, Any]) -> keras.Model:
    import keras

    # Without the compile and build parts: those would make optimizer variables and call the model.
    bare = {key: value for key, value in config.items() if key != "compile_config"}
    try:
        return keras.saving.deserialize_keras_object(bare)
    except Exception as error:
        if _is_resource_exhausted(error):
            raise
        raise ValueError(
            f"The model cannot be rebuilt from its config ({type(error).__name__}: {error}); "
            "pass a function without arguments that builds and returns it."
        ) from error


def _with_policy(node: Any, policy: str) -> Any:
    """The config with every layer's dtype policy replaced."""
    if isinstance(node, Mapping):
        if node.get("class_name") in ("DTypePolicy", "FloatDTypePolicy"):
            return {**node, "config": {**node["config"], "name": policy}}
        return {key: _with_policy(value, policy) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [_with_policy(value, policy) for value in node]
    return node


def _is_resource_exhausted(error: BaseException) -> bool:
    return type(error).__name__ == "ResourceExhaustedError"
