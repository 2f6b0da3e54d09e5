"""A ConvNet and how it is trained as a Keras script that runs as it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memviz.models.convnet import ConvNet, LayerPlan
from memviz.setup import OPTIMIZER_CLASSES, TrainingSetup

_LOSSES = {"sigmoid": "binary_crossentropy", "softmax": "sparse_categorical_crossentropy"}


def keras_script(network: ConvNet, setup: TrainingSetup) -> str:
    """Python text that builds and compiles ``network`` with Keras alone: the same layers, names and dtype policy, the
    same optimizer and loss. Training it on one's own images is left as a comment.

    Raises ValueError where the optimizer or the loss is an object, which has no text.
    """
    policy = setup.dtype_policy or network.dtype_policy
    layers = [f"    layers.{plan.keras_class}({_arguments(plan)})," for plan in network.plan]
    loss = setup.loss or _LOSSES.get(network.output_activation, "mean_squared_error")
    if not isinstance(loss, str):
        raise ValueError(f"loss={loss!r} has no text; give the name of a Keras loss.")
    lines = [
        "import keras",
        "from keras import layers",
        "",
        *([f"keras.config.set_dtype_policy({policy!r})", ""] if policy not in (None, "float32") else []),
        "model = keras.Sequential([",
        f"    keras.Input({network.input_shape}, name='image'),",
        *layers,
        f"], name={network.name!r})",
        f"model.compile(optimizer={_optimizer(setup.optimizer)}, loss={loss!r}, jit_compile={setup.jit_compile!r})",
        f"model.summary()  # {network.parameters:,} trainable parameters",
        f"# model.fit(images, labels, batch_size={setup.batch_size})",
    ]
    return "\n".join(lines) + "\n"


def _optimizer(optimizer: Any) -> str:
    """A name, or a call with the settings of a serialized config."""
    if optimizer is None or isinstance(optimizer, str):
        return f"keras.optimizers.{OPTIMIZER_CLASSES[optimizer or 'adam']}()"
    if not isinstance(optimizer, Mapping):
        raise ValueError(f"optimizer={optimizer!r} has no text; give its name or its serialized config.")
    kind = OPTIMIZER_CLASSES.get(optimizer["class_name"], optimizer["class_name"])
    return f"keras.optimizers.{kind}({', '.join(f'{name}={value!r}' for name, value in optimizer['config'].items())})"


def _arguments(layer: LayerPlan) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in (layer.arguments | {"name": layer.name}).items())
