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
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import ipywidgets as w

from memviz.advice.fits import verdict_of
from memviz.child.machine import available_bytes
from memviz.estimation.result import Estimate
from memviz.estimation.service import shared_service
from memviz.measurement.result import Trial, TrialEvent
from memviz.measurement.trial import RunningTrial
from memviz.models import presets
from memviz.models.convnet import ConvNet
from memviz.models.network import Network
from memviz.profile import MemoryProfile
from memviz.views import figures, tables
from memviz.views.explorer import words
from memviz.views.explorer.drawers import Compare, Keep, WhatIf, shown_profile
from memviz.views.explorer.knobs import Knobs
from memviz.views.explorer.state import ExplorerState, default_steps, opening_state, state_of, with_preset
from memviz.views.explorer.style import Manners
from memviz.views.explorer.words import TrialRun

if TYPE_CHECKING:
    from memviz.views.explorer.chart import Chart

# Between two drawings of the trial's chart; and after a change the browser paints the layers' chart first.
FRAME_SECONDS = 0.2
ANSWERS = 64  # that are remembered: a knob moved back, or a change of the display alone, asks nothing
NO_LAYER = "none"


class Explorer:
    """An open panel. `state`, `estimate` and `trial` are what it shows; `close` ends its trial and its threads."""

    def __init__(self, network: ConvNet | Network | None = None, **options: Any) -> None:
        self.state, notice = opening_state(network, available_bytes(), **options)
        self.estimate: Estimate | None = None
        self.trial: Trial | None = None  # the last one that ended
        self.bars: Chart | None = None  # shown with the first answer
        self._bars_to_be: Chart | None = None
        self.step: Chart | None = None  # the estimated step, until a trial has run
        self.course: Chart | None = None
        self._base = self.state  # what no knob sets is as here
        self._wanted = self._drawn = self.state  # what the knobs say, and whose estimate is drawn
        self._looked_ahead_from: tuple[ExplorerState, w.Widget | None] | None = None
        self._answers: dict[str, Estimate] = {}
        self._run = TrialRun(state=self.state)
        self._handle: RunningTrial | None = None
        self._closed = self._mistaken = self._is_below_stale = False
        self._records: queue.SimpleQueue[tuple[Callable[..., None], Any]] = queue.SimpleQueue()
        self._make_widgets(notice)
        self._put(self._load)
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
        for widget in (self.box, self._bars_to_be, self.step, self.course):  # not each is in the box
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
        steps = default_steps(self.state.network)
        self.steps = w.BoundedIntText(description="steps", value=steps, min=3, max=1000)
        self.record = w.Checkbox(description="record", indent=False, tooltip="every allocation of a step")
        self.progress = w.IntProgress(description="progress")
        self.course_of = w.ToggleButtons(description="below", options=["step", "trial"])
        self.course_of.observe(lambda _: self._put(self._draw_trial), names="value")
        self.layer = w.Dropdown(description="layer", options=[NO_LAYER])
        self.layer.observe(lambda _: self._put(self._draw_bars), names="value")
        self._card = w.HTML()
        self.what_if, self.compare = WhatIf(self._apply, self._put), Compare(self._apply, self._put)
        self.keep = Keep(self._apply, self._complain, self._put)
        drawers = w.Tab([drawer.box for drawer in (self.what_if, self.compare, self.keep)])
        drawers.titles = ("Why, and what if", "Compare", "Take along")
        self._error, self._status, self._phases, self._table = w.HTML(), w.HTML(), w.HTML(), w.HTML()
        self._verdict = w.HTML(
            tables.paragraph("Starting TensorFlow in a child process for the first estimate ...", "verdict")
        )
        self._bars_box, self._course_box = w.VBox(), w.VBox()
        controls = w.HBox([self.start_button, self.cancel_button, self.steps, self.record, self.progress])
        self.knobs.display.children += (self.layer,)
        right = w.VBox([
            w.HTML(tables.paragraph(notice)), self._error, self._verdict, self.knobs.display, self._bars_box,
            self._card, controls.add_class("memviz-controls"), self._status,
            self.course_of.add_class("memviz-course"), self._course_box, self._phases, drawers,
        ]).add_class("memviz-right")  # fmt: skip
        top = w.HBox([self.knobs.box, right]).add_class("memviz-top")
        self._manners = Manners(lambda number: self._put(self._reach, number))
        self.box = w.VBox([self._manners, top, self._table]).add_class("memviz")

    # Callbacks, in the kernel's thread, and the thread that waits for a trial: they put records on the queue

    def _put(self, act: Callable[..., None], *values: Any) -> None:
        self._records.put((act, values))

    def _moved(self, preset: str | None) -> None:
        if preset is not None:
            self._base = with_preset(self._wanted, presets.ALL[preset])
            self.knobs.show(self._base)
            self.steps.value = default_steps(self._base.network)
        try:
            self._wanted = state_of(self.knobs.values(), self._base)
            self._mistaken = False
        except (ValueError, TypeError) as error:
            self._mistaken = True  # what the knobs say cannot be trained
            said = f"{error} The chart below still shows the last setup that works."
            self._put(self._complain, said, self.knobs.reached)
        else:
            self.knobs.mark(self._wanted)
            self._put(self._follow)

    def _apply(self, state: ExplorerState) -> None:
        """Set the knobs to a state that comes from elsewhere; how it is displayed stays."""
        shown = {name: getattr(self._wanted, name) for name in vars(self._wanted) if name not in ("network", "setup")}
        self._base, self._mistaken = state, False
        self._wanted = replace(state, **shown)
        self.knobs.show(self._wanted)
        self._put(self._follow)

    def _start(self) -> None:
        if not self.start_button.disabled and not self._mistaken:
            self.start_button.disabled = True
            self._put(self._begin)

    def _train(self, run: TrialRun) -> None:
        try:
            self._handle = RunningTrial(
                *run.state.question, steps=run.steps, record=run.record,
                on_event=lambda event: self._put(self._add, event),
            )  # fmt: skip
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
                    self._draw_below()
                    self._draw_trial()
                    self._look_ahead()
            except Exception as error:  # it would vanish in JupyterLab
                self._complain(f"The panel failed: {type(error).__name__}: {error}")

    def _complain(self, sentence: str, knob: w.Widget | None = None) -> None:
        """Say what is wrong above the charts, and at the knob that was moved last."""
        self._error.value = tables.paragraph(sentence, "alert")
        number = self.knobs.all.index(knob) if knob in self.knobs.all else None
        self._manners.send({"wrong": number, "text": sentence})

    def _follow(self) -> None:
        if self.state is not self._wanted:
            self.state = self._wanted
            if self._error.value:
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
                    self._answer(state_of(values, self._base))

        threading.Thread(target=ask, name="memviz-ahead", daemon=True).start()
        self._looked_ahead_from = (state, knob)

    def _begin(self) -> None:
        known = self.estimate if self._drawn.question == self.state.question else None
        record = self.record.value
        self._run = TrialRun(state=self.state, steps=self.steps.value, record=record, estimate=known)
        self.course_of.value = "trial"
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
        slow = isinstance(state.network, Network) and repr(state.question) not in self._answers
        if slow:
            text = "Estimating: your network is built and traced anew, which can take seconds ..."
            self._error.value = tables.paragraph(text, "status")
        try:
            self.estimate, self._drawn = self._answer(state), state
            self._error.value = "" if slow else self._error.value
        except Exception as error:  # the last good chart stays
            self._complain(f"No estimate: {error}", self.knobs.reached)
            self._verdict.value = self._verdict.value if self.bars else ""
            return
        if self._closed:
            return
        profile = shown_profile(state, self.estimate)
        rows = [NO_LAYER, *profile.by_layer().index]
        if list(self.layer.options) != rows:
            self.layer.options = rows  # and none of them is chosen
        chosen = self._chosen
        lines = words.layer_card(self.estimate.layers, chosen, profile, state.units) if chosen else []
        self._card.value = tables.lines(lines, "card")
        budget = state.setup.budget_bytes
        fits = "" if budget is None else f"memviz-fits-{verdict_of(self.estimate, budget)}"
        self._verdict.value = tables.paragraph(words.verdict(state, self.estimate), f"verdict {fits}")
        chart = figures.chart_of(figures.layer_figure)(
            profile, scale=state.scale, order=state.order, chosen=chosen, units=state.units
        )
        first, self.bars = self.bars is None, self._show(self._bars_to_be, chart, self._bars_box)
        if first:
            for trace in self.bars.data:
                trace.on_click(self._clicked)
        self._is_below_stale = True

    def _draw_below(self) -> None:
        """What follows the charts, of the estimate that they show."""
        state, estimate = self._drawn, self.estimate
        if estimate is None or not self._is_below_stale:
            return
        self._is_below_stale = False
        self.what_if.show(state, estimate)
        self.compare.show(state, estimate)
        profile = shown_profile(state, estimate)
        layers = tables.layer_table(profile, estimate.layers)
        self.keep.show(state, estimate, layers)
        table = tables.layer_table_html(layers, state.units, self._chosen)
        not_counted = tables.paragraph(f"Not counted: {' '.join(profile.not_counted)}")
        self._table.value = f'<div class="memviz-wide" tabindex="0">{table}</div>{not_counted}'

    def _load(self) -> None:
        """Load the figures' widgets, here and in the browser, each for a second: the panel is on the screen meanwhile,
        and TensorFlow starts.
        """
        from memviz.views.explorer import chart

        self._show = chart.shown
        empty = figures.chart_of(figures.layer_figure)(MemoryProfile(self.state.phase, "estimated", ()))
        self._bars_to_be = chart.shown(None, empty, w.VBox())

    def _answer(self, state: ExplorerState) -> Estimate:
        key = repr(state.question)
        if key not in self._answers:
            question = Network.of(state.network), state.setup
            try:
                answer = shared_service().estimate(*question)
            except RuntimeError:  # the estimating process was killed: another one comes by itself
                answer = shared_service().estimate(*question)
            while len(self._answers) >= ANSWERS:
                self._answers.pop(next(iter(self._answers)), None)
            self._answers[key] = answer
        return self._answers[key]

    @property
    def _chosen(self) -> str | None:
        """The layer that stands out, if any."""
        return None if self.layer.value == NO_LAYER else self.layer.value

    def _clicked(self, trace: Any, points: Any, _: Any) -> None:
        """A bar was clicked: its layer is chosen, or if it was, none any more."""
        if points.point_inds and self.bars is not None:
            name = self.bars.layout.meta[points.point_inds[0]]
            self.layer.value = NO_LAYER if self.layer.value == name else name

    def _step_chart(self, estimate: Estimate) -> figures.Chart:
        """The step as it is estimated, and where a trial of these knobs recorded it, that as a line."""
        state, measured = self.state, self._run.trial.phases.get(self.state.phase) if self._run.trial else None
        estimated = shown_profile(state, estimate)
        same = self._run.state.question == state.question
        recorded = measured.profile if measured and same and measured.profile else None
        return figures.chart_of(figures.timeline)(
            recorded or estimated, estimate=estimated if recorded else None, budget_bytes=state.setup.budget_bytes,
            chosen=self._chosen, units=state.units,
        )  # fmt: skip

    def _draw_trial(self) -> None:
        run, units = self._run, self.state.units
        self._status.value = tables.paragraph(words.trial_sentence(run, units), "alert" if run.refused else "status")
        if run.refused or not run.steps:  # nothing is measured: the levels of the present knobs
            run = TrialRun(state=self.state, estimate=self.estimate)
        title, ended, budget = words.trial_title(run, self.state), words.ending_text(run), run.state.setup.budget_bytes
        estimate, self.progress.value = run.estimate or Estimate({}, 0, "", ""), run.steps_done
        levels = {name: phase.peak_bytes for name, phase in estimate.phases.items()}
        if self.estimate is not None and self.course_of.value == "step":
            self.step = self._show(self.step, self._step_chart(self.estimate), self._course_box)
        else:
            chart = figures.chart_of(figures.trial_figure)(
                run.events, estimated=levels, budget_bytes=budget, units=units, title=title, ended=ended
            )
            self.course = self._show(self.course, chart, self._course_box)
        table = tables.phase_table(estimate.phases, run.trial.phases if run.trial else {}, estimate.peak_ranges)
        stale = "memviz-stale" if run.state.question != self.state.question else ""
        self._phases.value = f'<div class="{stale}">{tables.phase_table_html(table, units)}</div>'


def _close_tree(widget: w.Widget) -> None:
    """Close a widget and its children, styles and layouts."""
    for part in (*getattr(widget, "children", ()), getattr(widget, "style", None), getattr(widget, "layout", None)):
        if isinstance(part, w.Widget):
            _close_tree(part)
    widget.close()
