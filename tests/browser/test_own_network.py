"""The panel of one's own function in a real browser: its arguments are knobs, its names are text."""

import nbformat
import pytest
from lab import bars, browser_page, jupyter_lab, run_all, slider, wait_for

pytestmark = pytest.mark.browser
EVIL = "<img src=x onerror=alert(1)>"
CELL = f"""
import keras, memviz

def build(units=32, pooled=False, kind="{EVIL}"):
    image = keras.Input((16, 16, 3))
    x = keras.layers.GlobalAveragePooling2D()(image) if pooled else keras.layers.Flatten()(image)
    x = keras.layers.Dense(units, name="a_layer_with_a_very_long_name_that_does_not_fit_beside_a_bar")(x)
    return keras.Model(image, keras.layers.Dense(10, "softmax", name="output")(x))

build.__name__ = "{EVIL}"
panel = memviz.explore(build, batch_size=8)
panel
"""


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    notebook.metadata["kernelspec"] = {"display_name": "Python 3", "language": "python", "name": "python3"}
    path = tmp_path_factory.mktemp("own") / "own.ipynb"
    nbformat.write(notebook, path)
    with jupyter_lab(path) as (address, _), browser_page() as (page, errors):
        page.on("dialog", lambda dialog: errors.append(f"a dialog: {dialog.message}"))
        run_all(page, address)
        page.wait_for_selector(".memviz .js-plotly-plot .main-svg", timeout=60_000)
        wait_for(lambda: page.locator(".memviz .js-plotly-plot").count() == 2, page)
        yield page, errors


def test_the_arguments_are_knobs_with_labels(opened):
    page, _ = opened
    before = bars(page)["parameter"]
    page.get_by_role("spinbutton", name="units").focus()
    page.keyboard.press("ArrowUp")
    wait_for(lambda: bars(page)["parameter"] != before, page)
    assert bars(page)["parameter"][1] == (16 * 16 * 3 * 33 + 33) * 4
    slider(page, "units").focus()
    page.keyboard.press("ArrowRight")  # the next place of the slider after 32
    wait_for(lambda: bars(page)["parameter"][1] == (16 * 16 * 3 * 48 + 48) * 4, page)
    page.get_by_label("pooled").check()
    wait_for(lambda: bars(page)["parameter"][1] == (3 * 48 + 48) * 4, page)


def test_names_are_text_and_nothing_of_them_runs(opened):
    page, errors = opened
    page.get_by_role("button", name="Run trial").click()
    wait_for(lambda: EVIL in page.locator(".memviz .js-plotly-plot").nth(1).text_content(), page)
    assert EVIL in page.locator(".memviz-knobs").inner_text()
    assert not page.locator(".memviz img").count()
    assert page.locator(".memviz .js-plotly-plot").first.text_content().count("a_layer_with_a…")
    page.get_by_role("button", name="Cancel").click()
    assert not [error for error in errors if "favicon" not in error]
