"""One training step as a graph: what the estimate traces is what a trial runs."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from memviz.models.abstract import building_abstractly
from memviz.models.network import Network, in_a_line, raise_out_of_memory, serialized
from memviz.setup import OPTIMIZER_CLASSES, TrainingSetup

CLASS_LABEL_DTYPE = "int64"  # what numpy gives for labels, and what Keras leaves as it is


def compiled_model(network: Network, setup: TrainingSetup) -> keras.Model:
    """A fresh model, compiled with a fresh optimizer of the setup's kind. Its slots do not exist yet.

    Raises ValueError where the network cannot be built, its shapes are not known, the loss does not suit it, or none
    can be chosen.
    """
    model, own = network.build(setup.dtype_policy)
    _, outputs = ends(model, setup.inputs)
    loss = make_loss(own.loss if setup.loss is None else setup.loss) or suitable_loss(outputs)
    optimizer = make_optimizer(setup.optimizer or own.optimizer or "adam")
    others: dict[str, Any] = {
        "metrics": _make_metrics(own.metrics),
        "weighted_metrics": _make_metrics(own.weighted_metrics),
    }
    if setup.loss is None:
        others["loss_weights"] = own.loss_weights
    given = {name: value for name, value in others.items() if value is not None}
    model.compile(optimizer=optimizer, loss=loss, jit_compile=setup.jit_compile, **given)
    return model


def make_optimizer(optimizer: Any) -> keras.optimizers.Optimizer:
    """A new optimizer from a name, a serialized config or an instance (whose settings are taken, not its state).

    Raises ValueError where the config does not describe an optimizer.
    """
    if isinstance(optimizer, str):
        return getattr(keras.optimizers, OPTIMIZER_CLASSES[optimizer])()
    try:
        # Keras finds all but Lamb by this name.
        if isinstance(optimizer, Mapping) and optimizer.get("class_name") in OPTIMIZER_CLASSES:
            kind = getattr(keras.optimizers, OPTIMIZER_CLASSES[optimizer["class_name"]])
            return kind.from_config(copy.deepcopy(dict(optimizer["config"])))
        return keras.optimizers.get(copy.deepcopy(serialized(optimizer)))  # Keras changes the config it reads
    except Exception as error:
        raise ValueError(f"The optimizer {optimizer!r} cannot be made anew: {in_a_line(error)}") from error


def make_loss(loss: Any) -> Any:
    """A loss, or a structure of losses, that Keras can compile with: configs are read, all else is taken as it is.

    Raises ValueError for the config of a loss that only existed in the process or function that made it.
    """
    if isinstance(loss, list | tuple):
        return [make_loss(each) for each in loss]
    if not isinstance(loss, Mapping):
        return loss
    if "class_name" not in loss:  # by output
        return {name: make_loss(each) for name, each in loss.items()}
    try:
        return keras.saving.deserialize_keras_object(copy.deepcopy(dict(loss)), safe_mode=False)
    except Exception as error:
        name = loss["config"] if loss["class_name"] == "function" else loss["class_name"]
        raise ValueError(
            f"The loss {name!r} cannot be made anew ({in_a_line(error)}). Use one of Keras, or compile the model with "
            "your own inside a function that builds it."
        ) from error


def _make_metrics(metrics: Any) -> Any:
    """The metrics a model was compiled with, anew: none shares its state with the user's. Names and functions are taken
    as they are. Raises ValueError for one of which neither a config nor an instance makes another.
    """
    try:
        return _another(metrics)
    except Exception as error:
        raise ValueError(
            f"The metrics {metrics!r} cannot be made anew ({in_a_line(error)}). Use those of Keras, or compile the "
            "model with your own inside a function that builds it."
        ) from error


def _another(metrics: Any) -> Any:
    """The same structure of metrics; of a config or an instance another one."""
    if isinstance(metrics, list | tuple):
        return [_another(each) for each in metrics]
    if isinstance(metrics, keras.metrics.Metric):
        return type(metrics).from_config(metrics.get_config())
    if isinstance(metrics, Mapping) and "class_name" in metrics:
        return keras.saving.deserialize_keras_object(copy.deepcopy(dict(metrics)), safe_mode=False)
    if isinstance(metrics, Mapping):  # by output
        return {name: _another(each) for name, each in metrics.items()}
    return metrics


def build_slots(model: keras.Model) -> None:
    """Create the optimizer's slots, as Keras does before its first step; without storage in an abstract build."""
    if not building_abstractly():
        model.optimizer.build(model.trainable_variables)
        return
    # Some optimizers copy the weights into their slots (ScheduleFreeAdamW): in a graph that is only written down.
    with tf.__internal__.FuncGraph("slots").as_default():
        model.optimizer.build(model.trainable_variables)


def step_function(model: keras.Model, kind: str = "train") -> Any:
    """The `tf.function` of one step, as Keras runs it per batch: of training (forward, loss, gradients and update), of
    evaluating ("test") or of predicting ("predict").

    It takes one argument, ``(features, labels)`` or with sample weights; for predicting, ``(features,)``.
    """
    # Keras does not let autograph convert the step either.
    return tf.function(
        getattr(model, f"{kind}_step"), autograph=False, jit_compile=model.jit_compile, reduce_retracing=True
    )


def trained_with(model: keras.Model, setup: TrainingSetup) -> dict[str, object]:
    """The setup as plain data, with the loss and the optimizer that the model was compiled with where it names none,
    and whether XLA compiles the step: "auto" is resolved by Keras' own rule for the devices that there are.
    """
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)  # within the scaling of the loss
    own = {} if setup.optimizer is not None else {"optimizer": type(optimizer).__name__.lower()}
    return setup.describe() | own | {"loss": loss_name(model), "jit_compile": bool(model.jit_compile)}


