# One command each; `make demo` and `make test` need nothing but Python 3.11+ and make.
# Paths are relative throughout, so the working copy may lie under a path with a blank.
PYTHON ?= python3
PY := .venv/bin/python

.PHONY: venv demo test soak lint bench bench-realkube chart crds api-types

venv: .venv/.stamp

.venv/.stamp: pyproject.toml constraints.txt
	@echo "==> making .venv (once; some 40 s)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Batholith needs Python 3.11 or newer; set PYTHON=..."; exit 1; }
	@$(PYTHON) -m venv .venv || { echo "python3 -m venv failed; on Debian: apt-get install python3-venv"; exit 1; }
	@$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@$(PY) -m compileall -q platform || true
	@touch $@

demo: venv
	@echo "==> batholith demo"
	@$(PY) -m batholith.cli demo

# PROCESSES share the tests, each with a real API server of its own; 0: one after the other.
# Examples of properties are the same each time; plain `pytest` looks for new ones.
PROCESSES ?= 2
test: venv
	@echo "==> pytest"
	@$(PY) -m pytest --numprocesses=$(PROCESSES) --hypothesis-profile=steady

# What takes minutes: attacks and loads that go on; before an issue that touches them is closed.
soak: venv
	@echo "==> pytest -m soak (some minutes)"
	@$(PY) -m pytest -m soak

lint: venv
	@echo "==> ruff, mypy --strict, import-linter"
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@$(PY) -c 'import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())'

bench: venv
	@echo "==> benchmarks (some minutes); figures go to bench/README.md by hand"
	@$(PY) -m bench

bench-realkube: venv
	@echo "==> benchmarks on a real kube-apiserver (half an hour; PODS=1000 for a quick run)"
	@$(PY) -m bench.realkube $(if $(PODS),--pods $(PODS))

chart: venv
	@echo "==> the chart's templates, after manifests/base and manifests/components"
	@$(PY) tests/tools/chart.py

crds: venv
	@echo "==> making the custom resource definitions anew (needs tests/realkube/build)"
	@PYTHONPATH=tests $(PY) tests/tools/crds.py

api-types: venv
	@echo "==> making the table of the built-in types anew (needs tests/realkube/build and Go)"
	@PYTHONPATH=tests $(PY) tests/tools/api_types.py
