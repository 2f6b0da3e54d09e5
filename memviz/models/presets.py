"""Networks to start from. `bird_audio` is the one every lesson begins with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from memviz.models.convnet import ConvBlock, ConvNet

# The network of the founding question: 810 spectrograms of bird calls, a 9.29 GB card, out of memory with one image.
# 770,482,865 parameters, of which Flatten (6,019,376) -> Dense (128) holds all but a few thousand.
bird_audio = ConvNet(
    name="bird_audio",
    input_shape=(1491, 257, 1),
    blocks=(ConvBlock(filters=16), ConvBlock(filters=16)),
    dense=(128,),
    outputs=1,
    output_activation="sigmoid",
)

# The same with the repair most people are told first: pooling after each convolution.
bird_audio_pooled = replace(
    bird_audio,
    name="bird_audio_pooled",
    blocks=tuple(replace(block, pooling="max", pool_size=4) for block in bird_audio.blocks),
)

# The same without Flatten: one average per channel.
bird_audio_global_pool = replace(bird_audio, name="bird_audio_global_pool", head="global_average")

# A network that trains in seconds on scikit-learn's handwritten digits.
digits = ConvNet(
    name="digits",
    input_shape=(32, 32, 1),
    blocks=(ConvBlock(filters=16, padding="same", pooling="max"), ConvBlock(filters=32, padding="same", pooling="max")),
    dense=(64,),
    outputs=10,
    output_activation="softmax",
)

# Networks that ran out of memory for others, as they were reported; what is not told is as usual.

# github.com/tensorflow/tensorflow/issues/1756: of 134.5 million parameters the first Dense holds 134.2.
dwarfing_dense = ConvNet(
    name="dwarfing_dense",
    input_shape=(256, 256, 1),
    blocks=(
        ConvBlock(filters=48, kernel=11, padding="same", pooling="max", pool_size=4),
        ConvBlock(filters=128, kernel=5, padding="same", pooling="max"),
        ConvBlock(filters=128, padding="same"),
    ),
    dense=(1024,),
    outputs=10,
    output_activation="softmax",
)

# github.com/tensorflow/tensorflow/issues/398: what is convolved before it is pooled is four times what was counted.
pooled_pixels = ConvNet(
    name="pooled_pixels",
    input_shape=(1024, 1024, 3),
    blocks=(ConvBlock(filters=16, padding="same", activation="leaky_relu", pooling="max"),) * 5,
    dense=(2048,),
    dense_activation="linear",
    outputs=600,
    output_activation="linear",
)

# github.com/asingh33/CNNGestureRecognizer/issues/37: the Dense kernel has as many bytes as conv2's output of 32 images.
gesture_cnn = ConvNet(
    name="gesture_cnn",
    input_shape=(200, 200, 1),
    blocks=(ConvBlock(filters=32), ConvBlock(filters=32, pooling="max", dropout=0.5)),
    dense=(128,),
    outputs=5,
    output_activation="softmax",
)

# github.com/PacktPublishing/Mastering-Computer-Vision-with-TensorFlow-2.0/issues/6: it failed while it was built.
feature_head = ConvNet(
    name="feature_head", input_shape=(26, 26, 256), dense=(4096,), outputs=3, output_activation="softmax"
)

# github.com/tensorflow/models/issues/3393: neither a smaller batch nor fewer units helped.
flattened_pixels = ConvNet(
    name="flattened_pixels",
    input_shape=(200, 200, 3),
    blocks=(ConvBlock(filters=32), ConvBlock(filters=64)),
    dense=(64,),
    outputs=10,
    output_activation="softmax",
)

# VGG16 (Simonyan and Zisserman 2014, configuration D): 138,357,544 parameters, most of the activations in two layers.
vgg16 = ConvNet(
    name="vgg16",
    input_shape=(224, 224, 3),
    blocks=tuple(
        ConvBlock(filters=filters, padding="same", pooling="max" if last else None)
        for filters, convolutions in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
        for last in [False] * (convolutions - 1) + [True]
    ),
    dense=(4096, 4096),
    outputs=1000,
    output_activation="softmax",
)

# With normalization, which keeps one more copy of its input for the backward pass.
normed = ConvNet(
    name="normed",
    input_shape=(128, 128, 3),
    blocks=tuple(
        ConvBlock(filters=filters, padding="same", batch_norm=True, pooling="max") for filters in (32, 64, 128, 256)
    ),
    head="global_average",
    dense=(),
    outputs=10,
    output_activation="softmax",
)

_NETWORKS = (
    bird_audio, bird_audio_pooled, bird_audio_global_pool, digits,
    dwarfing_dense, pooled_pixels, gesture_cnn, feature_head, flattened_pixels, vgg16, normed,
)  # fmt: skip
ALL = {net.name: net for net in _NETWORKS}

# How each is trained where that is not by Adam, one example at a time.
TRAINING: dict[str, dict[str, Any]] = {
    "digits": {"batch_size": 32},
    "pooled_pixels": {"batch_size": 35, "optimizer": "sgd"},
    "gesture_cnn": {"batch_size": 32, "optimizer": "adadelta"},
    "flattened_pixels": {"batch_size": 32},
    "vgg16": {"batch_size": 16, "optimizer": "sgd"},
    "normed": {"batch_size": 32},
}
