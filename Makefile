PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test test-audit test-flower check bench results docs clean

demo: $(VENV)/.package  ## install, and train the built-in private demo
	$(BIN)/normec train

test: $(VENV)/.dev  ## run the tests
	$(BIN)/pytest

test-flower: $(VENV)/.dev  ## kill processes of a real federation at random moments (about 10 minutes)
	$(BIN)/pytest -m "long or not long" tests/test_flower.py tests/test_flower_processes.py

test-audit: $(VENV)/.dev  ## the power of the audit: 240 runs (about 8 minutes)
	$(BIN)/pytest -s -m "long or not long" tests/test_audit.py

check: $(VENV)/.dev  ## lint, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.bench .venv-peers/.done  ## time the engine beside pfl, Flower and the usual loops, whole runs, and records beside Opacus (about 25 minutes on 2 cores)
	$(BIN)/python benchmarks/engine_speed.py --peers .venv-peers/bin/python
	$(BIN)/python benchmarks/scale.py
	$(BIN)/python benchmarks/record_speed.py

results: $(VENV)/.bench  ## measure the README's table and draw its picture (about 7 minutes on 2 cores)
	$(BIN)/python benchmarks/demo_comparison.py

docs: $(VENV)/.docs  ## build docs/_build/index.html; warnings are errors
	$(BIN)/sphinx-build -W --keep-going -q -b html docs docs/_build

clean:
	rm -rf $(VENV) .venv-peers docs/_build

$(VENV)/.package: pyproject.toml constraints.txt
	@echo "installing into $(VENV): a minute or two"
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --editable .
	touch $@

$(VENV)/.%: $(VENV)/.package
	$(INSTALL) --editable ".[$*]"
	touch $@

.venv-peers/.done: benchmarks/peers.txt
	@echo "installing pfl and Flower into .venv-peers: some minutes"
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/pip install --quiet --disable-pip-version-check --requirement benchmarks/peers.txt
	touch $@
