"""The panel: knobs on the left, the verdict, the two figures and the trial on the right, the table below.

Threads only put plain records on a queue; one consumer writes figures, sentences and tables.
"""

from __future__ import annotations

import atexit
import html
import queue
import threading
import time
from copy import deepcopy
from dataclasses import replace
from typing import Any

import ipywidgets as w
import plotly.graph_objects as go

from memviz.child.machine import available_bytes
from memviz.estimation.result import Estimate
from memviz.estimation.service import shared_service
from memviz.models import presets
from memviz.models.convnet import ConvNet
from memviz.models.network import Network
from memviz.profile import MemoryProfile
from memviz.views import figures, tables
from memviz.views.explorer import state as words
from memviz.views.explorer.knobs import Knobs
from memviz.views.explorer.state import ExplorerState, TrialRun
from memviz.views.explorer.style import Manners
from memviz.views.explorer.work import LatestWorker, run_trial

FRAME_SECONDS = 0.3  # between two drawings of a running trial
SETTLE_SECONDS = 0.06  # the browser paints the layers' chart first, then the trial's


class Explorer:
    """An open panel. `state`, `estimate` and `trial` are what it shows; `close` ends its trial and its threads."""

    def __init__(self, network: ConvNet | None = None) -> None:
        self.state, notice = words.opening_state(network, available_bytes())
        self._base = self.state.network
        self.estimate: Estimate | None = None
        self._answered: ExplorerState | None = None  # whose estimate that is, and what is drawn
        self._run: TrialRun | None = None
        self._handle: Any = None  # the running trial
        self._newest = self._stale = 0  # numbers of questions: the latest one, and the one whose elders are stale
        self._closed = False
        self._queue: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self.knobs = Knobs(self.state, self._moved, self._preset)
        self._make_widgets(notice)
        self._worker = LatestWorker(_answer, lambda *answer: self._queue.put(("answer", answer)))
        self._newest = self._worker.ask(self.state.question)
        self._consumer = threading.Thread(target=self._consume, name="memviz-panel", daemon=True)
        self._consumer.start()
        atexit.register(self.close)

    @property
    def trial(self) -> Any:
        """The last trial that ended, or None."""
        return self._run.trial if self._run else None

    def close(self) -> None:
        """End the trial, the threads and the widgets."""
        self._closed = True
        atexit.unregister(self.close)
        self._worker.close()
        self._cancel()
        self._queue.put(("close", None))
        if threading.current_thread() is not self._consumer:
            self._consumer.join(timeout=5)
        _close_tree(self.box)

    def _repr_mimebundle_(self, **options: Any) -> Any:
        return self.box._repr_mimebundle_(**options)

    # The widgets

    def _make_widgets(self, notice: str) -> None:
        self._notice, self._error, self._verdict = w.HTML(_note(notice)), w.HTML(), w.HTML(_WAITING)
        self._notice.layout.display = "" if notice else "none"
        self._complain("")
        self._table, self._phases, self._status = w.HTML(), w.HTML(), w.HTML()
        self.bars: go.FigureWidget | None = None  # made with the first answer, see _draw_bars
        self.course: go.FigureWidget | None = None
        self._charts, self._course_box = w.VBox(), w.VBox()
        self.start_button = w.Button(description="Run trial", button_style="primary", icon="play")
        self.cancel_button = w.Button(description="Cancel", icon="stop", disabled=True)
        steps = words.default_steps(self.state.network)
        self.steps = w.BoundedIntText(description="steps", value=steps, min=3, max=1000)
        self.progress = w.IntProgress(description="progress", min=0, max=steps)
        self.start_button.on_click(lambda _: self._start())
        self.cancel_button.on_click(lambda _: self._cancel())
        controls = w.HBox([self.start_button, self.cancel_button, self.steps, self.progress])
        controls.add_class("memviz-controls")
        trial = w.VBox([controls, self._status, self._course_box, self._phases])
        right = w.VBox([self._notice, self._error, self._verdict, self.knobs.display, self._charts, trial])
        right.add_class("memviz-right")
        top = w.HBox([self.knobs.box, right])
        top.add_class("memviz-top")
        self.box = w.VBox([Manners(), top, self._table])
        self.box.add_class("memviz")

    # Callbacks: in the kernel's thread, they put records on the queue

    def _moved(self) -> None:
        try:
            state = words.state_of(self.knobs.values(), self._base)
        except (ValueError, TypeError) as error:
            self._queue.put(("invalid", str(error)))
            return
        self.knobs.mark(state)
        self._queue.put(("state", state))

    def _preset(self, name: str) -> None:
        self._base = presets.ALL[name]
        self.knobs.show(replace(self.state, network=self._base))
        self.steps.value = words.default_steps(self._base)
        self._moved()

    def _start(self) -> None:
        if not self.start_button.disabled:
            self.start_button.disabled = True
            known = self.estimate if self._answered and self._answered.question == self.state.question else None
            run = TrialRun(state=self.state, steps=self.steps.value, estimate=known)
            self._queue.put(("run", run))
            run_trial(run.state, run.steps, self._hear)

    def _hear(self, kind: str, value: Any) -> None:
        """A record from the trial's thread."""
        if kind == "started" and self._closed:
            value.cancel()
        self._queue.put((kind, value))

    def _cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()

    # The consumer: the one thread that writes

    def _consume(self) -> None:
        _ = go.FigureWidget  # takes a second to import: now, while the first estimate is under way
        drawn_at, due_at = 0.0, None  # when the trial's figure was drawn, and when it is to be drawn next
        while True:
            records = _take(self._queue, None if due_at is None else max(0.0, due_at - time.monotonic()))
            if any(kind == "close" for kind, _ in records):
                return
            try:
                for kind, value in records:
                    getattr(self, f"_on_{kind}")(value)
                now = time.monotonic()
                if records:
                    calm = all(kind == "event" for kind, _ in records)
                    soon = max(drawn_at + FRAME_SECONDS, now) if calm else now + SETTLE_SECONDS
                    due_at = soon if due_at is None else min(due_at, soon)
                if due_at is not None and now >= due_at:
                    drawn_at, due_at = now, None
                    self._draw_trial()
            except Exception as error:  # it would vanish in JupyterLab
                self._complain(f"The panel failed: {type(error).__name__}: {error}")

    def _on_state(self, state: ExplorerState) -> None:
        self.state = state
        self._complain("")
        if self._answered is not None and self._answered.question == state.question:
            self._newest = self._stale = self._worker.skip()
            self._draw_bars(state)
        else:
            self._newest = self._worker.ask(state.question)

    def _on_invalid(self, sentence: str) -> None:
        self._newest = self._stale = self._worker.skip()
        self._complain(f"{sentence} The chart below still shows the last setup that works.")

    def _on_answer(self, answer: tuple[int, Any, Any]) -> None:
        number, question, result = answer
        if number < self._stale:
            return
        if isinstance(result, Exception):
            if number == self._newest:
                self._complain(f"No estimate: {result}")
            if self.bars is None:
                self._verdict.value = ""
                self._show_bars(figures.layer_figure(None))
            return
        self.estimate = result
        if self._run is not None and self._run.state.question == question:
            self._run = replace(self._run, estimate=result)
        self._draw_bars(replace(self.state, network=question[0], setup=question[1]))

    def _on_run(self, run: TrialRun) -> None:
        self._run = run
        self.progress.bar_style = "info"
        self.progress.max, self.progress.value = run.steps, 0

    def _on_started(self, handle: Any) -> None:
        self._handle = handle
        self.cancel_button.disabled = False

    def _on_event(self, event: Any) -> None:
        assert self._run is not None
        self._run = replace(self._run, events=(*self._run.events, event))

    def _on_ended(self, trial: Any) -> None:
        self._ended("success" if trial.status == "completed" else "warning", trial=trial)

    def _on_refused(self, error: Exception) -> None:
        self._ended("danger", refused=str(error))

    def _ended(self, style: str, **how: Any) -> None:
        assert self._run is not None
        self._run, self._handle = replace(self._run, **how), None
        self.start_button.disabled, self.cancel_button.disabled = False, True
        self.progress.bar_style = style

    def _complain(self, sentence: str) -> None:
        self._error.value = _alert(sentence) if sentence else ""
        self._error.layout.display = "" if sentence else "none"

    def _draw_bars(self, state: ExplorerState) -> None:
        assert self.estimate is not None
        self._answered = state
        profile = self.estimate.phases[state.phase].profile or self.estimate.profile
        self._show_bars(figures.layer_figure(profile, log=state.log, units=state.units))
        fits = {True: "memviz-fits", False: "memviz-lacks", None: ""}[words.fits(state, self.estimate)]
        sentence = html.escape(words.verdict(state, self.estimate))
        self._verdict.value = f'<p class="memviz-verdict {fits}" role="status">{sentence}</p>'
        table = tables.layer_table(profile, state.network)
        self._table.value = (
            '<div class="memviz-wide" tabindex="0">'
            + tables.layer_table_html(table, state.units)
            + "</div>"
            + _not_counted(profile)
        )

    def _show_bars(self, figure: go.Figure) -> None:
        if self.bars is None:  # complete before it is a widget: earlier changes can be lost (plotly PR 4956)
            self.bars = go.FigureWidget(figure)
            self._charts.children = (self.bars,)
        else:
            _update(self.bars, figure)

    def _draw_trial(self) -> None:
        if self.bars is None:
            return
        run, units = self._run, self.state.units
        sentence = words.trial_sentence(run, units)
        status = f'<p role="status">{html.escape(sentence)}</p>'
        if run is not None and run.refused:  # nothing was measured: the levels of the present knobs stay
            run, status = None, _alert(sentence)
        estimate, state = (self.estimate, self.state) if run is None else (run.estimate, run.state)
        phases = {} if estimate is None else estimate.phases
        figure = figures.trial_figure(
            run.events if run else (), estimated={name: phase.peak_bytes for name, phase in phases.items()},
            budget_bytes=state.setup.budget_bytes, units=units, title=words.trial_title(run, self.state),
            ended=words.ending_text(run),
        )  # fmt: skip
        if self.course is None:
            self.course = go.FigureWidget(figure)
            self._course_box.children = (self.course,)
        else:
            _update(self.course, figure)
        self._status.value, self.progress.value = status, run.steps_done if run else 0
        table = tables.phase_table(phases, run.measured() if run else {})
        stale = "memviz-stale" if run and run.state.question != self.state.question else ""
        need = words.need_sentence(estimate, units) if estimate else ""
        self._phases.value = f'<div class="{stale}">{tables.phase_table_html(table, units)}{_note(need)}</div>'


