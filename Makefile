# make lab      JupyterLab, opened on the explorer
# make test     the tests, two files at a time: at most 8 GiB of memory, no GPU
#               (browser tests are skipped without Chromium)
# make soak     the tests that take long: hundreds of trials
# make bench    accuracy and speed, with what needs more memory
# make lint     ruff and mypy
# Each makes .venv and installs by itself when that is needed. PYTHON=... names another Python, ARGS=... adds options.

PYTHON_IN_VENV = .venv/bin/python

.PHONY: lab test soak bench lint

# Jupyter refuses to serve root, the only user of many containers, unless told that this is meant.
lab: .venv/installed
	$(PYTHON_IN_VENV) -m jupyterlab --ServerApp.root_dir=notebooks --LabApp.default_url=/lab/tree/explore.ipynb \
	    $(if $(filter 0,$(shell id -u)),--allow-root) $(ARGS)

test: .venv/installed-dev
	$(PYTHON_IN_VENV) -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

soak: .venv/installed-dev
	$(PYTHON_IN_VENV) -m pytest -m soak $(ARGS)

# Every benchmark runs, also after one that failed.
bench: .venv/installed-dev
	@failed=; for file in benchmarks/[a-z]*.py; do \
	    echo "== $$file"; $(PYTHON_IN_VENV) "$$file" $(ARGS) || failed="$$failed $$file"; \
	done; [ -z "$$failed" ] || { echo "Failed:$$failed"; exit 1; }

lint: .venv/installed-dev
	$(PYTHON_IN_VENV) -m ruff check .
	$(PYTHON_IN_VENV) -m ruff format --check .
	$(PYTHON_IN_VENV) -m mypy

.venv/installed: pyproject.toml tools/install.sh
	@tools/install.sh

.venv/installed-dev: pyproject.toml tools/install.sh
	@tools/install.sh dev
