"""The panel: knobs on the left, the verdict, the two figures and the trial on the right, the table below.

Callbacks and threads only put plain records on a queue; one consumer writes figures, sentences and tables.
"""

from __future__ import annotations

import atexit
import contextlib
import queue
import threading
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import lru_cache
from typing import Any

import ipywidgets as w
import plotly.graph_objects as go

from memviz.advice.fits import verdict_of
from memviz.child.machine import available_bytes
from memviz.estimation.result import Estimate
from memviz.estimation.service import shared_service
from memviz.measurement.result import Trial, TrialEvent
from memviz.measurement.trial import RunningTrial
from memviz.models import presets
from memviz.models.convnet import ConvNet
from memviz.models.network import Network
from memviz.setup import TrainingSetup
from memviz.views import figures, tables
from memviz.views.explorer import state as words
from memviz.views.explorer.knobs import Knobs
from memviz.views.explorer.state import TrialRun
from memviz.views.explorer.style import Manners

# Between two drawings of the trial's chart; and after a change the browser paints the layers' chart first.
FRAME_SECONDS = 0.2


class Chart(go.FigureWidget):
    """plotly's widget tells the browser of itself first and sends its data after: a busy page then draws it empty."""

    def open(self) -> None:
        """Tell the browser, once there are data; to be called again when the widget is made."""
        if self._widget_data:
            super().open()