def _answer(question: tuple[ConvNet, Any]) -> Estimate:
    return shared_service().estimate(Network.of(question[0]), question[1])


def _take(records: queue.SimpleQueue[tuple[str, Any]], wait: float | None) -> list[tuple[str, Any]]:
    """Everything on the queue: at least one record, or none when ``wait`` seconds are over."""
    taken = []
    try:
        taken.append(records.get(timeout=wait))
        while True:
            taken.append(records.get_nowait())
    except queue.Empty:
        return taken


def _update(widget: go.FigureWidget, figure: go.Figure) -> None:
    """Make a widget show a figure with the same traces, in one message; only what differs travels."""
    parts = [*zip(widget.data, figure.data, strict=True), (widget.layout, figure.layout)]
    with widget.batch_update():
        for shown, wanted in parts:
            now, then = shown.to_plotly_json(), wanted.to_plotly_json()
            shown.update({name: value for name, value in then.items() if now.get(name) != value}, overwrite=True)
    # What a view that opens later starts from, for instance after the page was loaded again; plotly itself refreshes
    # it only when the widget is displayed on its own, not inside a box.
    widget._widget_data, widget._widget_layout = deepcopy(widget._data), deepcopy(widget._layout_obj._props)


def _close_tree(widget: w.Widget) -> None:
    for part in (*getattr(widget, "children", ()), getattr(widget, "style", None), widget.layout):
        if isinstance(part, w.DOMWidget):
            _close_tree(part)
        elif isinstance(part, w.Widget):
            part.close()
    widget.close()


def _note(text: str) -> str:
    return f'<p class="memviz-note">{html.escape(text)}</p>' if text else ""


def _not_counted(profile: MemoryProfile) -> str:
    return _note("Not counted: " + " ".join(profile.not_counted)) if profile.not_counted else ""


def _alert(text: str) -> str:
    return f'<p class="memviz-alert" role="alert">{html.escape(text)}</p>'


_WAITING = (
    '<p class="memviz-verdict" role="status">Starting TensorFlow in a child process for the first estimate ...</p>'
)
