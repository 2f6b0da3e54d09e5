#!/bin/sh
# Makes .venv and installs memviz into it. With the argument "dev": the test and lint tools too. Called by make.
set -eu
cd "$(dirname "$0")/.."
extra=${1:+[$1]} stamps=".venv/installed ${1:+.venv/installed-$1}"

suitable() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; }

if ! [ -x .venv/bin/python ] || ! .venv/bin/python -m pip --version >/dev/null 2>&1 || ! suitable .venv/bin/python; then
    found=
    if [ -n "${PYTHON:-}" ]; then set -- "$PYTHON"; else set -- python3 python3.13 python3.12 python3.11 python; fi
    for candidate; do
        if suitable "$candidate"; then found=$candidate; break; fi
    done
    if [ -z "$found" ]; then
        version=$("${PYTHON:-python3}" --version 2>&1 || true)
        echo "memviz needs Python 3.11, 3.12 or 3.13 (TensorFlow 2.21 has wheels for these); found: ${version:-none}." >&2
        echo "Install one of them, or name it: make PYTHON=/path/to/python3.12" >&2
        exit 1
    fi
    if ! "$found" -c 'import ensurepip, venv' 2>/dev/null; then
        version=$("$found" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        echo "Python $version cannot make a virtual environment: its venv and ensurepip modules are missing." >&2
        echo "On Debian or Ubuntu: apt-get install python$version-venv (as root), then call make again." >&2
        exit 1
    fi
    "$found" -m venv --clear .venv
fi

echo "Installing memviz$extra into .venv (the first time this takes some minutes) ..."
.venv/bin/python -m pip install --quiet --disable-pip-version-check --editable ".$extra"
touch $stamps
