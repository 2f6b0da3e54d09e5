"""The explorer as a person meets it: a real JupyterLab, a real Chromium, real estimates and real trials."""

from dataclasses import replace

import psutil
import pytest
from lab import REPOSITORY, bars, browser_page, course, jupyter_lab, run_all, slider, wait_for

from memviz.estimation.service import shared_service
from memviz.models import presets
from memviz.models.network import Network
from memviz.views.explorer.state import opening_state, with_preset
from memviz.views.text import category_text

pytestmark = pytest.mark.browser
OPENED = opening_state(presets.digits, 0)[0]
told = []  # what the page sends to the kernel


@pytest.fixture(scope="module")
def opened():
    """The notebook after Run All: the page, the console's errors, the server's process number."""
    with (
        jupyter_lab(REPOSITORY / "notebooks" / "explore.ipynb") as (address, server),
        browser_page() as (page, errors),
    ):
        page.on("websocket", lambda socket: socket.on("framesent", lambda frame: told.append(frame)))
        run_all(page, address)
        page.wait_for_selector(".memviz .js-plotly-plot .main-svg", timeout=60_000)
        wait_for(lambda: page.locator(".memviz .js-plotly-plot").count() == 2, page)
        yield page, errors, server


def expected(network, setup=None):
    """Python's own numbers for the chart, from an estimate of its own."""
    setup = setup or with_preset(OPENED, network).setup
    table = shared_service().estimate(Network.of(network), setup).profile.by_layer()
    return {category_text(c): table[c].tolist() for c in table}


def choose(page, preset):
    page.get_by_label("preset").select_option(preset)
    numbers = expected(presets.ALL[preset])
    wait_for(lambda: bars(page) == numbers, page)


def status(page):
    return page.locator(".memviz [role=status], .memviz [role=alert]").all_inner_texts()


def trial_processes(server):
    return [
        child for child in psutil.Process(server).children(recursive=True)
        if "memviz.measurement.worker" in " ".join(child.cmdline())
    ]  # fmt: skip


def test_opens_on_the_question_and_its_bars_are_pythons_numbers(opened):
    page, _, _ = opened
    preset = page.get_by_label("preset").input_value()
    assert preset in ("bird_audio", "bird_audio_pooled")
    assert bars(page) == expected(presets.ALL[preset])
    assert f"{presets.ALL[preset].parameters:,} parameters" in status(page)[0]
    assert "9.29 GiB" in status(page)[0]


def test_every_control_has_a_label(opened):
    page, _, _ = opened
    nameless = page.evaluate(
        "Array.from(document.querySelectorAll('.memviz :is(input:not([type=file]), select, textarea)'))"
        ".filter(c => !c.labels.length).length"
    )
    assert nameless == 0
    assert page.locator(".memviz .widget-hslider").count() == page.locator(".memviz .widget-hslider label").count()


def test_a_slider_moved_by_keyboard_changes_the_bars(opened):
    page, _, _ = opened
    choose(page, "digits")
    before = bars(page)
    slider(page, "1: filters").focus()
    page.keyboard.press("ArrowRight")
    first, *others = presets.digits.blocks
    wide = replace(presets.digits, blocks=(replace(first, filters=24), *others))  # the slider's next place after 16
    wider = expected(wide, with_preset(OPENED, presets.digits).setup)
    assert wider != before
    wait_for(lambda: bars(page) == wider, page)
    assert page.get_by_label("preset").input_value() == "your own"
    assert slider(page, "1: filters").get_attribute("aria-label") == "1: filters"


@pytest.mark.parametrize("reach", ["hover", "focus"])
def test_the_kernel_hears_which_knob_is_reached(opened, reach):
    page, _, _ = opened
    page.get_by_label("height").hover()
    number = page.get_by_label("optimizer").evaluate("c => c.closest('[class*=memviz-knob-]').className").split()
    (number,) = [name.removeprefix("memviz-knob-") for name in number if name.startswith("memviz-knob-")]
    told.clear()
    getattr(page.get_by_label("optimizer"), reach)()
    wait_for(lambda: any(f'{{"knob":{number}}}' in str(frame) for frame in told), page)


