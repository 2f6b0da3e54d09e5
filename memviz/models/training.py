"""One training step as a graph: what the estimate traces is what a trial runs."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from memviz.models.abstract import building_abstractly
from memviz.models.network import Network
from memviz.setup import TrainingSetup

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

CLASS_LABEL_DTYPE = "int64"  # what numpy gives for labels, and what Keras leaves as it is


def compiled_model(network: Network, setup: TrainingSetup) -> keras.Model:
    """A fresh model, compiled with a fresh optimizer of the setup's kind. Its slots do not exist yet.

    Raises ValueError where the network cannot be built, the loss does not suit it, or no loss can be chosen.
    """
    model, own_loss = network.build_with_loss(setup.dtype_policy)
    _check_shapes_known(model)
    loss = own_loss if setup.loss is None else _new_loss(setup.loss)
    model.compile(
        optimizer=make_optimizer(setup.optimizer), loss=loss or suitable_loss(model), jit_compile=setup.jit_compile
    )
    return model


def make_optimizer(optimizer: Any) -> keras.optimizers.Optimizer:
    """A new optimizer from a name, a serialized config or an instance (whose settings are taken, not its state).

    Raises ValueError where the config does not describe an optimizer.
    """
    import keras

    if isinstance(optimizer, str):
        classes = {name.lower(): getattr(keras.optimizers, name) for name in dir(keras.optimizers)}
        return classes[optimizer]()
    try:
        config = optimizer if isinstance(optimizer, Mapping) else keras.optimizers.serialize(optimizer)
        return keras.optimizers.get(copy.deepcopy(dict(config)))  # a copy, since Keras changes the config it reads
    except Exception as error:
        raise ValueError(f"The optimizer {optimizer!r} cannot be made anew: {error}") from error


def _new_loss(loss: Any) -> Any:
    """A loss that Keras can compile with: a serialized config is read, everything else is taken as it is."""
    import keras

    if not (isinstance(loss, Mapping) and "class_name" in loss):
        return loss
    try:
        return keras.losses.get(copy.deepcopy(dict(loss)))
    except Exception as error:
        raise ValueError(f"The loss {loss!r} cannot be made anew: {error}") from error


def build_slots(model: keras.Model) -> None:
    """Create the optimizer's slots, as Keras does before its first step; without storage in an abstract build."""
    import tensorflow as tf

    if not building_abstractly():
        model.optimizer.build(model.trainable_variables)
        return
    # Some optimizers copy the weights into their slots (ScheduleFreeAdamW): in a graph that is only written down.
    with tf.__internal__.FuncGraph("slots").as_default():
        model.optimizer.build(model.trainable_variables)


def step_function(model: keras.Model) -> Any:
    """The `tf.function` of one training step, forward, loss, gradients and update, as Keras runs it per batch.

    It takes one argument, ``(features, labels)``.
    """
    import tensorflow as tf

    # Keras does not let autograph convert the step either.
    return tf.function(model.train_step, autograph=False, jit_compile=model.jit_compile, reduce_retracing=True)


def loss_name(model: keras.Model) -> str:
    """The name of the loss a model is compiled with; of several losses, all their names."""
    import keras

    return ", ".join(_name_of_loss(loss) for loss in keras.tree.flatten(model.loss) if loss is not None)


def _name_of_loss(loss: Any) -> str:
    if isinstance(loss, str):
        return loss
    return str(getattr(loss, "__name__", None) or getattr(loss, "name", None) or type(loss).__name__)


def suitable_loss(model: keras.Model) -> str:
    """The loss that suits the output: by its activation, as the Keras guides pair them.

    sigmoid: binary cross-entropy; softmax: sparse categorical cross-entropy; anything else: mean squared error.
    """
    if len(model.outputs) != 1:
        raise ValueError(
            f"The model has {len(model.outputs)} outputs and no compiled loss; give loss= or compile it with one."
        )
    activation = _output_activation(model)
    if activation == "sigmoid":
        return "binary_crossentropy"
    if activation == "softmax":
        return "sparse_categorical_crossentropy"
    return "mean_squared_error"


def batch_specs(model: keras.Model, batch_size: int) -> tuple[Any, Any]:
    """TensorSpecs of one batch: features and labels, in the model's own structure.

    Raises ValueError where the input shape is not known.
    """
    import keras
    import tensorflow as tf

    _check_shapes_known(model)

    def feature(tensor: Any) -> tf.TensorSpec:
        return tf.TensorSpec((batch_size, *tensor.shape[1:]), tensor.dtype)

    features = keras.tree.map_structure(feature, model._inputs_struct if _is_functional(model) else model.inputs)
    losses = _loss_per_output(model)
    labels = [_label_spec(tensor, loss, batch_size) for tensor, loss in zip(model.outputs, losses, strict=True)]
    structure = model._outputs_struct if _is_functional(model) else model.outputs
    return _single(features), _single(keras.tree.pack_sequence_as(structure, labels))


def _check_shapes_known(model: keras.Model) -> None:
    if not model.built or not getattr(model, "inputs", None) or not getattr(model, "outputs", None):
        raise ValueError(
            f"The input shape of the model {model.name!r} is not known; start it with keras.Input(shape=...), "
            "or pass inputs= with the TensorSpecs of a batch."
        )
    for tensor in model.inputs:
        if None in tensor.shape[1:]:
            raise ValueError(
                f"The input {tensor.name!r} of the model {model.name!r} has the shape {tuple(tensor.shape)}; every "
                "size but the batch must be known. Build the model with the real size, or pass inputs=."
            )


def _loss_per_output(model: keras.Model) -> list[str]:
    """The name of each output's loss: Keras takes one loss for all, a list in their order, or a mapping by name."""
    loss = model.loss
    if isinstance(loss, Mapping):
        loss = [loss.get(name, "") for name in model.output_names]
    losses = list(loss) if isinstance(loss, list | tuple) else [loss] * len(model.outputs)
    return [_name_of_loss(loss) for loss in losses]


def _label_spec(output: Any, loss: str, batch_size: int) -> tf.TensorSpec:
    import tensorflow as tf

    if loss.lower().startswith("sparse"):
        return tf.TensorSpec((batch_size, *output.shape[1:-1]), CLASS_LABEL_DTYPE)
    # Labels come as float32 whatever the policy: Keras casts them inside the step.
    return tf.TensorSpec((batch_size, *output.shape[1:]), "float32")


def _output_activation(model: keras.Model) -> str:
    import keras

    layer = model.outputs[0]._keras_history.operation
    if isinstance(layer, keras.Model):
        return _output_activation(layer)
    if isinstance(layer, keras.layers.Softmax):
        return "softmax"
    return getattr(getattr(layer, "activation", None), "__name__", "linear")


def _is_functional(model: keras.Model) -> bool:
    return hasattr(model, "_inputs_struct")


def _single(structure: Any) -> Any:
    return structure[0] if isinstance(structure, list | tuple) and len(structure) == 1 else structure
