"""Work beside the notebook's own thread: one worker that always takes the latest question, one trial at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memviz.views.explorer.state import ExplorerState

DEBOUNCE_SECONDS = 0.005


class LatestWorker:
    """Answers questions one after the other in a thread of its own; one that waits behind a newer one is dropped.

    deliver is called in that thread with the question's number, the question, and its answer or the exception.
    """

    def __init__(self, answer: Callable[[Any], Any], deliver: Callable[[int, Any, Any], None]) -> None:
        self._answer, self._deliver = answer, deliver
        self._changed = threading.Condition()
        self._waiting: tuple[int, Any] | None = None
        self._newest, self._closed = 0, False
        threading.Thread(target=self._run, name="memviz-estimates", daemon=True).start()

    def ask(self, question: Any) -> int:
        """Ask in place of whatever still waits; the question's number, larger than every earlier one."""
        with self._changed:
            self._newest += 1
            self._waiting = (self._newest, question)
            self._changed.notify()
            return self._newest

    def skip(self) -> int:
        """Drop what waits, and take a number as `ask` does: answers to lower ones are stale."""
        with self._changed:
            self._newest += 1
            self._waiting = None
            return self._newest

    def close(self) -> None:
        """No more answers."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting is not None or self._closed)
                self._changed.wait_for(lambda: self._closed, timeout=DEBOUNCE_SECONDS)  # let a drag settle
                if self._closed:
                    return
                if self._waiting is None:
                    continue
                (number, question), self._waiting = self._waiting, None
            try:
                answer = self._answer(question)
            except Exception as error:  # shown in the panel: JupyterLab would swallow it
                answer = error
            self._deliver(number, question, answer)


def run_trial(state: ExplorerState, steps: int, put: Callable[[str, Any], None]) -> None:
    """Start a trial in a thread; put("started", handle), put("event", e) as they come, then "ended" or "refused"."""

    def run() -> None:
        from memviz.measurement.trial import start_trial
        from memviz.models.network import Network

        network, setup = state.question
        try:
            trial = start_trial(Network.of(network), setup, steps=steps, on_event=lambda event: put("event", event))
            put("started", trial)
            put("ended", trial.wait())
        except Exception as error:  # a sentence for the panel
            put("refused", error)

    threading.Thread(target=run, name="memviz-trial", daemon=True).start()
