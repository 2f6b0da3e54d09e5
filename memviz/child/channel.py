"""The child's side: messages from the parent, messages to it, and an end when the parent is gone."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Channel:
    """The two pipes whose numbers the parent passed on the command line.

    A thread watches the incoming one: when the parent closes it, or dies, this process ends at once, also in the
    middle of a long TensorFlow operation. And when the host runs short of memory, this process goes first.
    """

    def __init__(self, argv: list[str] | None = None) -> None:
        self._in, self._out = (int(fd) for fd in (argv or sys.argv)[1:3])
        for fd in (self._in, self._out):
            os.set_inheritable(fd, False)  # this process's own children would keep the pipe open
        with contextlib.suppress(OSError):  # Linux only
            Path("/proc/self/oom_score_adj").write_text("1000")
        self._messages: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._sending = threading.Lock()
        threading.Thread(target=self._watch, name="memviz-parent-watch", daemon=True).start()

    def receive(self) -> dict[str, Any]:
        """The next message from the parent; waits as long as the parent lives."""
        return self._messages.get()

    def send(self, message: Mapping[str, Any]) -> None:
        """Send one message; may be called from any thread."""
        data = memoryview(json.dumps(message).encode() + b"\n")
        with self._sending:
            while data:
                data = data[os.write(self._out, data) :]

    def _watch(self) -> None:
        with os.fdopen(self._in, "rb") as lines:
            for line in lines:
                self._messages.put(json.loads(line))
        os._exit(0)
