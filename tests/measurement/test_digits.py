import keras
import numpy as np
import pytest
from sklearn.datasets import load_digits

from memviz import presets
from memviz.measurement.device import _taken_over
from memviz.measurement.digits import Batches, resized
from memviz.models.abstract import abstract_weights
from memviz.models.convnet import ConvNet
from memviz.models.training import batch_specs

DIGITS = load_digits()


def batches(network, batch_size, loss) -> Batches:
    with abstract_weights():  # nobody looks at them, and those of bird_audio take 9 GB
        model = network.build() if isinstance(network, ConvNet) else network
        model.compile(loss=loss)
        return Batches(*batch_specs(model, batch_size), [output.shape[-1] for output in model.outputs])


def dense(units, activation, inputs=(5,)):
    return keras.Sequential([keras.Input(inputs), keras.layers.Dense(units, activation=activation)])


def test_every_digit_comes_once_and_is_itself():
    data = batches(presets.digits, 599, "sparse_categorical_crossentropy")
    steps = [data.batch(n) for n in range(4)]
    images = np.concatenate([x[:, ::4, ::4, 0] for x, _ in steps[:3]]) * 16
    labels = np.concatenate([y for _, y in steps[:3]])
    shown = sorted(zip(labels, images.reshape(-1, 64).astype(int).tolist(), strict=True))
    assert shown == sorted(zip(DIGITS.target, DIGITS.data.astype(int).tolist(), strict=True))
    assert np.array_equal(steps[3][0], steps[0][0])  # then it starts again
    assert "1,797 handwritten digits" in data.description


def test_pixels_are_the_nearest_ones():
    image = np.arange(6, dtype=float).reshape(1, 2, 3)
    assert resized(image, 4, 3)[0].tolist() == [[0, 1, 2], [0, 1, 2], [3, 4, 5], [3, 4, 5]]
    assert resized(image, 1, 2)[0].tolist() == [[0, 1]]


def test_the_batch_fits_bird_audio_and_is_taken_over_without_a_copy():
    features, labels = batches(presets.bird_audio, 2, "binary_crossentropy").batch(0)
    assert features.shape == (2, 1491, 257, 1)
    assert features.dtype == labels.dtype == np.float32
    assert labels.shape == (2, 1)
    assert features.ctypes.data % 64 == labels.ctypes.data % 64 == 0
    assert _taken_over(features)._numpy_internal().ctypes.data == features.ctypes.data


@pytest.mark.parametrize(
    ("units", "activation", "loss", "expected"),
    [
        (12, "softmax", "sparse_categorical_crossentropy", lambda d: d),
        (4, "softmax", "sparse_categorical_crossentropy", lambda d: d % 4),
        (1, "sigmoid", "binary_crossentropy", lambda d: (d >= 5)[:, None]),
        (3, "softmax", "categorical_crossentropy", lambda d: np.eye(3)[d % 3]),
    ],
)
def test_labels_fit_the_output(units, activation, loss, expected):
    image = (8, 8, 3)
    model = keras.Sequential([keras.Input(image), keras.layers.Flatten(), keras.layers.Dense(units, activation)])
    features, labels = batches(model, 50, loss).batch(1)
    pixels = {image.tobytes(): digit for image, digit in zip(DIGITS.images.astype(int), DIGITS.target, strict=True)}
    digits = np.array([pixels[np.rint(x[..., 2] * 16).astype(int).tobytes()] for x in features])
    assert np.array_equal(labels, expected(digits))


def test_an_image_is_its_own_target():
    model = keras.Sequential([keras.Input((16, 16, 1)), keras.layers.Conv2D(2, 3, padding="same")])
    features, labels = batches(model, 3, "mse").batch(0)
    assert labels.shape == (3, 16, 16, 2)
    assert np.array_equal(labels[..., 1], features[..., 0])


def test_whole_number_pixels_go_to_255():
    model = keras.Sequential([keras.Input((8, 8, 1), dtype="uint8"), keras.layers.Rescaling(1 / 255)])
    features, _ = batches(model, 300, "mse").batch(0)
    assert features.dtype == np.uint8
    assert (features.min(), features.max()) == (0, 255)


def test_other_inputs_get_the_same_random_values_every_time():
    first, again = (batches(dense(1, None), 6, "mse").batch(0) for _ in range(2))
    assert np.array_equal(first[0], again[0])
    assert np.array_equal(first[1], again[1])
    assert first[0].min() >= 0
    assert first[0].max() < 1
    assert "random" in batches(dense(1, None), 6, "mse").description


def test_token_inputs_stay_inside_every_vocabulary_and_several_inputs_keep_their_structure():
    words, amounts = keras.Input((7,), dtype="int32", name="words"), keras.Input((2,), name="amounts")
    embedded = keras.layers.Flatten()(keras.layers.Embedding(2, 3)(words))
    model = keras.Model({"words": words, "amounts": amounts}, keras.layers.Dense(1)(embedded))
    features, _ = batches(model, 4, "mse").batch(0)
    assert set(features) == {"words", "amounts"}
    assert set(np.unique(features["words"])) <= {0, 1}
    assert features["words"].dtype == np.int32
