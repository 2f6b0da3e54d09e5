"""What lies below the charts: why and what if, A beside B, and what can be taken along. Each is a box and `show`."""

from __future__ import annotations

import base64
import html
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ipywidgets as w
import pandas as pd

from memviz.advice.advise import Advice, Change, advise
from memviz.estimation.result import Estimate
from memviz.models.convnet import ConvNet
from memviz.models.script import keras_script
from memviz.profile import MemoryProfile
from memviz.setup import TrainingSetup
from memviz.views import page, tables
from memviz.views.explorer.state import ExplorerState, restored, saved
from memviz.views.explorer.words import compared, why

MOST_CHANGES = 3
Apply = Callable[[ExplorerState], None]


class _CancelledError(Exception):
    pass


def shown_profile(state: ExplorerState, estimate: Estimate) -> MemoryProfile:
    """The profile of the phase that is on show."""
    return estimate.phases[state.phase].profile or estimate.profile


class WhatIf:
    """The largest contributors in a sentence each; on request the changes that help most, each with a button."""

    def __init__(self, apply: Apply, put: Callable[..., None]) -> None:
        """put: called with a function and its values, to be run in the thread that writes."""
        self._apply, self._put = apply, put
        self._state: ExplorerState | None = None
        self._asked: ExplorerState | None = None  # whose changes are sought, or shown
        self._why, self._said = w.HTML(), w.HTML()
        self.ask_button = w.Button(description="What would help?", icon="search")
        self.cancel_button = w.Button(description="Stop", icon="stop", disabled=True)
        self.ask_button.on_click(lambda _: self._ask())
        self.cancel_button.on_click(lambda _: self._cancel())
        self._changes = w.VBox()
        buttons = w.HBox([self.ask_button, self.cancel_button, self._said]).add_class("memviz-controls")
        self.box = w.VBox([self._why, buttons, self._changes])

    def show(self, state: ExplorerState, estimate: Estimate) -> None:
        """What holds most now; changes that were found for other knobs go."""
        self._state = state
        items = why(estimate.layers, shown_profile(state, estimate), state.units)
        self._why.value = f"<ol class='memviz-list'>{''.join(f'<li>{html.escape(each)}.</li>' for each in items)}</ol>"
        if self._asked is not None and self._asked.question != state.question:
            self._cancel()

    def _ask(self) -> None:
        if self._state is None or self.ask_button.disabled:
            return
        self.ask_button.disabled, self.cancel_button.disabled = True, False
        self._asked = self._state
        self._say("Estimating one change after the other ...")
        threading.Thread(target=self._seek, args=(self._state,), name="memviz-advice", daemon=True).start()

    def _cancel(self) -> None:
        self._asked = None
        self._say("")
        self._changes.children = ()

    def _seek(self, state: ExplorerState) -> None:
        try:
            found = advise(state.network, on_change=lambda c: self._heard(state, c), **state.setup.options())
        except _CancelledError:
            self._put(self._found, state, None, "")
        except Exception as error:  # a sentence for the panel
            self._put(self._found, state, None, str(error))
        else:
            self._put(self._found, state, found, "")

    def _heard(self, state: ExplorerState, change: Change) -> None:
        if self._asked is not state:
            raise _CancelledError
        self._put(self._say, f"Estimated: {change.what} ...")

    def _say(self, text: str) -> None:
        self._said.value = tables.paragraph(text, "status")

    def _found(self, state: ExplorerState, advice: Advice | None, error: str) -> None:
        self.ask_button.disabled, self.cancel_button.disabled = False, True
        if self._asked is not state:
            return  # cancelled, or the knobs were moved meanwhile
        if advice is None:
            self._say(error)
            return
        best = [*advice.changes[:MOST_CHANGES], *advice.combinations]
        self._changes.children = [self._row(state, change) for change in best]
        self._say("" if best else "No change that memviz knows saves 1 % or more.")

    def _row(self, state: ExplorerState, change: Change) -> w.Widget:
        button = w.Button(description="Apply", tooltip=change.what)
        setup = TrainingSetup.create(**{**change.options, "budget": state.setup.budget_bytes})
        target = replace(state, network=change.network, setup=setup)
        button.on_click(lambda _: self._apply(target))
        return w.HBox([button, w.HTML(tables.paragraph(change.text(state.units), "change"))]).add_class("memviz-change")


