import dataclasses
import math
import re

import numpy as np
import pytest
from convnets import convnets
from hypothesis import given, settings
from hypothesis import strategies as st

from memviz.models import presets
from memviz.models.abstract import abstract_weights
from memviz.models.convnet import ACTIVATIONS, PADDINGS, ConvBlock, ConvNet


def assert_plan_is_keras_s(convnet):
    with abstract_weights():
        model = convnet.build()
    image, *layers = model.layers
    assert image.output.shape == (None, *convnet.input_shape)
    assert [layer.name for layer in layers] == [plan.name for plan in convnet.plan]
    for layer, plan in zip(layers, convnet.plan, strict=True):
        assert layer.output.shape == (None, *plan.output_shape), plan.name
        assert tuple(tuple(v.shape) for v in layer.trainable_variables) == plan.parameter_shapes, plan.name
        assert tuple(tuple(v.shape) for v in layer.non_trainable_variables) == plan.buffer_shapes, plan.name
        assert layer.dtype_policy.name == (convnet.dtype_policy or "float32")
    assert sum(int(np.prod(v.shape)) for v in model.trainable_variables) == convnet.parameters
    states = sum(np.prod(s) for p in convnet.plan if p.keras_class == "BatchNormalization" for s in p.buffer_shapes)
    assert model.count_params() == convnet.parameters + states


@given(convnets())
def test_the_plan_is_what_keras_builds(convnet):
    assert_plan_is_keras_s(convnet)


@pytest.mark.parametrize("convnet", presets.ALL.values(), ids=presets.ALL)
def test_the_presets_plan_is_what_keras_builds(convnet):
    assert_plan_is_keras_s(convnet)


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 6), st.sampled_from(PADDINGS))
@settings(max_examples=30)
def test_a_window_is_refused_exactly_where_keras_refuses_it(height, width, kernel, padding):
    import keras

    def keras_builds():
        with abstract_weights():
            keras.layers.Conv2D(1, kernel, padding=padding)(keras.Input((height, width, 1)))

    def planned():
        ConvNet(input_shape=(height, width, 1), blocks=(ConvBlock(filters=1, kernel=kernel, padding=padding),))

    assert refusal(planned) is None or f"a window of {kernel} does not fit into a" in refusal(planned)
    assert (refusal(planned) is None) == (refusal(keras_builds) is None)


def refusal(function):
    try:
        function()
    except ValueError as error:
        return str(error)
    return None


def test_bird_audio_by_hand():
    net = presets.bird_audio
    assert net.parameters == 770_482_865
    dense = next(layer for layer in net.plan if layer.name == "dense1")
    assert dense.formula == "6,019,376 x 128"
    assert dense.parameters / net.parameters > 0.9999
    assert net.plan[2].output_shape == (6_019_376,)  # 1487 x 253 x 16
    assert presets.bird_audio_global_pool.parameters == 160 + 2320 + 17 * 128 + 129
    assert net.plan[2].formula == ""


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_are_keras_s(activation):
    import keras

    assert keras.activations.get(activation).__name__ == activation


NET = ConvNet(input_shape=(8, 8, 1))
BLOCK = ConvBlock(filters=2)


@pytest.mark.parametrize(
    ("record", "change", "error", "says"),
    [
        (BLOCK, {"filters": 0}, ValueError, "filters=0 is not possible; it is a whole number from 1 to 2,147,483,647."),
        (BLOCK, {"kernel": 2.5}, TypeError, "kernel is a whole number, not 2.5."),
        (BLOCK, {"strides": -1}, ValueError, "strides=-1 is not possible"),
        (BLOCK, {"pool_size": True}, TypeError, "pool_size is a whole number, not True."),
        (BLOCK, {"padding": "smae"}, ValueError, "padding 'smae' is not known. Did you mean 'same'?"),
        (BLOCK, {"activation": "relo"}, ValueError, "activation 'relo' is not known. Did you mean 'relu'?"),
        (BLOCK, {"pooling": "min"}, ValueError, "pooling 'min' is not known. Known: None, max, average."),
        (BLOCK, {"dropout": 1.0}, ValueError, "dropout=1.0 is not possible; it is a share from 0 to below 1."),
        (BLOCK, {"dropout": "0.5"}, ValueError, "dropout='0.5' is not possible"),
        (NET, {"input_shape": (8, 8)}, ValueError, "input_shape=(8, 8) is not possible; it is (height, width, chan"),
        (NET, {"input_shape": 8}, TypeError, "input_shape is a tuple, not 8."),
        (NET, {"input_shape": (8, 0, 1)}, ValueError, "input width=0 is not possible"),
        (NET, {"input_shape": (8, None, 1)}, TypeError, "input width is a whole number, not None."),
        (NET, {"blocks": (3,)}, TypeError, "blocks holds ConvBlock(filters=...) only, not 3."),
        (NET, {"dense": 128}, TypeError, "dense is a tuple, not 128."),
        (NET, {"dense": (0,)}, ValueError, "dense units=0 is not possible"),
        (NET, {"outputs": 0}, ValueError, "outputs=0 is not possible"),
        (NET, {"head": "flat"}, ValueError, "head 'flat' is not known. Did you mean 'flatten'?"),
        (NET, {"dtype_policy": "float31"}, ValueError, "dtype_policy 'float31' is not known."),
        (NET, {"blocks": (ConvBlock(filters=1, kernel=9),)}, ValueError, "conv1: a window of 9 does not fit into a"),
        (
            NET,
            {"blocks": (ConvBlock(filters=1, kernel=7, pooling="max", pool_size=3),)},
            ValueError,
            'pool1: a window of 3 does not fit into a height of 2; use a window of at most 2, padding="same", or less',
        ),
    ],
)
def test_refusals_name_the_value_and_the_way_out(record, change, error, says):
    with pytest.raises(error, match=re.escape(says)):
        dataclasses.replace(record, **change)


def test_reported_networks_have_what_was_reported():
    """Parameters and bytes as the reports, or VGG's authors, state them."""

    def kernel(network, name="dense1"):
        return math.prod(next(layer for layer in network.plan if layer.name == name).parameter_shapes[0])

    assert presets.vgg16.parameters == 138_357_544
    assert presets.pooled_pixels.parameters == 34_795_608
    assert presets.gesture_cnn.parameters == 39_348_325
    assert kernel(presets.gesture_cnn) * 4 == 32 * 32 * 196 * 196 * 4 == 157_351_936
    assert kernel(presets.dwarfing_dense) == 134_217_728
    assert kernel(presets.feature_head) * 4 == 2_835_349_504
    assert kernel(presets.flattened_pixels) * 4 == 629_407_744
    assert presets.TRAINING.keys() <= presets.ALL.keys()
