"""Networks of public reports, rebuilt from what was written there; the address stands with each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from keras import layers


def padded_vgg16(outputs: int = 1000) -> keras.Model:
    """C02: VGG16 with an explicit pixel of padding before convolutions (github.com/keras-team/keras/issues/2464)."""
    stack: list[Any] = [keras.Input((224, 224, 3))]
    for filters, times in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        stack += [*_padded(filters, times), layers.MaxPooling2D()]
    head = [layers.Dense(4096, "relu"), layers.Dropout(0.5), layers.Dense(4096, "relu"), layers.Dropout(0.5)]
    return keras.Sequential([*stack, layers.Flatten(), *head, layers.Dense(outputs, "softmax")])


def _padded(filters: int, times: int) -> list[Any]:
    convolutions = [[layers.ZeroPadding2D(), layers.Conv2D(filters, 3, activation="relu")] for _ in range(times)]
    return [layer for pair in convolutions for layer in pair]


def unet() -> keras.Model:
    """C04: 64 filters, four levels, 256 x 256 (github.com/karolzak/keras-unet/issues/49)."""

    def block(x: Any, filters: int) -> Any:
        x = layers.Conv2D(filters, 3, padding="same", activation="relu", use_bias=False)(x)
        x = layers.SpatialDropout2D(0.3)(layers.BatchNormalization()(x))
        x = layers.Conv2D(filters, 3, padding="same", activation="relu", use_bias=False)(x)
        return layers.BatchNormalization()(x)

    start = x = keras.Input((256, 256, 3))
    skips = []
    for filters in (64, 128, 256, 512):
        x = block(x, filters)
        skips.append((filters, x))
        x = layers.MaxPooling2D()(x)
    x = block(x, 1024)
    for filters, skip in reversed(skips):
        x = layers.Conv2DTranspose(filters, 2, strides=2, padding="same")(x)
        x = block(layers.Concatenate()([x, skip]), filters)
    return keras.Model(start, layers.Conv2D(1, 1, activation="sigmoid")(x), name="unet")


def ssd300() -> keras.Model:
    """C08: the trunk of VGG, padded explicitly, and six heads (github.com/tensorflow/tensorflow/issues/36337)."""
    start = x = keras.Input((300, 300, 3))

    def through(x: Any, stack: list[Any]) -> Any:
        for layer in stack:
            x = layer(x)
        return x

    for filters, times in ((64, 2), (128, 2)):
        x = layers.MaxPooling2D()(through(x, _padded(filters, times)))
    x = through(x, _padded(256, 3))
    x = layers.MaxPooling2D()(layers.ZeroPadding2D(((0, 1), (0, 1)))(x))
    ends = [x := through(x, _padded(512, 3))]
    x = through(layers.MaxPooling2D()(x), _padded(512, 3))
    x = through(layers.MaxPooling2D(3, strides=1, padding="same")(x), _padded(1024, 1))
    ends.append(x := layers.Conv2D(1024, 1, activation="relu")(x))
    for narrow, wide, strides in ((256, 512, 2), (128, 256, 2), (128, 256, 1), (128, 256, 1)):
        x = layers.Conv2D(narrow, 1, activation="relu")(x)
        x = layers.ZeroPadding2D()(x) if strides == 2 else x
        ends.append(x := layers.Conv2D(wide, 3, strides, activation="relu")(x))
    boxes = []
    for end, count in zip(ends, (4, 6, 6, 6, 4, 4), strict=True):
        found = layers.Conv2D(count * (21 + 4), 3, padding="same")(end)
        boxes.append(layers.Reshape((-1, 21 + 4))(found))
    return keras.Model(start, layers.Concatenate(axis=1)(boxes), name="ssd300")


def yolo3(side: int = 416, frozen: bool = False) -> keras.Model:
    """C10: Darknet-53 and three heads (github.com/qqwweee/keras-yolo3); frozen: all but the last convolutions."""
    start = x = keras.Input((side, side, 3))

    def conv(x: Any, filters: int, kernel: int, strides: int = 1) -> Any:
        if strides == 2:
            x = layers.ZeroPadding2D(((1, 0), (1, 0)))(x)
        x = layers.Conv2D(filters, kernel, strides, padding="valid" if strides == 2 else "same", use_bias=False)(x)
        return layers.LeakyReLU(negative_slope=0.1)(layers.BatchNormalization()(x))

    def narrowed(x: Any, filters: int) -> Any:
        for _ in range(2):
            x = conv(conv(x, filters, 1), 2 * filters, 3)
        return conv(x, filters, 1)

    x, stages = conv(x, 32, 3), []
    for filters, times in ((64, 1), (128, 2), (256, 8), (512, 8), (1024, 4)):
        x = conv(x, filters, 3, strides=2)
        for _ in range(times):
            x = layers.Add()([x, conv(conv(x, filters // 2, 1), filters, 3)])
        stages.append(x)
    heads, x = [], narrowed(x, 512)
    for filters, stage in ((512, None), (256, stages[3]), (128, stages[2])):
        if stage is not None:
            x = layers.UpSampling2D()(conv(x, filters, 1))
            x = narrowed(layers.Concatenate()([x, stage]), filters)
        heads.append(layers.Conv2D(255, 1)(conv(x, 2 * filters, 3)))
    model = keras.Model(start, heads, name="yolo3")
    last = {id(head._keras_history.operation) for head in heads}
    for layer in model.layers:
        layer.trainable = not frozen or id(layer) in last
    model.compile("adam", 3 * ["mse"])  # in place of its own loss, which adds little beside the body
    return model


def densenet(depth: int, growth: int) -> keras.Model:
    """C53: without bottlenecks, on 32 x 32 (github.com/ikhlestov/vision_networks, github.com/titu1994/DenseNet)."""
    start = keras.Input((32, 32, 3))
    filters = 2 * growth
    x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(start)
    for stage in range(3):
        for _ in range((depth - 4) // 3):
            made = layers.ReLU()(layers.BatchNormalization()(x))
            made = layers.Dropout(0.2)(layers.Conv2D(growth, 3, padding="same", use_bias=False)(made))
            x = layers.Concatenate()([x, made])
            filters += growth
        x = layers.ReLU()(layers.BatchNormalization()(x))
        if stage < 2:
            x = layers.AveragePooling2D(2)(layers.Conv2D(filters, 1, use_bias=False)(x))
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(start, layers.Dense(10, "softmax")(x), name=f"densenet_{depth}_{growth}")


def wide_autoencoder() -> keras.Model:
    """C15 (github.com/keras-team/keras/issues/7530)."""
    return keras.Sequential([keras.Input((24_995,)), layers.Dense(12_500, "relu"), layers.Dense(24_995, "relu")])


def wide_head() -> keras.Model:
    """C23: 26 x 26 x 256 into 4,096 units (PacktPublishing/Mastering-Computer-Vision-with-TensorFlow-2.0, issue 6)."""
    return keras.Sequential([
        keras.Input((26, 26, 256)), layers.Flatten(), layers.Dense(4096, "relu"), layers.Dense(3, "softmax")
    ])  # fmt: skip


def flattened_pixels() -> keras.Model:
    """C25: 196 x 196 x 64 into 64 units (github.com/tensorflow/models/issues/3393)."""
    return keras.Sequential([
        keras.Input((200, 200, 3)), layers.Conv2D(32, 3, activation="relu"), layers.Conv2D(64, 3, activation="relu"),
        layers.Flatten(), layers.Dense(64, "relu"), layers.Dense(10, "softmax"),
    ])  # fmt: skip


def application(name: str, side: int, outputs: int = 1000) -> Callable[[], keras.Model]:
    """A network of keras.applications without weights."""
    return lambda: getattr(keras.applications, name)(weights=None, input_shape=(side, side, 3), classes=outputs)