class Explorer:
    """An open panel. `state`, `estimate` and `trial` are what it shows; `close` ends its trial and its threads."""

    def __init__(self, network: ConvNet | None = None) -> None:
        self.state, notice = words.opening_state(network, available_bytes())
        self.estimate: Estimate | None = None
        self.trial: Trial | None = None  # the last one that ended
        self.bars: go.FigureWidget | None = None  # made with the first answer
        self.step: go.FigureWidget | None = None  # the estimated step, until a trial has run
        self.course: go.FigureWidget | None = None
        self._base = self.state.network  # what no knob sets is as here
        self._wanted = self._drawn = self.state  # what the knobs say, and whose estimate is drawn
        self._looked_ahead_from: tuple[words.ExplorerState, w.Widget | None] | None = None
        self._run = TrialRun(state=self.state)
        self._handle: RunningTrial | None = None
        self._closed = self._mistaken = False
        self._records: queue.SimpleQueue[tuple[Callable[..., None], Any]] = queue.SimpleQueue()
        self._make_widgets(notice)
        self._put(self._draw_bars)
        self._consumer = threading.Thread(target=self._consume, name="memviz-panel", daemon=True)
        self._consumer.start()
        atexit.register(self.close)

    def close(self) -> None:
        """End the trial, the threads and the widgets."""
        self._closed = True
        atexit.unregister(self.close)
        self._cancel()
        self._put(self._complain, "")
        self._consumer.join(timeout=2)
        for widget in (self.box, self.step, self.course):  # of the figures one is not in the box
            if widget is not None:
                _close_tree(widget)

    def _repr_mimebundle_(self, **options: Any) -> Any:
        return self.box._repr_mimebundle_(**options)

    def _make_widgets(self, notice: str) -> None:
        self.knobs = Knobs(self.state, self._moved)
        self.start_button = w.Button(description="Run trial", button_style="primary", icon="play")
        self.cancel_button = w.Button(description="Cancel", icon="stop", disabled=True)
        self.start_button.on_click(lambda _: self._start())
        self.cancel_button.on_click(lambda _: self._cancel())
        steps = words.default_steps(self.state.network)
        self.steps = w.BoundedIntText(description="steps", value=steps, min=3, max=1000)
        self.progress = w.IntProgress(description="progress")
        self._error, self._status, self._phases, self._table = w.HTML(), w.HTML(), w.HTML(), w.HTML()
        self._verdict = w.HTML(
            tables.paragraph("Starting TensorFlow in a child process for the first estimate ...", "verdict")
        )
        self._bars_box, self._course_box = w.VBox(), w.VBox()
        controls = w.HBox([self.start_button, self.cancel_button, self.steps, self.progress])
        right = w.VBox([
            w.HTML(tables.paragraph(notice)), self._error, self._verdict, self.knobs.display, self._bars_box,
            controls.add_class("memviz-controls"), self._status, self._course_box, self._phases,
        ]).add_class("memviz-right")  # fmt: skip
        top = w.HBox([self.knobs.box, right]).add_class("memviz-top")
        self.box = w.VBox([Manners(lambda number: self._put(self._reach, number)), top, self._table]).add_class(
            "memviz"
        )

    # Callbacks, in the kernel's thread, and the thread that waits for a trial: they put records on the queue

    def _put(self, act: Callable[..., None], *values: Any) -> None:
        self._records.put((act, values))

    def _moved(self, preset: str | None) -> None:
        if preset is not None:
            self._base = presets.ALL[preset]
            self.knobs.show(replace(self._wanted, network=self._base))
            self.steps.value = words.default_steps(self._base)
        try:
            self._wanted = words.state_of(self.knobs.values(), self._base)
            self._mistaken = False
        except (ValueError, TypeError) as error:
            self._mistaken = True  # what the knobs say cannot be trained
            self._put(self._complain, f"{error} The chart below still shows the last setup that works.")
        else:
            self.knobs.mark(self._wanted)
            self._put(self._follow)

    def _start(self) -> None:
        if not self.start_button.disabled and not self._mistaken:
            self.start_button.disabled = True
            self._put(self._begin)

    def _train(self, run: TrialRun) -> None:
        try:
            self._handle = RunningTrial(
                *run.state.question, steps=run.steps, on_event=lambda event: self._put(self._add, event)
            )
            if self._closed:
                self._cancel()
            self._put(self._end, self._handle.wait())
        except Exception as error:  # a sentence for the panel
            self._put(self._end, None, str(error))

    def _cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()

    # The consumer: the one thread that writes

    def _consume(self) -> None:
        due_at = None  # when the trial's figure is to be drawn next
        while True:
            try:
                with contextlib.suppress(queue.Empty):
                    act, values = self._records.get(timeout=due_at and max(0.0, due_at - time.monotonic()))
                    if self._closed:
                        return
                    act(*values)
                if due_at is None:
                    due_at = time.monotonic() + FRAME_SECONDS
                elif time.monotonic() >= due_at:
                    due_at = None
                    self._draw_trial()
                    self._look_ahead()
            except Exception as error:  # it would vanish in JupyterLab
                self._complain(f"The panel failed: {type(error).__name__}: {error}")

    def _complain(self, sentence: str) -> None:
        self._error.value = tables.paragraph(sentence, "alert")

    def _follow(self) -> None:
        if self.state is not self._wanted:
            self.state = self._wanted
            self._complain("")
            self._draw_bars()

    def _reach(self, number: int) -> None:
        self.knobs.reached = self.knobs.all[number]
        self._look_ahead()

    def _look_ahead(self) -> None:
        """Have the answers ready to the next moves of the knob under the hand; never while a trial is measured."""
        state, knob = self.state, self.knobs.reached
        if self._looked_ahead_from == (state, knob) or self.start_button.disabled or state is not self._wanted:
            return  # known, or about to change
        moves = self.knobs.ahead()

        def ask() -> None:
            for values in moves:
                if self._closed or self._wanted is not state or self.knobs.reached is not knob:
                    return
                with contextlib.suppress(Exception):  # nobody has asked yet
                    _estimate(*words.state_of(values, self._base).question)

        threading.Thread(target=ask, name="memviz-ahead", daemon=True).start()
        self._looked_ahead_from = (state, knob)

    def _begin(self) -> None:
        known = self.estimate if self._drawn.question == self.state.question else None
        self._run = TrialRun(state=self.state, steps=self.steps.value, estimate=known)
        self.progress.max, self.progress.bar_style = self._run.steps, "info"
        threading.Thread(target=self._train, args=(self._run,), name="memviz-trial", daemon=True).start()

    def _add(self, event: TrialEvent) -> None:
        self._run = replace(self._run, events=(*self._run.events, event))
        self.cancel_button.disabled = False

    def _end(self, trial: Trial | None, refused: str = "") -> None:
        self.trial, self._run = trial, replace(self._run, trial=trial, refused=refused)
        self.start_button.disabled, self.cancel_button.disabled = False, True
        self.progress.bar_style = "success" if trial and trial.status == "completed" else "warning"

    def _draw_bars(self) -> None:
        state = self.state
        try:
            self.estimate, self._drawn = _estimate(*state.question), state
        except Exception as error:  # the last good chart stays
            self._complain(f"No estimate: {error}")
            self._verdict.value = self._verdict.value if self.bars else ""
            return
        if self._closed:
            return
        profile = self.estimate.phases[state.phase].profile or self.estimate.profile
        figure = figures.layer_figure(profile, log=state.log, units=state.units)
        self.bars = _shown(self.bars, figure, self._bars_box)
        budget = state.setup.budget_bytes
        fits = "" if budget is None else f"memviz-fits-{verdict_of(self.estimate, budget)}"
        self._verdict.value = tables.paragraph(words.verdict(state, self.estimate), f"verdict {fits}")
        table = tables.layer_table_html(tables.layer_table(profile, state.network), state.units)
        not_counted = tables.paragraph(f"Not counted: {' '.join(profile.not_counted)}")
        self._table.value = f'<div class="memviz-wide" tabindex="0">{table}</div>{not_counted}'

    def _draw_trial(self) -> None:
        run, units = self._run, self.state.units
        self._status.value = tables.paragraph(words.trial_sentence(run, units), "alert" if run.refused else "status")
        if run.refused or not run.steps:  # nothing is measured: the levels of the present knobs
            run = TrialRun(state=self.state, estimate=self.estimate)
        title, ended, budget = words.trial_title(run, self.state), words.ending_text(run), run.state.setup.budget_bytes
        estimate, self.progress.value = run.estimate or Estimate({}, 0, "", ""), run.steps_done
        levels = {name: phase.peak_bytes for name, phase in estimate.phases.items()}
        if self.estimate is not None and not run.steps:
            profile = self.estimate.phases[self.state.phase].profile or self.estimate.profile
            figure = figures.timeline(profile, budget_bytes=budget, units=units)
            self.step = _shown(self.step, figure, self._course_box)
        else:
            figure = figures.trial_figure(
                run.events, estimated=levels, budget_bytes=budget, units=units, title=title, ended=ended
            )
            self.course = _shown(self.course, figure, self._course_box)
        table = tables.phase_table(estimate.phases, run.trial.phases if run.trial else {}, estimate.peak_ranges)
        stale = "memviz-stale" if run.state.question != self.state.question else ""
        self._phases.value = f'<div class="{stale}">{tables.phase_table_html(table, units)}</div>'


