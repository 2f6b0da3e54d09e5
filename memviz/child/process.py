"""A child process of one's own, and both ends of the private connection over which JSON messages go."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

TAIL_BYTES = 2000  # of what the child wrote to stdout and stderr


class ChildEndedError(RuntimeError):
    """The child has ended, so that nothing can be exchanged with it any more."""


class ChildProcess:
    """The parent's end: a fresh Python running ``python -m module`` with this one's sys.path and working directory.

    more: other connections for the child to inherit, to be closed here afterwards; see `inherited`.
    Never a fork: the child shares no state with this process. It has a process group of its own, so that a Ctrl-C
    meant for this process does not reach it, and so that `kill` takes its own children along. stdout and stderr stay
    free for TensorFlow's chatter, which goes to an unnamed file. One thread at a time may call `receive`; `kill` may
    be called from any. output_tail: the end of the chatter, after `kill`.
    """

    def __init__(self, module: str, env: Mapping[str, str] | None = None, *more: Connection) -> None:
        self.output_tail = ""
        self._connection, theirs = Pipe()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115
        path = os.pathsep.join(str(entry) or os.curdir for entry in sys.path)
        with theirs:
            numbers = [connection.fileno() for connection in (theirs, *more)]
            self._popen = subprocess.Popen(
                [sys.executable, "-P", "-m", module, *map(str, numbers)],
                env={**os.environ, **(env or {}), "PYTHONPATH": path},
                pass_fds=numbers,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                start_new_session=True,
            )
        self.pid = self._popen.pid
        # Also readable once the child is dead, while a process that it forked holds its end of the connection.
        self._death = os.pidfd_open(self.pid) if hasattr(os, "pidfd_open") else None
        self._reading, self._writing, self._killing = threading.Lock(), threading.Lock(), threading.Lock()

    @property
    def ended(self) -> bool:
        """Whether an idle child is gone: it says nothing unasked, so that what can be read is the end."""
        return self._connection.closed or bool(self._ready(0))

    def _ready(self, timeout: float | None) -> list[Any]:
        """What can be read: the connection, the sign of death."""
        return wait([self._connection, *([] if self._death is None else [self._death])], timeout)

    def send(self, message: Mapping[str, Any]) -> None:
        """Send one message; ChildEndedError when the child cannot take it any more."""
        with self._writing, _end_noticed():
            self._connection.send_bytes(json.dumps(message).encode())

    def receive(self, timeout: float | None = None) -> dict[str, Any]:
        """The next message. TimeoutError after ``timeout`` seconds, ChildEndedError when none can come any more."""
        with self._reading, _end_noticed():
            ready = self._ready(timeout)
            if ready and self._connection not in ready:
                raise EOFError
            data = self._connection.recv_bytes() if ready else None
        if data is None:
            raise TimeoutError("The child process has not answered in time.")
        try:
            return json.loads(data)
        except ValueError:
            raise RuntimeError(f"The child process sent what is not a message: {data[:200]!r}.") from None

    def kill(self) -> int:
        """End the child and its own children, wait until they are gone, and close every file; returns the exit code.

        A child that ended by itself keeps its own exit code. Calling it again does nothing.
        """
        with self._killing:
            if self._popen.returncode is None:
                # The child is not reaped before this line, so its number cannot belong to somebody else yet.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, signal.SIGKILL)
                self._popen.wait()
                with self._reading, self._writing:  # a reader wakes up, as the child is dead
                    self._connection.close()
                    if self._death is not None:
                        os.close(self._death)
                with self._output as output:
                    output.seek(-min(TAIL_BYTES, output.seek(0, os.SEEK_END)), os.SEEK_END)
                    self.output_tail = output.read().decode(errors="replace").strip()
        return self._popen.returncode


@contextlib.contextmanager
def _end_noticed() -> Iterator[None]:
    try:
        yield
    except (EOFError, OSError):
        raise ChildEndedError("The child process has ended.") from None


def inherited(number: int) -> Connection:
    """In the child: the parent's ``number``th connection, from 1, which stand on the command line as file numbers."""
    connection = Connection(int(sys.argv[number]))
    os.set_inheritable(connection.fileno(), False)  # this process's own children would keep it open
    return connection


class Channel:
    """The child's end of the first connection.

    A thread watches it: when the parent closes its own, or dies, this process ends at once, also in the middle of a
    long TensorFlow operation. And when the host runs short of memory, this process goes first.
    """

    def __init__(self) -> None:
        self._connection = inherited(1)
        with contextlib.suppress(OSError):  # Linux only
            Path("/proc/self/oom_score_adj").write_text("1000")
        self.leaves_behind: str | None = None  # a folder that goes when the parent dies; else the parent removes it
        self._messages: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._sending = threading.Lock()
        threading.Thread(target=self._watch, name="memviz-parent-watch", daemon=True).start()

    def receive(self) -> dict[str, Any]:
        """The next message from the parent; waits as long as the parent lives."""
        return self._messages.get()

    def send(self, message: Mapping[str, Any]) -> None:
        """Send one message; may be called from any thread."""
        with self._sending:
            self._connection.send_bytes(json.dumps(message).encode())

    def _watch(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                self._messages.put(json.loads(self._connection.recv_bytes()))
        if self.leaves_behind is not None:
            shutil.rmtree(self.leaves_behind, ignore_errors=True)
        with contextlib.suppress(OSError):  # what it forked goes, too
            os.killpg(os.getpid(), signal.SIGKILL)
        os._exit(0)
