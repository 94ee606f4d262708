# Every target sets up what it needs. `make` lists them.

VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.ready
# Compiled modules are worth keeping: Spark starts many Python workers.
export PYTHONDONTWRITEBYTECODE :=
SEEDS ?= 2000

.DEFAULT_GOAL := help
.PHONY: help setup demo test check fast conformance differential sim explore strangers soak-short bench bench-quick lock clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 16

$(STAMP): requirements.lock pyproject.toml
	test -x $(PY) || python3 -m venv $(VENV)
	$(PY) -m pip install --quiet --require-hashes --requirement requirements.lock
	$(PY) -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $(STAMP)

setup: $(STAMP)  ## make the virtual environment

demo: $(STAMP)  ## count ads on Spark, kill a worker, and prove that nothing was lost or doubled
	$(VENV)/bin/penstock demo

test: $(STAMP)  ## lint, types and all tests that belong to every change
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(PY) -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder

fast: $(STAMP)  ## the tests that need no Spark
	$(PY) -m pytest -q -m "not spark and not slow"

check: $(STAMP)  ## lint and types only
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

conformance: $(STAMP)  ## every case on every runner, stopped and restored in the full matrix; other suites whose whole takes minutes
	PENSTOCK_CONFORMANCE=full $(PY) -m pytest -q -n 2 tests/conformance tests/runners/test_supervisor.py tests/runners/test_cluster.py tests/bugs

differential: $(STAMP)  ## every function, operator and cast of SQL beside Spark's own answers, 2,000 rows each; other rows: SEED=7
	PENSTOCK_DIFFERENTIAL=full PENSTOCK_SEED=$(or $(SEED),1) $(PY) -m pytest -q tests/differential

sim: $(STAMP)  ## SEEDS=2000 simulated schedules with faults; one seed again: make sim SEED=7
	$(PY) -m penstock.testing.simulator $(if $(SEED),--seed $(SEED),--seeds $(SEEDS))

explore: $(STAMP)  ## all interleavings of the protocol in the larger scope
	$(PY) -m penstock.testing.explorer --full

strangers: $(STAMP)  ## a million greetings of strangers through the parsers, and 20,000 to the ports of a running job
	PENSTOCK_GREETINGS=1000000 PENSTOCK_STRANGERS=20000 $(PY) -m pytest -q tests/runners/test_strangers.py

soak-short: $(STAMP)  ## fifty real kills in both Spark runners
	$(PY) tests/soak/soak.py --short

bench: $(STAMP)  ## throughput, latency, recovery, back-pressure, scaling and cores at steady rates beside Structured Streaming, Flink and Bytewax; forty minutes
	$(PY) -m benchmarks.run

bench-quick: $(STAMP)  ## the same in five minutes, less certain; and tests of the peers that must be fetched
	$(PY) -m pytest -q benchmarks
	$(PY) -m benchmarks.run --quick

lock:  ## pin the newest versions that pyproject.toml allows (needs uv)
	uv pip compile --quiet --generate-hashes --no-header --no-annotate --no-emit-index-url --extra spark --extra rocksdb --extra dev \
		--python-version 3.11 pyproject.toml --output-file requirements.lock

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
