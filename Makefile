# One command per task; `make demo` and `make test` require only Python 3.11+ and `make`.
# All paths are relative, so the path of the working copy may contain blanks.
PYTHON ?= python3
PY := .venv/bin/python

.PHONY: venv demo test test-fast soak lint bench bench-realkube chart crds api-types invariants openapi changelog requirements conformance

# The tests compile as much as they run without stored bytecode.
unexport PYTHONDONTWRITEBYTECODE

venv: .venv/.stamp

.venv/.stamp: pyproject.toml constraints.txt
	@echo "==> creating .venv (once; some 40 s)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Batholith needs Python 3.11 or newer; set PYTHON=..."; exit 1; }
	@$(PYTHON) -m venv .venv || { echo "python3 -m venv failed; on Debian: apt-get install python3-venv"; exit 1; }
	@$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@$(PY) -m compileall -q platform || true
	@touch $@

demo: venv
	@echo "==> batholith demo"
	@$(PY) -m batholith.cli demo

# PROCESSES run the tests in parallel, two of them those on a real API server; 0: one process. There are
# more than cores because many tests wait for other processes.
# Property tests use the same examples each time; plain `pytest` generates new ones, and more.
PROCESSES ?= 4
test: venv
	@echo "==> pytest"
	@$(PY) -m pytest --numprocesses=$(PROCESSES) --hypothesis-profile=steady

# The tests that start no process and no API server, and few examples of property tests: for every
# change (a minute). They do not wait, so there are as many processes as cores. WITHOUT_FAST has
# the directories without such tests, whose import would cost seconds.
FAST_PROCESSES ?= 2
WITHOUT_FAST = $(addprefix --ignore=tests/,cluster manifests realkube testing)
test-fast: venv
	@echo "==> pytest -m 'not process and not cluster and not soak'"
	@$(PY) -m pytest --numprocesses=$(FAST_PROCESSES) --hypothesis-profile=fast $(WITHOUT_FAST) -m 'not process and not cluster and not soak'

# Long-running tests: attacks and sustained load. Run it before closing an issue about what they cover.
soak: venv
	@echo "==> pytest -m soak, and property tests with many new examples (a quarter of an hour)"
	@$(PY) -m pytest -m soak
	@$(PY) -m pytest --numprocesses=$(PROCESSES) --hypothesis-profile=soak -m 'hypothesis and not soak' --timeout=1200

lint: venv
	@echo "==> ruff, mypy --strict, import-linter, terminology"
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@$(PY) -c 'import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())'
	@$(PY) tests/tools/terminology.py

bench: venv
	@echo "==> benchmarks (some minutes); copy the results to bench/README.md"
	@$(PY) -m bench

bench-realkube: venv
	@echo "==> benchmarks on a real kube-apiserver (half an hour; PODS=1000 for a quick run)"
	@$(PY) -m bench.realkube $(if $(PODS),--pods $(PODS)) $(if $(CLUSTERS),--clusters $(CLUSTERS))

chart: venv
	@echo "==> generating the chart's templates from manifests/base and manifests/components"
	@$(PY) tests/tools/chart.py

# FOCUS is a regular expression of cases: FOCUS='\[sig-apps\].*\[Conformance\]'
conformance: venv
	@echo "==> running Kubernetes' conformance cases on an embedded cluster (needs Go; hours)"
	@PYTHONPATH=tests $(PY) -m conformance.run $(if $(FOCUS),--focus '$(FOCUS)') $(if $(POD_NETWORK),--pod-network $(POD_NETWORK)) $(if $(PODS),--pods $(PODS)) $(if $(CLUSTERS),--clusters $(CLUSTERS))

crds: venv
	@echo "==> generating the custom resource definitions (needs tests/realkube/build)"
	@PYTHONPATH=tests $(PY) tests/tools/crds.py

api-types: venv
	@echo "==> generating the table of the built-in types (needs tests/realkube/build and Go)"
	@PYTHONPATH=tests $(PY) tests/tools/api_types.py
	@PYTHONPATH=tests $(PY) tests/tools/component_roles.py

# BREAK=1 allows changes that break clients.
openapi: venv
	@echo "==> writing the description of the REST API, docs/openapi.json"
	@$(PY) tests/tools/openapi.py $(if $(BREAK),--break)

invariants: venv
	@echo "==> updating docs/invariants.md from the tests"
	@$(PY) tests/tools/invariants.py

changelog: venv
	@echo "==> moving the fragments of changelog.d to CHANGELOG.md"
	@$(PY) tests/tools/changelog.py

# The packages of the image with the hashes of their files, in the versions of constraints.txt.
COMPILE = uv pip compile --quiet --constraint constraints.txt --generate-hashes --python-version 3.11 \
	--python-platform linux --no-annotate --no-header --no-emit-index-url
requirements:
	@command -v uv >/dev/null || { echo "needs uv: pip install uv"; exit 1; }
	@$(COMPILE) pyproject.toml --extra postgres -o requirements.txt
	@echo hatchling | $(COMPILE) - -o requirements-build.txt