def loss_name(model: keras.Model) -> str:
    """The name of the loss a model is compiled with; of several losses, all their names."""
    return ", ".join(_name_of_loss(loss) for loss in keras.tree.flatten(model.loss) if loss is not None)


def _name_of_loss(loss: Any) -> str:
    if isinstance(loss, str):
        return loss
    return str(getattr(loss, "__name__", None) or getattr(loss, "name", None) or type(loss).__name__)


def suitable_loss(outputs: Any) -> str:
    """The loss that suits the output: by its activation, as the Keras guides pair them.

    sigmoid: binary cross-entropy; softmax: sparse categorical cross-entropy; anything else: mean squared error.
    Raises ValueError for several outputs, and where the activation cannot be seen.
    """
    if len(flat := keras.tree.flatten(outputs)) != 1:
        raise ValueError(f"The model has {len(flat)} outputs and no compiled loss; give loss= or compile it with one.")
    by_activation = {"sigmoid": "binary_crossentropy", "softmax": "sparse_categorical_crossentropy"}
    return by_activation.get(_activation(flat[0]), "mean_squared_error")


def _activation(output: Any) -> str:
    layer = output._keras_history.operation
    if isinstance(layer, keras.layers.Softmax):
        return "softmax"
    if isinstance(layer, keras.Model):
        if (function := _functional(layer)) is None:
            raise ValueError(
                f"The output of {layer.name!r} does not say which loss suits it; give loss=, such as 'mse'."
            )
        return _activation(function.outputs[0])
    return getattr(getattr(layer, "activation", None), "__name__", "linear")


def _functional(model: keras.Model) -> Any:
    """The graph of layers that a model is, itself or, of a Sequential, inside; None for a subclassed or unbuilt one."""
    inner = getattr(model, "_functional", model)
    return inner if hasattr(inner, "_inputs_struct") else None


def ends(model: keras.Model, inputs: Any = None) -> tuple[Any, Any]:
    """What a model takes and what it returns, as symbolic tensors in its own structure, the batch of unknown size.

    inputs: of `TrainingSetup`; the model is called with them, which builds it where it is not built yet.
    Raises ValueError where a shape is not known, or the inputs do not suit the model.
    """
    if inputs is not None:
        features = keras.tree.map_structure(_symbolic, inputs)
        try:
            return features, model(features)
        except Exception as error:
            raise_out_of_memory(error)
            raise ValueError(f"The model {model.name!r} does not take inputs={inputs!r}: {in_a_line(error)}") from error
    function = _functional(model)
    shapes = [] if function is None else [tuple(tensor.shape) for tensor in function.inputs]
    if function is None or any(None in shape[1:] for shape in shapes):
        raise ValueError(
            f"The input shape of the model {model.name!r} is not known ({shapes or 'none yet'}); start it with "
            "keras.Input(shape=...), every size but the batch known, or pass inputs= with the TensorSpecs of a batch."
        )
    return function._inputs_struct, function._outputs_struct


def _symbolic(example: str) -> Any:
    """A symbolic tensor for an input's text, such as ``"float32[32,32,3]"``."""
    dtype, _, sizes = example.rstrip("]").partition("[")
    return keras.Input([int(size) for size in sizes.split(",") if size], dtype=dtype)


def batch_specs(
    model: keras.Model, batch_size: int, inputs: Any = None, sample_weight: bool = False
) -> tuple[Any, ...]:
    """TensorSpecs of one batch: features and labels, in the model's own structure, and a weight per example if asked
    for; inputs and errors as for `ends`.
    """
    features, outputs = ends(model, inputs)
    if any(x.dtype == "string" for x in keras.tree.flatten(features)):
        raise ValueError(
            f"The model {model.name!r} takes strings, which have no size in a tensor; encode them in the data pipeline "
            "(StringLookup, TextVectorization) and give memviz the model behind it."
        )
    if fixed := {x.shape[0] for x in keras.tree.flatten(features)} - {None, batch_size}:
        raise ValueError(f"The model {model.name!r} takes batches of {fixed.pop()} only, not of {batch_size}.")
    features = keras.tree.map_structure(lambda x: tf.TensorSpec((batch_size, *x.shape[1:]), x.dtype), features)
    flat, loss = keras.tree.flatten(outputs), model.loss
    if isinstance(loss, Mapping):  # by output name
        loss = [loss.get(name) for name in (sorted(outputs) if isinstance(outputs, dict) else model.output_names)]
    losses = loss if isinstance(loss, list | tuple) else [loss] * len(flat)
    labels = [_label_spec(tensor, _name_of_loss(loss), batch_size) for tensor, loss in zip(flat, losses, strict=True)]
    weights = (tf.TensorSpec((batch_size,), "float32"),) * sample_weight  # Keras makes those of classes such too
    return _single(features), _single(keras.tree.pack_sequence_as(outputs, labels)), *weights


def _label_spec(output: Any, loss: str, batch_size: int) -> tf.TensorSpec:
    if loss.lower().startswith("sparse"):
        return tf.TensorSpec((batch_size, *output.shape[1:-1]), CLASS_LABEL_DTYPE)
    # Labels come as float32 whatever the policy: Keras casts them inside the step.
    return tf.TensorSpec((batch_size, *output.shape[1:]), "float32")


def _single(structure: Any) -> Any:
    return structure[0] if isinstance(structure, list | tuple) and len(structure) == 1 else structure
