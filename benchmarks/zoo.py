"""The networks of the accuracy benchmark: what is trained, at which batch size, with which optimizer.

A third of the rows is validation: no rule of the estimator was learnt on them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import keras
from keras import layers

from memviz import ConvBlock, ConvNet, presets


@dataclass(frozen=True)
class Row:
    """One configuration. validation: no rule was learnt on it."""

    name: str
    network: Callable[[], keras.Model] | ConvNet
    batch_size: int
    optimizer: str | Callable[[], Any] = "adam"
    validation: bool = False
    dtype_policy: str | None = None
    sample_weight: bool = False

    @property
    def key(self) -> str:
        """How the row is called in tables and results; one whose optimizer is made by a function has it in its name."""
        told = [self.optimizer] if isinstance(self.optimizer, str) else []
        policy = [self.dtype_policy] if self.dtype_policy else []
        return ", ".join([self.name, f"batch {self.batch_size}", *told, *policy])

    def options(self, *, jit_compile: bool = False) -> dict[str, Any]:
        """What `memviz.estimate` and `memviz.measure` take beside the network."""
        optimizer = self.optimizer if isinstance(self.optimizer, str) else self.optimizer()
        told = {"batch_size": self.batch_size, "optimizer": optimizer, "dtype_policy": self.dtype_policy}
        return told | {"sample_weight": self.sample_weight, "jit_compile": jit_compile, "device": "reference"}

    def as_validation(self) -> Row:
        """The same, on which no rule is learnt."""
        return replace(self, validation=True)


def _application(name: str) -> Callable[[], keras.Model]:
    return lambda: getattr(keras.applications, name)(weights=None)


NORMED = ConvNet(
    name="normed",
    input_shape=(64, 64, 3),
    blocks=(
        ConvBlock(filters=32, batch_norm=True, pooling="max", padding="same"),
        ConvBlock(filters=64, batch_norm=True, pooling="average", padding="same"),
        ConvBlock(filters=64, dropout=0.3),
    ),
    dense=(128,),
    outputs=10,
    output_activation="softmax",
)


def mlp() -> keras.Model:
    stack = [layers.Dense(units, "relu") for units in (512, 512)]
    return keras.Sequential([keras.Input((784,)), *stack, layers.Dense(10, "softmax")])


def wide_autoencoder() -> keras.Model:
    """C15 at an eighth of its width (github.com/keras-team/keras/issues/7530)."""
    return keras.Sequential([keras.Input((3_124,)), layers.Dense(1_562, "relu"), layers.Dense(3_124, "sigmoid")])


def mnist_mlp() -> keras.Model:
    """C07: 784 -> 23,000 linear -> 10 (github.com/tensorflow/tensorflow/issues/1757)."""
    return keras.Sequential([keras.Input((784,)), layers.Dense(23_000), layers.Dense(10, "softmax")])


def gesture_cnn() -> keras.Model:
    """C22 (github.com/asingh33/CNNGestureRecognizer/issues/37), channels last."""
    return keras.Sequential([
        keras.Input((200, 200, 1)), layers.Conv2D(32, 3, activation="relu"), layers.Conv2D(32, 3, activation="relu"),
        layers.MaxPooling2D(), layers.Dropout(0.5), layers.Flatten(), layers.Dense(128, "relu"), layers.Dropout(0.5),
        layers.Dense(5, "softmax"),
    ])  # fmt: skip


def pooled_pixels() -> keras.Model:
    """C20 at a quarter of its side (github.com/tensorflow/tensorflow/issues/398)."""
    stack: list[Any] = [keras.Input((256, 256, 3))]
    for _ in range(5):
        stack += [layers.Conv2D(16, 3, padding="same"), layers.LeakyReLU(), layers.MaxPooling2D()]
    return keras.Sequential([*stack, layers.Flatten(), layers.Dense(2048), layers.Dense(600)])


def dwarfing_dense() -> keras.Model:
    """C19 (github.com/tensorflow/tensorflow/issues/1756)."""
    return keras.Sequential([
        keras.Input((256, 256, 1)), layers.Conv2D(48, 11, padding="same", activation="relu"), layers.MaxPooling2D(4),
        layers.Conv2D(128, 5, padding="same", activation="relu"), layers.MaxPooling2D(2),
        layers.Conv2D(128, 3, padding="same", activation="relu"), layers.Flatten(), layers.Dense(1024, "relu"),
        layers.Dense(10, "softmax"),
    ])  # fmt: skip


def unet() -> keras.Model:
    """C04's architecture (github.com/karolzak/keras-unet), filters 16, three levels, 128 x 128."""

    def block(x: Any, filters: int) -> Any:
        for _ in range(2):
            x = layers.Conv2D(filters, 3, padding="same", activation="relu", use_bias=False)(x)
            x = layers.BatchNormalization()(x)
        return x

    start = x = keras.Input((128, 128, 3))
    skips = []
    for filters in (16, 32, 64):
        x = block(x, filters)
        skips.append(x)
        x = layers.MaxPooling2D()(x)
    x = block(x, 128)
    for filters, skip in zip((64, 32, 16), reversed(skips), strict=True):
        x = layers.Conv2DTranspose(filters, 2, strides=2, padding="same")(x)
        x = block(layers.Concatenate()([x, skip]), filters)
    return keras.Model(start, layers.Conv2D(1, 1, activation="sigmoid")(x), name="unet")


