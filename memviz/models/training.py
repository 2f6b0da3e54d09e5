"""One training step as a graph: what the estimate traces is what a trial runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

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
    model = network.build(setup.dtype_policy)
    loss = setup.loss if setup.loss is not None else _own_loss(network, model)
    if loss is None:
        loss = suitable_loss(model)
    jit_compile = setup.jit_compile
    model.compile(optimizer=make_optimizer(setup.optimizer), loss=loss, jit_compile=jit_compile)
    return model


def make_optimizer(optimizer: Any) -> keras.optimizers.Optimizer:
    """A new optimizer from a name, a serialized config or an instance (whose settings are taken, not its state)."""
    import keras

    if isinstance(optimizer, str):
        classes = {name.lower(): getattr(keras.optimizers, name) for name in dir(keras.optimizers)}
        return classes[optimizer]()
    config = optimizer if isinstance(optimizer, Mapping) else keras.optimizers.serialize(optimizer)
    try:
        return keras.optimizers.deserialize(config)
    except Exception as error:
        raise ValueError(f"The optimizer {optimizer!r} cannot be made anew: {error}") from error


def build_slots(model: keras.Model) -> None:
    """Create the optimizer's slots, as Keras does before its first step."""
    model.optimizer.build(model.trainable_variables)


def step_function(model: keras.Model) -> Any:
    """The `tf.function` of one training step, forward, loss, gradients and update, as Keras runs it per batch.

    It takes one argument, ``(features, labels)``.
    """
    import tensorflow as tf

    return tf.function(model.train_step, jit_compile=model.jit_compile, reduce_retracing=True)


def loss_name(model: keras.Model) -> str:
    """The name of the loss a model is compiled with."""
    loss = model.loss
    return loss if isinstance(loss, str) else getattr(loss, "name", None) or getattr(loss, "__name__", str(loss))


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

    if not model.built or not getattr(model, "inputs", None):
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

    def feature(tensor: Any) -> tf.TensorSpec:
        return tf.TensorSpec((batch_size, *tensor.shape[1:]), tensor.dtype, name=tensor.name)

    features = keras.tree.map_structure(feature, model._inputs_struct if _is_functional(model) else model.inputs)
    labels = keras.tree.map_structure(
        lambda tensor: _label_spec(tensor, loss_name(model), batch_size),
        model._outputs_struct if _is_functional(model) else model.outputs,
    )
    return _single(features), _single(labels)


def _label_spec(output: Any, loss: str, batch_size: int) -> tf.TensorSpec:
    import tensorflow as tf

    if loss.startswith("sparse_"):
        return tf.TensorSpec((batch_size, *output.shape[1:-1]), CLASS_LABEL_DTYPE, name="labels")
    # Labels come as float32 whatever the policy: Keras casts them inside the step.
    return tf.TensorSpec((batch_size, *output.shape[1:]), "float32", name="labels")


def _own_loss(network: Network, model: keras.Model) -> Any:
    """The loss the user compiled with: kept beside a model's config, or on the model a function returned."""
    if network.loss is not None:
        import keras

        loss = network.loss
        return loss if isinstance(loss, str) else keras.losses.deserialize(loss)
    return model.loss if getattr(model, "compiled", False) else None


def _output_activation(model: keras.Model) -> str:
    layer = model.outputs[0]._keras_history.operation
    return getattr(getattr(layer, "activation", None), "__name__", "linear")


def _is_functional(model: keras.Model) -> bool:
    return hasattr(model, "_inputs_struct")


def _single(structure: Any) -> Any:
    return structure[0] if isinstance(structure, list | tuple) and len(structure) == 1 else structure