@lru_cache(maxsize=64)  # a knob moved back, or a change of the display alone, asks nothing
def _estimate(network: ConvNet, setup: TrainingSetup) -> Estimate:
    return shared_service().estimate(Network.of(network), setup)


def _shown(widget: go.FigureWidget | None, figure: go.Figure, box: w.Box) -> go.FigureWidget:
    """The widget, alone in a box, after it shows a figure, in one message; only what differs travels."""
    if widget is None:  # complete before it is a widget: earlier changes can be lost (plotly PR 4956)
        widget = Chart(figure)
        widget.open()
    if box.children != (widget,):
        box.children = (widget,)
    with widget.batch_update():
        for part, wanted in [*zip(widget.data, figure.data, strict=True), (widget.layout, figure.layout)]:
            now = part.to_plotly_json()
            changes = {name: value for name, value in wanted.to_plotly_json().items() if now.get(name) != value}
            part.update(changes, overwrite=True)
    # What a view that opens later starts from, for instance after the page was loaded again; plotly itself refreshes
    # it only when the widget is displayed on its own, not inside a box.
    widget._widget_data, widget._widget_layout = deepcopy(widget._data), deepcopy(widget._layout_obj._props)
    return widget


def _close_tree(widget: w.Widget) -> None:
    """Close a widget and its children, styles and layouts."""
    for part in (*getattr(widget, "children", ()), getattr(widget, "style", None), getattr(widget, "layout", None)):
        if isinstance(part, w.Widget):
            _close_tree(part)
    widget.close()
