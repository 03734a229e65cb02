# Every target sets up what it needs, says what it does and how long it took. Nothing but python3 (3.11 or later, with
# venv), g++ and make is needed. All paths are relative, so the checkout may lie in a folder whose name holds blanks.

PYTHON ?= $(shell command -v python3.11 || command -v python3 || echo python3)
export PYTHON # recipes read it from the environment: its path may hold blanks and quotes
# A further package index that offers CPU builds of torch. Needed where the package index has only torch's CUDA build:
#   make setup TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
INDEX = $(if $(TORCH_INDEX),--extra-index-url "$(TORCH_INDEX)")
PIP = -m pip --disable-pip-version-check install -qq --no-deps
DEV = .venv/.ready
ARMS = .venv-arms/.ready
PLUGIN = .venv-arms/.plugin
HARNESS = .venv/bin/python -m harness

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint requirements prove bench-meter kill-points calibrate agreement-study aa bench-kernel kernel-sanitize clean
.DELETE_ON_ERROR:

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

setup: $(DEV) $(ARMS) $(PLUGIN) ## make .venv/ (the harness) and .venv-arms/ (vLLM on CPU, cpu_int4); does nothing the second time

# $(call new_venv,folder): a fresh environment, or a sentence that says what is missing.
define new_venv
	@"$$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Python 3.11 or later is needed; $$PYTHON is not: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11" >&2; exit 1; }
	@"$$PYTHON" -c 'import ensurepip, venv' || { \
	  echo 'Python lacks venv: install it (Debian: apt install python3-venv) and run make again' >&2; exit 1; }
	@rm -rf $(1) && "$$PYTHON" -m venv $(1)
endef

$(DEV): requirements/dev.txt pyproject.toml
	@echo 'setup: .venv/ from requirements/dev.txt (about half a minute) ...'
	$(call new_venv,.venv)
	@start=$$(date +%s); .venv/bin/python $(PIP) -r requirements/dev.txt \
	  && .venv/bin/python $(PIP) --no-build-isolation -e . \
	  && touch $@ && echo "setup: .venv/ is ready after $$(( $$(date +%s) - start )) s; .venv/bin/harness works from now on"

$(ARMS): requirements/arms.txt
	@echo 'setup: .venv-arms/ from requirements/arms.txt (vLLM on CPU, about 2 GB, a minute or more) ...'
	$(call new_venv,.venv-arms)
	@start=$$(date +%s); .venv-arms/bin/python $(PIP) $(INDEX) -r requirements/arms.txt \
	  && { .venv-arms/bin/python -c 'import sys, torch; sys.exit(torch.version.cuda is not None)' 2>/dev/null || { \
	    echo 'The torch that was installed is no CPU build. Run: make setup TORCH_INDEX=https://download.pytorch.org/whl/cpu' >&2; \
	    exit 1; }; } \
	  && touch $@ && echo "setup: .venv-arms/ is ready after $$(( $$(date +%s) - start )) s"

# Editable: changes of its Python files need no new install. Without build isolation, or pip would fetch another torch.
$(PLUGIN): $(ARMS) $(wildcard plugin/pyproject.toml plugin/setup.py plugin/csrc/*)
	@echo 'setup: the plugin cpu-int4 into .venv-arms/ ...'
	@start=$$(date +%s); .venv-arms/bin/python $(PIP) --no-build-isolation -e ./plugin \
	  && touch $@ && echo "setup: the plugin is installed after $$(( $$(date +%s) - start )) s"

demo: setup ## run experiments/demo.yaml: real vLLM, a real model, verdicts (about 15 minutes)
	$(HARNESS) run experiments/demo.yaml

test: setup ## run all tests, of the harness and of the plugin (about 20 minutes)
	.venv/bin/python -m pytest
	cd plugin && ../.venv-arms/bin/python -m pytest

kill-points: $(DEV) ## kill a run of real processes at 200 random points, resume, compare reports (half an hour)
	HARNESS_KILL_POINTS=200 .venv/bin/python -m pytest -k killed_anywhere tests/test_run_real.py

lint: $(DEV) ## ruff and mypy --strict
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

requirements: ## resolve the pinned lists anew (half a minute, changes requirements/*.txt)
	"$$PYTHON" requirements/renew.py

prove: $(DEV) ## measure programs whose memory is known, on every back end this host offers
	$(HARNESS) host --prove

bench-meter: $(DEV) ## what a memory sample costs, beside psutil and others
	.venv/bin/python -m harness.testing.bench_meter

calibrate: $(DEV) ## the simulation study of the verdicts (a few minutes)
	$(HARNESS) calibrate

agreement-study: $(DEV) ## the simulation study of agreement between runs (a few minutes)
	$(HARNESS) calibrate --agreement

aa: setup ## five identical vLLM arms, five passes: nothing may be ranked
	$(HARNESS) run experiments/aa.yaml

KERNEL = plugin/cpu_int4/_native.so
$(KERNEL): $(ARMS) plugin/setup.py $(wildcard plugin/csrc/*.cpp plugin/csrc/*.h)
	cd plugin && ../.venv-arms/bin/python setup.py -q build_ext --inplace

bench-kernel: $(DEV) $(KERNEL) ## native kernel, tinygemm and oneDNN bf16 against the host's limits (some four minutes of a quiet host)
	PYTHONPATH=plugin .venv-arms/bin/python -W ignore::RuntimeWarning plugin/bench/bench_kernel.py results/bench_kernel
	.venv/bin/python plugin/bench/report.py "$$(ls -d results/bench_kernel/*/ | tail -n 1)" analysis

kernel-sanitize: ## the kernel's own test under the address and undefined-behaviour sanitizers (a minute)
	$(MAKE) -C plugin/csrc sanitize

clean: ## remove environments, models and caches of this checkout; results stay
	rm -rf .venv .venv-arms .models .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