class Compare:
    """A setup kept as A beside what the knobs say now, B."""

    def __init__(self, apply: Apply, put: Callable[..., None]) -> None:
        """put: as of `WhatIf`."""
        self._now: tuple[ExplorerState, Estimate] | None = None
        self._kept: tuple[ExplorerState, Estimate] | None = None
        self.keep_button = w.Button(description="Keep as A", icon="thumb-tack")
        self.back_button = w.Button(description="Back to A", icon="undo", disabled=True)
        self.forget_button = w.Button(description="Forget A", icon="times", disabled=True)
        self.keep_button.on_click(lambda _: put(self._keep, self._now))
        self.back_button.on_click(lambda _: self._kept and apply(self._kept[0]))
        self.forget_button.on_click(lambda _: put(self._keep, None))
        self._said, self._table = w.HTML(), w.HTML()
        buttons = w.HBox([self.keep_button, self.back_button, self.forget_button]).add_class("memviz-controls")
        self.box = w.VBox([buttons, self._said, self._table])
        self._draw()

    def show(self, state: ExplorerState, estimate: Estimate) -> None:
        """B is this from now on."""
        self._now = state, estimate
        self._draw()

    def _keep(self, kept: tuple[ExplorerState, Estimate] | None) -> None:
        self._kept = kept
        self.back_button.disabled = self.forget_button.disabled = kept is None
        self._draw()

    def _draw(self) -> None:
        if self._kept is None or self._now is None:
            text = "Keep the present setup as A, then move the knobs: what differs is shown here, layer by layer."
            self._said.value, self._table.value = tables.paragraph(text), ""
            return
        (before, was), (after, now) = self._kept, self._now
        self._said.value = tables.paragraph(compared(before, was, after, now), "status")
        table = tables.difference_table(shown_profile(after, was), shown_profile(after, now))
        self._table.value = tables.difference_table_html(table, after.units) if table.any(axis=None) else ""


class Keep:
    """What can be taken along: Keras code, the setup as JSON, the table as CSV, the figures as HTML."""

    def __init__(self, apply: Apply, complain: Callable[[str], None], put: Callable[..., None]) -> None:
        """complain: called with a sentence. put: as of `WhatIf`."""
        self._apply, self._complain, self._put = apply, complain, put
        self._now: tuple[ExplorerState, Estimate] | None = None
        self.code = w.Textarea(description="Keras code", rows=14).add_class("memviz-code")
        self.copy_button = w.Button(description="Copy code", icon="copy").add_class("memviz-copy")
        self._links = w.HTML()
        self.html_button = w.Button(description="Figures as HTML", icon="file")
        self.html_button.on_click(lambda _: put(self._write_html))
        self.upload = w.FileUpload(description="Restore a setup", accept=".json", multiple=False)
        self.upload.observe(lambda change: self._restore(change["new"]), names="value")
        self._said = w.HTML()
        buttons = w.HBox([self.copy_button, self._links, self.html_button, self.upload]).add_class("memviz-controls")
        self.box = w.VBox([buttons, self._said, self.code])

    def show(self, state: ExplorerState, estimate: Estimate, table: pd.DataFrame) -> None:
        """What is taken along is this from now on. table: of the layers."""
        self._now = state, estimate
        name = state.network.name
        files = [("Setup as JSON", f"{name}.json", saved(state)), ("Table as CSV", f"{name}.csv", table.to_csv())]
        self._links.value = " &nbsp; ".join(_download(*each) for each in files)
        network, setup = state.question
        if isinstance(network, ConvNet):
            self.code.value = keras_script(network, setup)
        else:  # whose code is the user's own
            self.code.layout.display = self.copy_button.layout.display = "none"

    def _write_html(self) -> None:
        if self._now is None:
            return
        state, estimate = self._now
        path = Path(f"memviz-{state.network.name}.html").resolve()
        profile, budget = shown_profile(state, estimate), state.setup.budget_bytes
        try:
            page.save_html(profile, path, budget_bytes=budget, units=state.units)
        except OSError as error:
            self._complain(f"The figures cannot be written: {error}")
            return
        self._said.value = tables.paragraph(f"Written: {path}", "status")

    def _restore(self, files: tuple[dict[str, Any], ...]) -> None:
        for file in files:
            try:
                text = bytes(file["content"]).decode("utf-8", "replace")
                if self._now is not None:
                    self._apply(restored(text, self._now[0]))
            except ValueError as error:
                self._put(self._complain, str(error))
        self.upload.value = ()


def _download(text: str, name: str, content: str) -> str:
    data = base64.b64encode(content.encode()).decode("ascii")
    return (
        f'<a download="{html.escape(name)}" href="data:application/octet-stream;base64,{data}">{html.escape(text)}</a>'
    )
