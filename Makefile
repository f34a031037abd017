# Each target sets up what it needs (scripts/setup). Install only Python, git and make beforehand.
.DEFAULT_GOAL := help
.PHONY: help run test soak test-newest check bench accuracy what-if fixes trials stragglers wheel wheel-check deb kernels screenshots manual docs kills fuzz

VENV ?= .venv
export VENV
PYTHON_BIN := $(VENV)/bin/python
# make run ARGS="--gpu 0", make test ARGS="-k pty -x"
ARGS ?=
# Much of the tests' time is waiting. Those of `soak` load the machine and need some of it themselves: fewer of them at a time.
# The ten dearest tests are listed in the end: growth shows.
SIDE_BY_SIDE := --dist loadfile --no-loadscope-reorder --durations=10 --durations-min=1

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

run: ## Open the dashboard (ARGS="…": gputop's flags); without an NVIDIA GPU `gputop demo`
	@scripts/setup run
	@if [ -n "$(ARGS)" ] || [ -e /dev/nvidiactl ] || [ -e /dev/dxg ]; then $(VENV)/bin/gputop $(ARGS); \
	else echo "No NVIDIA GPU here: gputop demo, real processes before a simulated GPU (make run ARGS=--no-ebpf: this machine)"; \
	sleep 2; $(VENV)/bin/gputop demo; fi

test: ## Run the tests but those of `make soak` (ARGS="…": pytest's flags)
	@scripts/setup test
	$(PYTHON_BIN) -m pytest -n 7 $(SIDE_BY_SIDE) -m "not soak" $(ARGS)

soak: ## Run the tests that are long by nature: kills, fuzzing, real trainings (ARGS="…": pytest's flags)
	@scripts/setup test
	$(PYTHON_BIN) -m pytest -n 5 $(SIDE_BY_SIDE) -m soak $(ARGS)

test-newest: ## Some of the screen's tests with the newest Textual; warns, and never fails
	@scripts/setup test
	@scripts/test-newest

check: ## Check style, types and import layers
	@scripts/setup test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-logo

bench: ## Measure cost, start, response, beat and accuracy of values beside nvitop (ARGS="cost --quick": a part; ARGS=gate: against an older commit)
	@scripts/setup test
	$(PYTHON_BIN) -m tests.bench $(ARGS)

accuracy: ## Judge the recordings of the labelled workloads anew (ARGS=--wrong: what was said wrongly; ARGS=--record: record them anew)
	@scripts/setup test
	$(PYTHON_BIN) -m tests.corpus.accuracy $(ARGS)

what-if: ## Predict what changes bring to real jobs, make them, and compare (ARGS="--only disk": some pairs)
	@scripts/setup test
	$(PYTHON_BIN) -m tests.experiments.whatif_pairs $(ARGS)

fixes: ## Make the first fix of jobs with each cause, and compare what it brings with what was promised; an hour and a half (ARGS="--only affinity")
	@scripts/setup test
	$(PYTHON_BIN) -m tests.experiments.fixes $(ARGS)

trials: ## Prove the causes of real jobs, and decoys that must not be proved; an hour (ARGS="--only hogs --runs 1": some)
	@scripts/setup test
	$(PYTHON_BIN) -m tests.experiments.trials $(ARGS)

kills: ## Kill gputop and its guardian at random moments of experiments: is all put back? (ARGS="60 SEED"; half a minute)
	@scripts/setup test
	$(PYTHON_BIN) -m tests.experiments.kills $(ARGS)

fuzz: ## Read changed recordings, streams of nodes, traces, requests …: each is read or refused, in bounds (ARGS="100000"; 10,000 take minutes)
	@scripts/setup test
	$(PYTHON_BIN) -m tests.fuzzing $(ARGS)

stragglers: ## Over sixteen nodes behind real sshds: is the late rank told, its node and its cause? (ARGS="--only hog": one kind; a quarter of an hour)
	@scripts/setup test
	$(PYTHON_BIN) -m tests.fleet.stragglers $(ARGS)

wheel: ## Build wheel and sdist into dist/
	@scripts/setup test
	$(PYTHON_BIN) -m build --outdir dist

wheel-check: wheel ## Try the wheel in a clean environment of each Python 3.10 to 3.14 here
	scripts/wheel-check dist

deb: wheel ## Make a Debian package of the wheel, for this Python and architecture, in dist/
	$(PYTHON_BIN) scripts/deb.py "$$(ls -t dist/*.whl | head -1)" -o dist

screenshots: ## Write screenshots/ from the bundled recording
	@scripts/setup test
	$(PYTHON_BIN) scripts/screenshots.py

manual: ## Write what docs/ has from the code (keys, commands, causes, metrics), the dashboard, the picture of the rooms
	@scripts/setup test
	$(PYTHON_BIN) scripts/pages.py
	$(PYTHON_BIN) scripts/dashboard.py
	$(PYTHON_BIN) scripts/house.py

docs: ## Build docs/ as a site into site/, without a warning
	@scripts/setup test
	NO_MKDOCS_2_WARNING=1 $(PYTHON_BIN) -m mkdocs build --strict

kernels: ## Run the probes on the kernels and bccs of several distributions (QEMU; half an hour, 5 GB; ARGS="bookworm trixie-arm64")
	@scripts/setup test
	$(PYTHON_BIN) -m tests.kernels.matrix $(ARGS)
