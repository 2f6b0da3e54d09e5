"""The panel of one's own network: a model as it is, a function with knobs for its arguments."""

import json
from typing import Literal

import ipywidgets as w
import keras
import pytest
from test_panel import wait_for

import memviz
from memviz.models.network import Call
from memviz.views.explorer.own import choices_of, own_network
from memviz.views.explorer.state import arguments_of, knobs_of, opening_state, restored, saved, state_of

EVIL = "<img src=x onerror=alert(1)>"


def classifier(units=32, rate=0.5, norm=True, activation: Literal["relu", "gelu"] = "relu", shape=(28, 28)):
    return keras.Sequential([
        keras.Input(shape), keras.layers.Flatten(), keras.layers.Dense(units, activation=activation, name="hidden"),
        *([keras.layers.BatchNormalization(name="norm")] if norm else []), keras.layers.Dropout(rate),
        keras.layers.Dense(10, "softmax", name="output"),
    ])  # fmt: skip


def compiled():
    model = classifier()
    model.compile(keras.optimizers.SGD(momentum=0.9), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def opened(network, **options):
    return opening_state(own_network(network), 0, **options)[0]


def shown(network, **options):
    panel = memviz.explore(network, **options)
    wait_for(lambda: panel.bars is not None and panel.step is not None)
    return panel


@pytest.fixture(scope="module")
def panel():
    panel = shown(classifier, batch_size=64)
    yield panel
    panel.close()


def test_simple_defaults_become_knobs_and_the_others_stay():
    network = own_network(classifier)
    assert arguments_of(network) == {"units": 32, "rate": 0.5, "norm": True, "activation": "relu"}
    assert choices_of(classifier) == {"activation": ("relu", "gelu")}
    assert own_network(classifier) == network
    assert network.name == "classifier"


def test_an_argument_without_a_default_is_asked_for():
    with pytest.raises(TypeError, match=r"units has none; give it one, such as units=16"):
        memviz.explore(lambda units: None)
    with pytest.raises(TypeError, match="A network is"):
        memviz.explore(7)
    with pytest.raises(TypeError, match="colour"):
        memviz.explore(classifier, colour="red")


@pytest.mark.parametrize("network", [classifier, compiled()], ids=["function", "model"])
@pytest.mark.parametrize("optimizer", [None, "adam", keras.optimizers.SGD(0.1, momentum=0.8, clipnorm=1.0)])
def test_knobs_say_all_and_a_saved_setup_is_restored(network, optimizer):
    state = opened(network, optimizer=optimizer, device="T4")
    assert state_of(knobs_of(state), state) == state
    assert state.setup.budget_bytes == memviz.cards.card("T4").usable_bytes
    assert restored(saved(state), state) == state
    with pytest.raises(ValueError, match="saved here"):
        restored(saved(opening_state(None, 1 << 60)[0]), state)


def test_what_no_knob_shows_of_an_optimizer_stays():
    state = opened(classifier, optimizer=keras.optimizers.SGD(0.1, momentum=0.8, clipnorm=1.0))
    moved = state_of(knobs_of(state) | {"moving_average": True}, state).setup.optimizer
    assert (moved["config"]["momentum"], moved["config"]["clipnorm"], moved["config"]["use_ema"]) == (0.8, 1.0, True)
    less = state_of(knobs_of(state) | {"momentum": False}, state).setup.optimizer
    assert not less["config"].get("momentum")
    assert state_of(knobs_of(state) | {"optimizer": "lion"}, state).setup.optimizer == "lion"
    with pytest.raises(ValueError, match="accumulate=4 needs an optimizer"):
        state_of(knobs_of(opened(classifier)) | {"accumulate": 4}, opened(classifier))


def test_a_knob_of_an_argument_builds_another_model(panel):
    assert panel.estimate.layers[1].parameter_shapes == ((784, 32), (32,))
    panel.knobs.fields["argument units"].value = 48
    wait_for(lambda: panel._drawn.network.source.arguments["units"] == 48)
    expected = memviz.estimate(lambda: classifier(48), **panel.state.setup.options())
    assert panel.estimate.peak_bytes == expected.peak_bytes
    assert panel.estimate.layers[1].parameter_shapes == ((784, 48), (48,))
    panel.knobs.fields["argument norm"].value = False
    wait_for(lambda: "norm" not in [layer.name for layer in panel.estimate.layers])
    panel.knobs.fields["argument activation"].value = "gelu"
    wait_for(lambda: panel._drawn.network.source.arguments["activation"] == "gelu")
    assert "38,170 parameters" in panel._verdict.value  # 784 x 48 + 48 + 48 x 10 + 10
    assert not panel._error.value


def test_an_argument_that_cannot_be_built_is_said_and_the_last_answer_stays(panel):
    before = panel.estimate
    panel.knobs.fields["argument units"].value = -3
    wait_for(lambda: "No estimate" in panel._error.value and "classifier" in panel._error.value)
    assert panel.estimate is before
    panel.knobs.fields["argument units"].value = 40
    wait_for(lambda: panel._drawn.network.source.arguments["units"] == 40)
    assert not panel._error.value


def test_the_trial_is_of_the_same_arguments(panel):
    panel.steps.value = 3
    panel.start_button.click()
    wait_for(lambda: panel.trial is not None, 120)
    assert panel.trial.status == "completed"
    assert panel.trial.phases["steady_step"].peak_bytes == pytest.approx(panel.estimate.peak_bytes, rel=0.05)


def test_advice_is_applied(panel):
    panel.what_if.ask_button.click()
    wait_for(lambda: panel.what_if._changes.children, 120)
    button = panel.what_if._changes.children[0].children[0]
    before = panel.estimate.required_bytes
    button.click()
    wait_for(lambda: panel.estimate.required_bytes < before)


def test_a_model_is_shown_as_it_is_and_stays_so():
    model = compiled()
    panel = shown(model)
    expected = memviz.estimate(model, batch_size=32, device="reference")
    assert panel.estimate.peak_bytes == expected.peak_bytes
    assert "its own optimizer" in panel._verdict.value
    assert [panel.knobs.fields[name].index for name in ("optimizer", "dtype_policy")] == [0, 0]  # no empty lists
    panel.knobs.fields["optimizer"].value = "adam"
    wait_for(lambda: panel.state.setup.optimizer == "adam" and panel._drawn is panel.state)
    assert panel.estimate.peak_bytes > expected.peak_bytes
    assert isinstance(model.optimizer, keras.optimizers.SGD)
    assert json.loads(saved(panel.state))["network"] == {}
    panel.close()


def html_of(widget):
    """The texts of all HTML below a widget."""
    own = [widget.value] if isinstance(widget, w.HTML) else []
    return own + [text for child in getattr(widget, "children", ()) for text in html_of(child)]


def test_names_are_text_everywhere():
    def build(kind=EVIL):
        return classifier()

    build.__name__ = EVIL
    panel = shown(build)
    panel.compare.keep_button.click()
    panel.knobs.fields["argument kind"].value = f"{EVIL}!"
    wait_for(lambda: "!" in panel.compare._said.value)
    panel.steps.value = 3
    panel.start_button.click()
    wait_for(lambda: panel.trial is not None and panel.course is not None and "img" in panel.course.layout.title.text)
    assert sum("&lt;img" in text for text in html_of(panel.box)) >= 2
    for text in [*html_of(panel.box), panel.course.to_json()]:
        assert "<img" not in text
    panel.close()


def test_a_layer_s_name_that_tensorflow_refuses_is_said_as_text():
    panel = memviz.explore(keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, name=EVIL)]))
    wait_for(lambda: "scope name" in panel._error.value)
    assert "&lt;img" in panel._error.value
    assert "<img" not in panel._error.value
    panel.start_button.click()  # and the panel lives on
    wait_for(lambda: "did not start" in panel._status.value or panel.trial is not None, 120)
    assert not [text for text in html_of(panel.box) if "<img" in text]
    panel.close()


def test_what_takes_no_arguments_has_no_knobs():
    assert arguments_of(own_network(Call(classifier, {"units": 8}))) == {} == arguments_of(own_network(compiled()))
