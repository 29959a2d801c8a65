# Two commands for a newcomer: `make demo` and `make test`. Everything lives in .venv; nothing else is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test bench lint gpu-check clean

$(STAMP): pyproject.toml constraints/dev.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip
	$(BIN)/python -m pip install -q -c constraints/dev.txt torch
	$(BIN)/python -m pip install -q -c constraints/dev.txt -e ".[dev]"
	touch $@

demo: $(STAMP)
	@$(BIN)/preassert demo

test: $(STAMP) lint
	$(BIN)/python -m pytest -n 2 --dist worksteal

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python tools/build_catalogue.py --check
	$(BIN)/python tools/build_operators.py --check

bench: $(STAMP)
	$(BIN)/python bench/run.py

gpu-check:
	@$(or $(wildcard $(BIN)/python),$(PYTHON)) tools/gpu_check.py

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
