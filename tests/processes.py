"""What the tests of child processes share."""

import os
import time

import psutil

PATIENCE = 60  # seconds: how long a busy machine may take; never reached where the code is right


def open_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


def gone(pid: int) -> bool:
    """Whether the process has ended, within the time that is given to it."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False
