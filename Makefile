# Every target sets up what it needs by itself (scripts/setup); nothing has to be installed beforehand but Python, git and make.
.DEFAULT_GOAL := help
.PHONY: help run test check bench accuracy wheel wheel-check kernels screenshots manual

VENV ?= .venv
export VENV
PYTHON_BIN := $(VENV)/bin/python
# make run ARGS="--gpu 0", make test ARGS="-k pty -x"
ARGS ?=

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

run: ## See the dashboard (ARGS="…" are gputop's own flags); without an NVIDIA GPU here, `gputop demo`
	@scripts/setup run
	@if [ -n "$(ARGS)" ] || [ -e /dev/nvidiactl ] || [ -e /dev/dxg ]; then $(VENV)/bin/gputop $(ARGS); \
	else echo "No NVIDIA GPU here: gputop demo, real processes before a simulated GPU (make run ARGS=--no-ebpf: this machine)"; \
	sleep 2; $(VENV)/bin/gputop demo; fi

test: ## Run the tests (ARGS="…" are pytest's own flags)
	@scripts/setup test
	$(PYTHON_BIN) -m pytest -n 2 --dist loadfile $(ARGS)

check: ## Lint, types, and which layer may import which
	@scripts/setup test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-logo

bench: ## Measure cost, start, response, beat and truth beside nvitop (ARGS="cost --quick" for a part)
	@scripts/setup test
	$(PYTHON_BIN) -m tests.bench $(ARGS)

accuracy: ## A confusion table of the diagnosis over labelled real workloads, with and without eBPF
	@scripts/setup test
	$(PYTHON_BIN) -m tests.bench.accuracy $(ARGS)

wheel: ## Build wheel and sdist into dist/
	@scripts/setup test
	$(PYTHON_BIN) -m build --outdir dist

wheel-check: wheel ## Install the wheel into clean environments of every Python 3.10 to 3.14 here, and try it
	scripts/wheel-check dist

screenshots: ## Write screenshots/*.svg from the recording that comes with gputop
	@scripts/setup test
	$(PYTHON_BIN) scripts/screenshots.py

manual: ## Write the man page and the shells' completions from the commands' own parsers
	@scripts/setup test
	$(PYTHON_BIN) scripts/manual.py

kernels: ## The probes on the kernels and bccs of several distributions (QEMU; half an hour, 5 GB; ARGS="bookworm trixie-arm64")
	@scripts/setup test
	$(PYTHON_BIN) -m tests.kernels.matrix $(ARGS)
