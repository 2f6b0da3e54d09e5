"""Who may import what: the rooms' one direction, and the heavy libraries in few files. Each check is shown to fail."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "memviz"
FILES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))

ROOMS = [
    "units",
    "cards",
    "profile",
    "setup",
    "failure",
    "models",
    "child",
    "interchange",
    "estimation",
    "measurement",
    "advice",
    "views",
]
SIDEWAYS = {  # beside "every room knows the rooms before it"
    ("interchange", "memviz.estimation.result"): "it writes down an Estimate",
}
# Measurement stands beside estimation: it may ask for an estimate, and know what one answers, but not how one is made.
MEASUREMENT_SEES = ("memviz.estimation.service", "memviz.estimation.result")
# The recorder, in the child, looks up the ops of the graph that runs, as the estimate does.
RECORDING = ("measurement/recorder.py", "measurement/trace.py")
RECORDING_SEES = ("memviz.estimation.attribution", "memviz.estimation.graph", "memviz.estimation.assignment")

# Where each heavy library may be imported at all, by the file's path inside the package.
COMPUTES = (
    "models/",
    "estimation/",
    "interchange.py",
    *(
        f"measurement/{n}.py"
        for n in ("worker", "device", "digits", "fed", "feeder", "recordings", "recorder", "trace", "monitor")
    ),
)
HEAVY = {
    "tensorflow": COMPUTES,
    "keras": COMPUTES,
    "plotly": ("views/figures.py", "views/explorer/"),
    "ipywidgets": ("views/explorer/",),
    "anywidget": ("views/explorer/",),
    "IPython": ("views/explorer/",),
    "jax": (),
}
# What a fresh interpreter may import without getting any of the heavy libraries.
LIGHT = {
    "memviz": HEAVY,
    "memviz.profile": HEAVY,
    "memviz.setup": HEAVY,
    "memviz.models.presets": HEAVY,
    "memviz.models.network": HEAVY,
    "memviz.estimation.service": HEAVY,
    "memviz.measurement.trial": HEAVY,
    "memviz.views.tables": HEAVY,
    "memviz.views.figures": set(HEAVY) - {"plotly"},
    "memviz.views.explorer": {"tensorflow", "keras", "jax"},
}


def imports(source):
    """The modules a file imports when it runs, those inside functions included: `from a import b` gives a and a.b."""
    found = []

    def visit(node):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            return
        if isinstance(node, ast.Import):
            found.extend(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            found.append(node.module)
            found.extend(f"{node.module}.{alias.name}" for alias in node.names)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(source))
    return found


def room(path):
    return path.removesuffix(".py").split("/")[0]


def wrong_direction(path, source):
    """The imports of a file that go against the direction of the rooms."""
    own, wrong = room(path), []
    seen = MEASUREMENT_SEES + (RECORDING_SEES if path in RECORDING else ())
    for name in imports(source):
        other = name.split(".")[1] if name.startswith("memviz.") else None
        if (
            own == "__init__"
            or other in (None, own)
            or other not in ROOMS
            or (own, name.rpartition(".")[0]) in SIDEWAYS
        ):
            continue
        later = ROOMS.index(other) >= ROOMS.index(own) and (own, name) not in SIDEWAYS
        hidden = own == "measurement" and other == "estimation" and not name.startswith(seen)
        bare_package = name == "memviz.estimation"  # `from memviz.estimation import x` shows as memviz.estimation.x too
        if later or (hidden and not bare_package):
            wrong.append(name)
    return wrong


def heavy_imports(path, source):
    """The heavy libraries a file imports that it may not."""
    libraries = {name.split(".")[0] for name in imports(source)} & set(HEAVY)
    return sorted(name for name in libraries if not path.startswith(HEAVY[name]) or not HEAVY[name])


def figures_built(path, source):
    """What a file makes with plotly.graph_objects, apart from turning a finished figure into a widget."""
    calls = [ast.unparse(node.func) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    named = [name for name in imports(source) if name.startswith("plotly.") and name != "plotly.graph_objects"]
    made = [call for call in calls if call.startswith("go.") and call != "go.FigureWidget"]
    return [] if path == "views/figures.py" else sorted({*made, *named})


CHECKS = [wrong_direction, heavy_imports, figures_built]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("path", FILES)
def test_every_file_keeps_the_rules(path, check):
    assert check(path, (PACKAGE / path).read_text()) == []


def test_every_file_is_in_a_room():
    assert {room(path) for path in FILES} == {"__init__", *ROOMS}


@pytest.mark.parametrize(
    ("check", "path", "source", "found"),
    [
        (wrong_direction, "units.py", "import memviz.profile", "memviz.profile"),
        (wrong_direction, "models/convnet.py", "from memviz.views import tables", "memviz.views.tables"),
        (
            wrong_direction,
            "child/process.py",
            "from memviz.estimation.result import Estimate",
            "memviz.estimation.result",
        ),
        (
            wrong_direction,
            "estimation/graph.py",
            "def f():\n  import memviz.measurement.trial",
            "memviz.measurement.trial",
        ),
        (wrong_direction, "measurement/trial.py", "from memviz.estimation.estimate import estimate", ".estimate"),
        (wrong_direction, "interchange.py", "from memviz.estimation.estimate import estimate", ".estimate"),
        (heavy_imports, "profile.py", "def f():\n    import tensorflow as tf", "tensorflow"),
        (heavy_imports, "measurement/trial.py", "from keras import layers", "keras"),
        (heavy_imports, "views/tables.py", "import plotly.graph_objects as go", "plotly"),
        (heavy_imports, "views/figures.py", "import ipywidgets", "ipywidgets"),
        (heavy_imports, "models/convnet.py", "import jax.numpy as jnp", "jax"),
        (figures_built, "views/explorer/panel.py", "import plotly.graph_objects as go\ngo.Bar()", "go.Bar"),
        (figures_built, "views/explorer/panel.py", "from plotly.subplots import make_subplots", "plotly.subplots"),
    ],
)
def test_a_planted_import_is_found(check, path, source, found):
    assert any(name.endswith(found) for name in check(path, source))


@pytest.mark.parametrize(
    ("check", "path", "source"),
    [
        (wrong_direction, "measurement/trial.py", "from memviz.estimation.service import shared_service"),
        (wrong_direction, "interchange.py", "from memviz.estimation.result import Estimate"),
        (wrong_direction, "models/convnet.py", "if TYPE_CHECKING:\n    import memviz.views.tables"),
        (figures_built, "views/explorer/panel.py", "import plotly.graph_objects as go\ngo.FigureWidget(figure)"),
    ],
)
def test_what_is_allowed_is_not_found(check, path, source):
    assert check(path, source) == []


def loaded(module, folder=PACKAGE.parent):
    """The top-level modules that a fresh interpreter holds after importing one module."""
    program = f"import sys; sys.path.insert(0, {str(folder)!r}); import {module}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True, timeout=120
    )
    return {name for name in done.stdout.split() if "." not in name}


@pytest.mark.parametrize("module", LIGHT)
def test_a_fresh_interpreter_stays_light(module):
    assert loaded(module) & set(LIGHT[module]) == set()


def test_a_planted_heavy_module_is_seen_in_a_fresh_interpreter(tmp_path):
    (tmp_path / "planted.py").write_text("import json\ndef f():\n    import keras\n")
    assert loaded("planted", tmp_path) & set(HEAVY) == set()
    (tmp_path / "planted_heavy.py").write_text("import anywidget\n")
    assert "anywidget" in loaded("planted_heavy", tmp_path)


def test_public_names_come_from_their_homes():
    import memviz

    assert set(memviz.__all__) <= set(dir(memviz))
    for name in memviz.__all__:
        assert getattr(memviz, name) is not None
    with pytest.raises(AttributeError, match="No memviz attribute guess"):
        memviz.guess  # noqa: B018
