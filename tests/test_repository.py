"""The files around the package: installing, the lists that must agree, the README's examples, the notebooks."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import nbformat
import pytest
import yaml

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
README = (ROOT / "README.md").read_text()
SOURCES = sorted((ROOT / "memviz").rglob("*.py"))


def test_conda_gets_what_pip_gets():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    *conda, pip = environment["dependencies"]
    assert pip["pip"] == [*PROJECT["dependencies"], "--editable ."]
    assert conda == [f"python {PROJECT['requires-python']}", "pip"]


def test_the_installer_takes_the_pythons_of_pyproject():
    script = (ROOT / "tools/install.sh").read_text()
    (low,), (high,) = (
        re.findall(r">=3\.(\d+)", PROJECT["requires-python"]),
        re.findall(r"<3\.(\d+)", PROJECT["requires-python"]),
    )
    assert f"(3, {low}) <= sys.version_info[:2] <= (3, {int(high) - 1})" in script


def test_one_version():
    import memviz

    assert memviz.__version__ == PROJECT["version"]
    assert f"## {memviz.__version__}" in (ROOT / "CHANGELOG.md").read_text()


# -- installing ----------------------------------------------------------------------------------------------------


@pytest.fixture
def checkout(tmp_path):
    """A folder with a space in its name that holds what make needs, and a Python that only writes down its calls."""
    folder = tmp_path / "a folder"
    (folder / "tools").mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml", "tools/install.sh"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def python(folder, version="(3, 12)", without=""):
    """A stand-in for a Python of some version, perhaps without a module; its calls stand in the file `calls`."""
    path = folder / "some python"
    path.write_text(f"""#!/bin/sh
echo "$@" >> {str(folder / "calls")!r}
case "$*" in
    --version) echo "Python 3.x" ;;
    *"import ensurepip"*) [ -z {without!r} ] ;;
    "-m venv"*) mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
    -c*) {sys.executable!r} -c "import sys; sys.version_info = {version}; $2" ;;
