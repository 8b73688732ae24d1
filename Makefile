# The same commands for people and for CI. VENV names the environment to use (made when missing), ARGS goes to the command.
VENV ?= .venv
PYTHON ?= python3
ARGS ?=
BIN := $(VENV)/bin
# For tests of Triton kernels, which it interprets. A PyTorch for GPUs brings the version that it needs; this is for others.
TRITON := triton==3.6.0
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help venv serve check format test test-full wheel image clean

help:  ## say what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s  %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(VENV)/.serve: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	@touch $@

$(VENV)/.develop: $(VENV)/.serve
	$(PIP) --editable '.[test]'
	$(BIN)/python -c 'import triton' 2>/dev/null || $(PIP) $(TRITON) || \
		echo "$(TRITON) cannot be had: its kernels are not tested" >&2
	@touch $@

venv: $(VENV)/.develop  ## make the environment with everything that development needs

serve: $(VENV)/.serve  ## serve the demo model on port 8000 (ARGS="MODEL --port 9000" for others)
	$(BIN)/plait serve $(ARGS)

check: $(VENV)/.develop  ## lint, formatting, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.develop  ## put imports and formatting right
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: check  ## check, then every test but the long sweeps
	$(BIN)/python -m pytest -m "not slow" $(ARGS)

test-full: check  ## check, then every test, the long sweeps too
	$(BIN)/python -m pytest $(ARGS)

wheel: $(VENV)/.develop  ## build dist/*.whl
	$(BIN)/python -m hatchling build -t wheel

image:  ## build the Docker image, PIP_EXTRA_ARGS as in docs/deployment.md
	docker build --build-arg PIP_EXTRA_ARGS="$(PIP_EXTRA_ARGS)" --tag plait:0.1.0 .

clean:  ## remove the environment, builds and caches
	rm -rf .venv dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