def test_a_list_moved_by_keyboard_is_not_taken_for_a_command_of_jupyterlab(opened):
    page, _, _ = opened
    choose(page, "digits")
    page.get_by_label("head", exact=True).focus()
    page.keyboard.press("ArrowDown")
    pooled = expected(replace(presets.digits, head="global_average"), with_preset(OPENED, presets.digits).setup)
    wait_for(lambda: bars(page) == pooled, page)
    page.keyboard.press("m")  # JupyterLab: make this cell Markdown
    page.keyboard.press("ArrowUp")
    numbers = expected(presets.digits)
    wait_for(lambda: bars(page) == numbers, page)


def test_a_mistake_is_answered_in_words_and_the_last_good_chart_stays(opened):
    page, _, _ = opened
    choose(page, "digits")
    before = bars(page)
    page.get_by_label("budget").fill("9 GBB")
    page.keyboard.press("Enter")
    wait_for(lambda: any("'9 GBB' is not a size" in text for text in status(page)), page)
    assert bars(page) == before
    page.get_by_label("budget").fill("9513 MiB")
    page.keyboard.press("Enter")
    wait_for(lambda: not any("GBB" in text for text in status(page)), page)


def test_a_mistake_is_said_at_the_knob_too(opened):
    page, _, _ = opened
    choose(page, "digits")
    kernel = page.get_by_role("spinbutton", name="stride").first
    kernel.fill("0")
    page.keyboard.press("Enter")
    said = page.locator(".memviz-knobs .memviz-wrong-text")
    wait_for(lambda: said.count() == 1 and "strides=0" in said.inner_text(), page)
    kernel.fill("1")
    page.keyboard.press("Enter")
    wait_for(lambda: said.count() == 0, page)


def test_a_click_on_a_bar_opens_the_layer_s_card(opened):
    page, _, _ = opened
    choose(page, "digits")
    bar = page.locator(".memviz .js-plotly-plot").first.locator(".bars .point path").first
    bar.click(force=True)
    wait_for(
        lambda: page.locator(".memviz-card").count() and "per example" in page.locator(".memviz-card").inner_text(),
        page,
    )
    wait_for(lambda: page.locator(".memviz-table .memviz-chosen").count() == 1, page)
    page.get_by_label("layer", exact=True).select_option("none")
    wait_for(lambda: page.locator(".memviz-card").count() == 0, page)


@pytest.mark.parametrize("width", [1280, 1920])
def test_nothing_is_cut_at_the_side(opened, width):
    page, _, _ = opened
    page.set_viewport_size({"width": width, "height": 900})
    page.wait_for_timeout(500)
    wide = page.evaluate(
        "Array.from(document.querySelectorAll('.memviz-top, .memviz-knobs, .memviz-right'))"
        ".filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.className)"
    )
    page.set_viewport_size({"width": 1440, "height": 900})
    assert wide == []


def test_a_trial_is_drawn_while_it_runs_and_ends_with_the_error(opened):
    page, _, server = opened
    choose(page, "bird_audio_pooled")
    page.get_by_role("button", name="Run trial").click()
    seen = set()

    def completed():
        # Until the trial's first record, the second figure is the estimated step.
        seen.update(value for value in course(page).get("in use", []) if value)
        return any(text.startswith("Completed") for text in status(page))

    wait_for(lambda: len(seen) >= 3 or completed(), page, 120)
    assert len(seen) >= 3
    assert not any(text.startswith("Completed") for text in status(page))
    wait_for(completed, page, 120)
    steps = int(page.get_by_label("steps").input_value())
    wait_for(lambda: len(course(page)["loss"]) == steps, page)
    row = page.locator(".memviz tr", has_text="steady step")
    wait_for(lambda: "%" in row.inner_text(), page)  # the table is told after the figure
    steady = row.inner_text()
    choose(page, "digits")
    wait_for(lambda: "not of these knobs" in page.locator(".memviz").inner_text(), page)
    assert row.inner_text() == steady
    assert trial_processes(server) == []


def test_a_cancelled_trial_leaves_no_process(opened):
    page, _, server = opened
    choose(page, "bird_audio_pooled")
    page.get_by_label("steps").fill("1000")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Run trial").click()
    wait_for(lambda: any(course(page).get("in use", [])) and trial_processes(server), page, 120)
    page.get_by_role("button", name="Cancel").click()
    wait_for(lambda: any(text.startswith("Cancelled") for text in status(page)), page)
    assert trial_processes(server) == []


def test_the_console_shows_no_errors(opened):
    assert opened[1] == []
