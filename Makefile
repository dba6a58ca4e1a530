# setup | test | coverage | fuzz | matrix | lint | demo | bench | docs | clean.  Needs python3.11, a C compiler and make; nothing else.
PYTHON ?= python3.11
BIN := .venv/bin
# Files in their order, which ends with the shortest ones (docstrings): so both processes end at one time. A process
# that dies ends the run: pytest-xdist 3.8 hands its files out again in a way that then waits for ever.
TWO := --numprocesses 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0
DEPENDENCIES := pyproject.toml constraints.txt
# Where it is set, each interpreter that a test starts compiles all of stepnet for itself: most of a second each.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup test coverage fuzz matrix lint demo bench docs clean

setup: .venv/.setup

# A stamp: the environment is made again only when what it is made from changes.
.venv/.setup: $(DEPENDENCIES)
	@echo "Setting up .venv: a minute or two the first time"
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -qq --constraint constraints.txt --editable '.[dev]'
	touch $@

.venv/.bench: .venv/.setup
	$(BIN)/python -m pip install -qq --constraint constraints.txt --editable '.[bench]'
	touch $@

# Everything: tests, the examples in docstrings, the code blocks of README and docs.
test: setup
	$(BIN)/python -m pytest $(TWO)

# The same, and which lines and branches it ran: counting them takes a quarter to half as long again.
coverage: setup
	$(BIN)/python -m pytest $(TWO) --cov --cov-report=term:skip-covered

# All tests that `make test` has a choice of; then 10,000 random steps, 2,000 programs that change what a step reads
# between its calls, 2,000 models with what users do with them, 2,000 programs of derivatives of derivatives,
# 2,000 calls with options joined, 2,000 models of sequences, 2,000 steps over sentences, 2,000 programs over
# tensors that are views of one another, and 2,000 steps on paths that many rows take, against loops: some hours.
# Those that differ are printed.
fuzz: setup
	$(BIN)/python -m pytest $(TWO) --exhaustive
	cd tests && ../$(BIN)/python -m fuzz 0 9000 eager && ../$(BIN)/python -m fuzz 9000 1000 auto && \
		../$(BIN)/python -m fuzz.changes 0 2000 && ../$(BIN)/python -m fuzz.changes 2000 500 auto && \
		../$(BIN)/python -m fuzz.models 0 2000 && ../$(BIN)/python -m fuzz.frames 0 2000 && \
		../$(BIN)/python -m fuzz.frame_files 0 1000 && \
		../$(BIN)/python -m fuzz.orders 0 2000 && ../$(BIN)/python -m fuzz.calls 0 2000 && \
		../$(BIN)/python -m fuzz.sequences 0 2000 && ../$(BIN)/python -m fuzz.heaps 0 2000 && \
		../$(BIN)/python -m fuzz.sizes 0 2000 && \
		../$(BIN)/python -m fuzz.onnx_files 0 500 && ../$(BIN)/python -m fuzz.onnx_files 0 500 auto ir && \
		../$(BIN)/python -m fuzz.nested 0 2000 && \
		../$(BIN)/python -m fuzz.mutants 0 2000 onnx && ../$(BIN)/python -m fuzz.mutants 0 2000 ir && \
		../$(BIN)/python onnx/fuzz.py 10000

# The core under other versions of Python and torch, each in an environment of its own: some gigabytes, and some
# minutes for each. What this machine cannot have is named.
matrix: setup
	$(BIN)/python tests/versions.py .matrix

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

demo: setup
	$(BIN)/stepnet demo

bench: .venv/.bench
	$(BIN)/python -m benchmarks

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

clean:
	rm -rf .venv build dist site .coverage .coverage.* .pytest_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
