"""The parent's side of a child process: started, talked to in JSON lines over private pipes, and surely ended."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

TAIL_BYTES = 16_384  # of each of stdout and stderr


class ChildError(RuntimeError):
    """The child ended, or sent something that is not a message."""


class ChildEndedError(ChildError):
    """The child has closed its end of the pipe, which it does only by ending."""


class ChildProcess:
    """A fresh Python running ``python -m module`` with this one's sys.path and working directory.

    Never a fork: the child shares no state with this process. It has a process group of its own, so that a Ctrl-C
    meant for this process does not reach it, and so that `kill` takes its own children along. stdout and stderr stay
    free for TensorFlow's chatter; the end of each is kept. One thread at a time may call `receive`; `kill` may be
    called from any.
    """

    def __init__(self, module: str, env: Mapping[str, str] | None = None) -> None:
        child_in, self._out = os.pipe()
        self._in, child_out = os.pipe()
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        try:
            self._popen = subprocess.Popen(
                [sys.executable, "-P", "-m", module, str(child_in), str(child_out)],
                env={**os.environ, **(env or {}), "PYTHONPATH": path},
                pass_fds=(child_in, child_out),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except BaseException:
            os.close(self._in)
            os.close(self._out)
            raise
        finally:
            os.close(child_in)
            os.close(child_out)
        self.pid = self._popen.pid
        self._buffer = bytearray()
        self._reading, self._writing, self._killing = threading.Lock(), threading.Lock(), threading.Lock()
        self._closed = False
        self._chatter = _Chatter(self._popen)

    def send(self, message: Mapping[str, Any]) -> None:
        """Send one message; ChildEndedError when the child cannot take it any more."""
        data = memoryview(json.dumps(message).encode() + b"\n")
        with self._writing:
            if self._closed:
                raise ChildEndedError("The child process has ended.")
            try:
                while data:
                    data = data[os.write(self._out, data) :]
            except BrokenPipeError:
                raise ChildEndedError("The child process has ended.") from None

    def receive(self, timeout: float | None = None) -> dict[str, Any]:
        """The next message. TimeoutError after ``timeout`` seconds, ChildEndedError when none can come any more."""
        deadline = None if timeout is None else time.monotonic() + timeout
        searched = 0
        with self._reading:
            while (end := self._buffer.find(b"\n", searched)) < 0:
                searched = len(self._buffer)
                self._read_more(deadline)
            line = bytes(self._buffer[:end])
            del self._buffer[: end + 1]
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            raise ChildError(f"The child process sent a line that is not a message: {line[:200]!r}.")
        return message

    def _read_more(self, deadline: float | None) -> None:
        if self._closed:
            raise ChildEndedError("The child process has ended.")
        left = float("inf") if deadline is None else deadline - time.monotonic()
        with selectors.DefaultSelector() as selector:
            selector.register(self._in, selectors.EVENT_READ)
            # In slices, so that `kill` is noticed even where a grandchild keeps the pipe open.
            if not selector.select(max(0.0, min(left, 0.5))):
                if left <= 0.5:
                    raise TimeoutError("The child process has not answered in time.")
                return
        chunk = os.read(self._in, 1 << 20)
        if not chunk:
            raise ChildEndedError("The child process has ended.")
        self._buffer += chunk

    def kill(self) -> int:
        """End the child and its own children, wait until they are gone, close every pipe; returns the exit code.

        A child that ended by itself keeps its own exit code. Calling it again does nothing.
        """
        with self._killing:
            if not self._closed:
                # The child is not reaped before this line, so its number cannot belong to somebody else yet.
                if self._popen.returncode is None:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.killpg(self.pid, signal.SIGKILL)
                self._popen.wait()
                self._closed = True  # before the locks: a reader wakes up, as the dead child's pipe is at its end
                with self._reading, self._writing:
                    os.close(self._in)
                    os.close(self._out)
                self._chatter.close()
        return self._popen.returncode

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal; None before `kill`."""
        return self._popen.returncode

    @property
    def stderr_tail(self) -> str:
        """The end of what the child wrote to stderr, complete after `kill`."""
        return self._chatter.text("stderr")

    @property
    def stdout_tail(self) -> str:
        """The end of what the child wrote to stdout, complete after `kill`."""
        return self._chatter.text("stdout")


class _Chatter:
    """A thread that keeps a child's stdout and stderr flowing and remembers the end of each."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        assert popen.stdout is not None
        assert popen.stderr is not None
        self._streams = {"stdout": popen.stdout, "stderr": popen.stderr}
        self._tails = {name: bytearray() for name in self._streams}
        self._wake_in, self._wake_out = os.pipe()
        self._thread = threading.Thread(target=self._run, name="memviz-child-output", daemon=True)
        self._thread.start()

    def text(self, name: str) -> str:
        return self._tails[name].decode(errors="replace")

    def close(self) -> None:
        """Read what the dead child left, then stop; a grandchild that still holds the streams is not waited for."""
        os.write(self._wake_out, b"x")
        self._thread.join()
        for fd in (self._wake_in, self._wake_out):
            os.close(fd)
        for stream in self._streams.values():
            stream.close()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_in, selectors.EVENT_READ, None)
            for name, stream in self._streams.items():
                os.set_blocking(stream.fileno(), False)
                selector.register(stream, selectors.EVENT_READ, name)
            while True:
                ready = [key.data for key, _ in selector.select()]
                for name in self._streams if None in ready else ready:
                    if not self._keep_end(name) and None not in ready:
                        selector.unregister(self._streams[name])
                if None in ready:
                    return

    def _keep_end(self, name: str) -> bool:
        """Take what a stream holds, a whole pipe's worth at most; False at its end."""
        try:
            chunk = os.read(self._streams[name].fileno(), 1 << 20)
        except BlockingIOError:
            return True
        self._tails[name] += chunk
        del self._tails[name][:-TAIL_BYTES]
        return bool(chunk)
