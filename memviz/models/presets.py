"""Networks to start from. `bird_audio` is the one every lesson begins with."""

from __future__ import annotations

from dataclasses import replace

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

ALL = {net.name: net for net in (bird_audio, bird_audio_pooled, bird_audio_global_pool, digits)}