def volumes() -> keras.Model:
    return keras.Sequential([
        keras.Input((32, 32, 32, 1)), layers.Conv3D(16, 3, activation="relu"), layers.MaxPooling3D(),
        layers.Conv3D(32, 3, activation="relu"), layers.GlobalAveragePooling3D(), layers.Dense(2, "softmax"),
    ])  # fmt: skip


def separable() -> keras.Model:
    return keras.Sequential([
        keras.Input((96, 96, 3)), layers.SeparableConv2D(32, 3, activation="relu"), layers.AveragePooling2D(2),
        layers.SeparableConv2D(64, 3, activation="relu"), layers.GlobalMaxPooling2D(), layers.Dense(10, "softmax"),
    ])  # fmt: skip


def transposed() -> keras.Model:
    return keras.Sequential([
        keras.Input((16, 16, 8)), layers.Conv2DTranspose(32, 3, strides=2, padding="same", activation="relu"),
        layers.Conv2DTranspose(16, 3, strides=2, padding="same", activation="relu"), layers.Conv2D(3, 3),
    ])  # fmt: skip


ROWS = (
    Row("bird_audio_pooled", presets.bird_audio_pooled, 1),
    Row("bird_audio_pooled", presets.bird_audio_pooled, 4),
    Row("bird_audio_pooled", presets.bird_audio_pooled, 16, "sgd", validation=True),
    Row("bird_audio_global_pool", presets.bird_audio_global_pool, 2),
    Row("bird_audio_global_pool", presets.bird_audio_global_pool, 8, "rmsprop", validation=True),
    Row("digits", presets.digits, 32),
    Row("digits", presets.digits, 128, "sgd", validation=True),
    Row("normed", NORMED, 32),
    Row("normed", NORMED, 128, "adagrad", validation=True),
    Row("MLP", mlp, 64),
    Row("MLP", mlp, 1024, "sgd", validation=True),
    Row("VGG16", _application("VGG16"), 4, "sgd"),
    Row("VGG16", _application("VGG16"), 8, "adam", validation=True),
    Row("ResNet50", _application("ResNet50"), 8),
    Row("ResNet50", _application("ResNet50"), 16, "sgd", validation=True),
    Row("ResNet50V2", _application("ResNet50V2"), 8, "sgd"),
    Row("MobileNetV2", _application("MobileNetV2"), 8),
    Row("MobileNetV2", _application("MobileNetV2"), 16, "sgd"),
    Row("EfficientNetB0", _application("EfficientNetB0"), 8),
    Row("DenseNet121", _application("DenseNet121"), 8, "sgd"),
    Row("Xception", _application("Xception"), 4, "sgd", validation=True),
    Row("InceptionV3", _application("InceptionV3"), 4, "sgd", validation=True),
    Row("U-Net", unet, 4),
    Row("U-Net", unet, 16, "sgd"),
    Row("3-D convolutions", volumes, 4),
    Row("separable", separable, 16, validation=True),
    Row("transposed", transposed, 16),
    Row("wide autoencoder (C15 / 8)", wide_autoencoder, 32),
    Row("MNIST MLP (C07)", mnist_mlp, 128, validation=True),
    Row("gesture CNN (C22)", gesture_cnn, 32, "adadelta"),
    Row("pooled pixels (C20 / 4)", pooled_pixels, 8, "sgd"),
    Row("dwarfing Dense (C19)", dwarfing_dense, 4, validation=True),
)
