"""A real JupyterLab and a real Chromium, both thrown away afterwards. Used by the browser tests and the benchmark."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
CHROMIUM_FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--no-first-run",
]  # fmt: skip
QUIET = {"@jupyterlab/apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False}}


def chromium_path() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@contextlib.contextmanager
def jupyter_lab(notebook: Path) -> Iterator[tuple[str, int]]:
    """JupyterLab on a copy of a notebook: (its address, the server's process id)."""
    with tempfile.TemporaryDirectory(prefix="memviz-lab-") as home:
        folders = {name: Path(home, name) for name in ("work", "settings", "workspaces", "config", "runtime", "data")}
        for folder in folders.values():
            folder.mkdir()
        shutil.copy(notebook, folders["work"] / notebook.name)
        for name, settings in QUIET.items():
            path = folders["settings"] / f"{name}.jupyterlab-settings"
            path.parent.mkdir(parents=True)
            path.write_text(json.dumps(settings))
        port = _free_port()
        server = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", f"--port={port}", "--allow-root",
             "--IdentityProvider.token=", "--ServerApp.port_retries=0", "--LabApp.expose_app_in_browser=True",
             f"--ServerApp.root_dir={folders['work']}", f"--LabApp.user_settings_dir={folders['settings']}",
             f"--LabApp.workspaces_dir={folders['workspaces']}"],
            env={**os.environ, "JUPYTER_CONFIG_DIR": str(folders["config"]), "PYTHONPATH": str(REPOSITORY),
                 "JUPYTER_RUNTIME_DIR": str(folders["runtime"]), "JUPYTER_DATA_DIR": str(folders["data"])},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            _wait_until_up(f"http://127.0.0.1:{port}/api", server)
            yield f"http://127.0.0.1:{port}/lab/tree/{notebook.name}?reset", server.pid
        finally:
            server.send_signal(signal.SIGTERM)  # the server ends its kernels, the kernels their children
            try:
                server.wait(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)
                server.wait()


@contextlib.contextmanager
def browser_page(width: int = 1440, height: int = 900) -> Iterator[tuple[Any, list[str]]]:
    """A page of a fresh Chromium, and the list of errors its console shows."""
    from playwright.sync_api import sync_playwright

    errors: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=CHROMIUM_FLAGS)
        page = browser.new_page(viewport={"width": width, "height": height})
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        try:
            yield page, errors
        finally:
            browser.close()


def run_all(page: Any, address: str) -> float:
    """Open a notebook and choose Run > Run All Cells; the time (`time.monotonic`) just before that choice."""
    page.goto(address)
    page.wait_for_selector(".jp-Notebook .jp-CodeCell", timeout=60_000)
    page.evaluate("jupyterapp.restored.then(() => jupyterapp.shell.currentWidget.sessionContext.ready)")
    page.get_by_role("menuitem", name="Run", exact=True).click()
    began = time.monotonic()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    return began


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _wait_until_up(address: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and server.poll() is None:
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            urllib.request.urlopen(address, timeout=5).close()
            return
        time.sleep(0.1)
    raise RuntimeError(f"JupyterLab did not come up at {address} (exit code {server.poll()}).")


def bars(page: Any) -> dict[str, list[int]]:
    """The stacked chart as the browser holds it: bytes per layer, by category."""
    return page.evaluate(
        "Object.fromEntries(document.querySelectorAll('.memviz .js-plotly-plot')[0].data"
        ".filter(t => t.type === 'bar').map(t => [t.name, Array.from(t.x)]))"
    )


def course(page: Any) -> dict[str, list[float | None]]:
    """The trial's chart as the browser holds it: the heights of each line."""
    return page.evaluate(
        "Object.fromEntries(Array.from(document.querySelectorAll('.memviz .js-plotly-plot')[1]?.data ?? [])"
        ".map(t => [t.name, Array.from(t.y)]))"
    )


def slider(page: Any, label: str) -> Any:
    """The handle of the slider with a label, to be focused and moved by keyboard."""
    rows = page.locator(".memviz :is(.memviz-ranged, .memviz-knobs > .widget-hslider)", has_text=label)
    return rows.locator(".noUi-handle")


def wait_for(condition: Any, page: Any, seconds: float = 60) -> Any:
    """Ask again and again, letting the page live, until the answer is true; it is returned."""
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {condition}"
        page.wait_for_timeout(50)
    return answer