esac
""")
    path.chmod(0o755)
    return path


def make(folder, target, interpreter):
    outer = ("ARGS", "MAKEFLAGS", "MAKELEVEL", "MFLAGS")  # of the make that runs these tests
    environment = {k: v for k, v in os.environ.items() if k not in outer} | {"PYTHON": str(interpreter)}
    return subprocess.run(["make", target], cwd=folder, env=environment, capture_output=True, text=True, timeout=60)


def calls(folder):
    text = (folder / "calls").read_text()
    (folder / "calls").unlink()
    return text


def test_make_installs_when_needed_and_only_then(checkout):
    interpreter = python(checkout)
    assert make(checkout, "test", interpreter).returncode == 0
    first = calls(checkout)
    assert "-m venv --clear .venv" in first
    assert "-m pip install --quiet --disable-pip-version-check --editable .[dev]" in first
    for target in ("test", "lab", "lint"):
        assert make(checkout, target, interpreter).returncode == 0
        again = calls(checkout)
        assert "pip install" not in again
    newer = (checkout / ".venv/installed-dev").stat().st_mtime + 10
    os.utime(checkout / "pyproject.toml", (newer, newer))
    assert make(checkout, "test", interpreter).returncode == 0
    assert "pip install" in (third := calls(checkout))
    assert "-m venv" not in third


def test_lab_needs_no_test_tools(checkout):
    result = make(checkout, "lab", python(checkout))
    assert result.returncode == 0, result.stderr
    done = calls(checkout)
    assert "--editable .\n" in done
    last = done.splitlines()[-1]
    assert last.startswith("-m jupyterlab ")
    assert "--ServerApp.root_dir=notebooks --LabApp.default_url=/lab/tree/explore.ipynb" in last
    assert (ROOT / "notebooks/explore.ipynb").exists()


@pytest.mark.parametrize("version", ["(3, 10)", "(3, 14)", "(2, 7)"])
def test_a_python_that_does_not_suit_is_said(checkout, version):
    result = make(checkout, "test", python(checkout, version))
    assert result.returncode != 0
    assert "memviz needs Python 3.11, 3.12 or 3.13" in result.stderr
    assert "found: Python 3.x" in result.stderr
    assert not (checkout / ".venv").exists()


def test_no_python_at_all_is_said(checkout):
    result = make(checkout, "test", checkout / "nothing")
    assert "memviz needs Python 3.11, 3.12 or 3.13" in result.stderr


def test_a_python_that_cannot_make_an_environment_is_said(checkout):
    result = make(checkout, "test", python(checkout, without="ensurepip"))
    assert result.returncode != 0
    assert "Python 3.12 cannot make a virtual environment" in result.stderr
    assert "apt-get install python3.12-venv" in result.stderr


def test_what_fails_to_install_is_tried_again(checkout):
    interpreter = python(checkout)
    interpreter.write_text(
        interpreter.read_text().replace("-c*)", '"-m pip install"*) echo no network >&2; exit 1 ;;\n-c*)')
    )
    for _ in range(2):
        result = make(checkout, "test", interpreter)
        assert result.returncode != 0
        assert "no network" in result.stderr
        assert "pip install" in calls(checkout)


# -- the browser tests ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("required", [False, True])
def test_without_chromium_browser_tests_skip_and_fail_where_required(tmp_path, required):
    shutil.copy(ROOT / "tests/conftest.py", tmp_path)
    (tmp_path / "test_planted.py").write_text(
        "import pytest\n@pytest.mark.browser\ndef test_it(): raise ZeroDivisionError\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "MEMVIZ_REQUIRE_BROWSER"} | {"PATH": str(tmp_path)}
    if required:
        environment["MEMVIZ_REQUIRE_BROWSER"] = "1"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-rs",
        "-c",
        str(ROOT / "pyproject.toml"),
        "--rootdir",
        ".",
        "-p",
        "no:cacheprovider",
        ".",
    ]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert "Chromium is not installed" in result.stdout
    assert "ZeroDivisionError" not in result.stdout
    assert ("1 error" if required else "1 skipped") in result.stdout
    assert result.returncode == int(required)


# -- what is said --------------------------------------------------------------------------------------------------


def test_the_readmes_examples_run(capsys, monkeypatch, tmp_path):
    import keras
    import numpy as np

    class MyModel(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(2)

        def call(self, x):
            return self.dense(x)

    monkeypatch.chdir(tmp_path)
    model = MyModel()
    model.compile("sgd", "mse")
    images, labels = np.zeros((8, 5), "float32"), np.zeros((8, 2), "float32")
    names = {"images": images, "labels": labels, "model": model}
    for example in re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL):
        exec(compile(example, "<the example in README.md>", "exec"), names)
    assert "completed" in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} == {"failure.html", "step.html"}
    assert names["figure"].data


def test_the_readme_names_what_is_there():
    for link in re.findall(r"\]\(([^)#:]+)\)", README + (ROOT / "CONTRIBUTING.md").read_text()):
        assert (ROOT / link).exists(), link
    for target in re.findall(r"make (\w+)", README):
        assert f"\n{target}:" in (ROOT / "Makefile").read_text(), target


def test_the_tested_versions_suit_the_requirements():
    from packaging.requirements import Requirement

    stated = dict(re.findall(r"([a-z]+) (\d+\.\d+\.\d+)", README.lower()))
    for requirement in map(Requirement, PROJECT["dependencies"]):
        if requirement.name in stated:
            assert stated[requirement.name] in requirement.specifier, requirement
    assert {"tensorflow", "keras", "plotly", "ipywidgets", "jupyterlab"} <= set(stated)


# -- the sources ---------------------------------------------------------------------------------------------------


def lines_of_code(path):
    """Lines that are neither blank nor a comment nor part of a docstring."""
    source = path.read_text()
    documented = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(
            node
        ):
            documented |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    lines = enumerate(map(str.strip, source.splitlines()), start=1)
    return sum(bool(line) and not line.startswith("#") and number not in documented for number, line in lines)


def test_the_package_stays_small():
    assert sum(map(lines_of_code, SOURCES)) < 7350


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_functions_fit_on_a_screen(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno - node.lineno < 60, f"{node.name} has {node.end_lineno - node.lineno + 1} lines"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_only_units_knows_1024(path):
    found = {node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)}
    pixels = path.name == "presets.py"  # and units of layers
    assert path.name == "units.py" or pixels or not found & {1024, 1024**2, 1024**3}


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.name)
def test_notebooks_are_committed_without_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    assert notebook.metadata.kernelspec.name == "python3"
    assert "widgets" not in notebook.metadata
    for cell in notebook.cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
