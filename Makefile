# Needs git, GNU make and a Python from 3.11 to 3.14 with venv; everything else goes into .venv.
#
#   make demo     a real experiment: 40 small networks on handwritten digits
#   make check    ruff, mypy, unit tests with the import rules: what to run before each commit; UNIT_JOBS=0 for one process
#   make test     all but what is for the night, by three processes; ARGS="-k resume" for a part, JOBS=0 for one after the other
#   make nightly  everything, and for it the frameworks of regrow.integrations (1 GB), Hydra and W&B (120 MB): also long scenarios of which `make test` has the main path in another test; ARGS="-m nightly" for those alone
#   make gpu      the tests of GPUs: by a stand-in for NVIDIA's driver, and on the real ones that are here; says what it skips
#   make soak     an experiment under fire for ten minutes; ARGS="--minutes 2 --seed 7"
#   make docs     the site, into site/; `make pictures` takes its pictures anew, of a real run
#   make mutants  changes one operator of the core at a time and sees whether a test fails; ARGS="--each 40 --only log,planner"
#   make bench    our overhead and Ray Tune's, side by side; ARGS="--quick" and so on
#   make compat   canary, demo and nearest tests with the minor releases of Ray, Prefect and MLflow next to ours; ARGS="--only ray";
#                 and `make compat-tune`, Ray Tune's own examples, each killed once and resumed; ARGS="--only pbt"; after them
#                 `make tune-compared`: experiments run by Ray Tune and by `regrow.tune`, and compared; COMPARED="--only stop";
#                 `make compat-wandb`: kinds of sweep files of W&B's, each run as it is; ARGS="--only bayes";
#                 `make compat-optuna`: studies run by Optuna and by `regrow.optuna`, and compared; ARGS="--only catch"
#   make lock     writes requirements.lock anew from pyproject.toml, and sbom.cdx.json of it; UPGRADE=1 for newer versions
#   make dumps    writes the databases that Prefect and MLflow begin with, by their migrations: after a change of their versions

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
ARGS :=
# One more than most machines have cores: on two, tests/system took 39 minutes by three processes and some 52 by two.
JOBS := 3
UNIT_JOBS := 2
UPGRADE :=
TORCH = $(shell sed -n 's/^torch = \["\(.*\)"\]/\1/p' pyproject.toml)
HYDRA = $(shell sed -n 's/^test-hydra = \["\(.*\)"\].*/\1/p' pyproject.toml)
SBOM = $(shell sed -n 's/^sbom = \["\(.*\)"\].*/\1/p' pyproject.toml)
WANDB = $(shell sed -n 's/^test-wandb = \["\(.*\)"\].*/\1/p' pyproject.toml)
FRAMEWORKS := sklearn,xgboost,lightgbm,catboost,lightning,keras,flax,transformers,accelerate

TUNE_EXAMPLES = $(shell sed -n 's/^tune-examples = \[\(.*\)\]/\1/p' pyproject.toml | sed 's/", "/" "/g')

# The first that runs, is of a version that our dependencies have wheels for, and can make an environment.
FITS := import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))
PYTHON = $(shell for p in python3.11 python3.12 python3.13 python3.14 python3; do \
	if "$$p" -c '$(FITS)' 2>/dev/null; then command -v "$$p"; break; fi; done)

.PHONY: demo check lint types units test nightly gpu soak mutants bench compat compat-releases compat-tune tune-compared compat-wandb compat-optuna optuna-examples docs pictures lock dumps sbom install clean
.DELETE_ON_ERROR:

demo: $(VENV)/.installed
	$(BIN)/regrow run examples/digits.yaml

# Types and units side by side: units keep two cores busy, types one for 10 s (30 s with an empty .mypy_cache).
check: $(VENV)/.installed
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory -j2 types units

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .

types: $(VENV)/.installed
	$(BIN)/mypy

units: $(VENV)/.installed
	$(BIN)/python -m pytest -q --numprocesses=$(UNIT_JOBS) --dist=loadfile tests/unit $(ARGS)

test: $(VENV)/.installed $(VENV)/.torch
	$(BIN)/python -m pytest --numprocesses=$(JOBS) --dist=loadfile --no-loadscope-reorder -m "not nightly" $(ARGS)

nightly: $(VENV)/.installed $(VENV)/.torch $(VENV)/.frameworks $(VENV)/.apart
	$(BIN)/python -m pytest --numprocesses=$(JOBS) --dist=loadfile --no-loadscope-reorder $(ARGS)

gpu: $(VENV)/.installed $(VENV)/.torch
	$(BIN)/python -m pytest tests/gpu $(ARGS)

soak: $(VENV)/.installed
	$(BIN)/python -m tests.faults.soak $(ARGS)

mutants: $(VENV)/.installed
	$(BIN)/python -m tests.mutants $(ARGS)

bench: $(VENV)/.installed
	$(BIN)/python benchmarks/overhead.py $(ARGS)

compat: compat-releases compat-tune

compat-releases: $(VENV)/.installed
	$(BIN)/python -m tests.compat $(ARGS)

# What these examples import beside Ray is not in the lock: nothing else needs it.
compat-tune: $(VENV)/.installed
	$(PIP) install --quiet $(TUNE_EXAMPLES)
	$(BIN)/python -m tests.tune_examples $(ARGS)
	$(MAKE) tune-compared

tune-compared: $(VENV)/.installed
	$(BIN)/python -m tests.compared tune $(COMPARED)

compat-wandb: $(VENV)/.installed
	$(BIN)/python -m tests.wandb_sweeps $(ARGS)

compat-optuna: $(VENV)/.installed
	$(BIN)/python -m tests.compared optuna $(ARGS)

optuna-examples: $(VENV)/.installed
	$(BIN)/python -m tests.optuna_examples $(EXAMPLES) $(ARGS)

docs: $(VENV)/.installed
	$(BIN)/python -m mkdocs build --strict

pictures: $(VENV)/.installed
	$(BIN)/python docs/site/pictures.py $(ARGS)

# Complete for Linux, macOS on Apple silicon (Ray has no wheels for Intel) and each Python that we support, with hashes
# and without any index's address.
lock: $(VENV)/.installed
	$(BIN)/uv pip compile pyproject.toml --extra examples --extra s3 --extra s3-server --extra png --extra tensorboard \
		--extra rl --extra docs --extra dev --universal --python-version 3.11 \
		--generate-hashes --no-emit-index-url --custom-compile-command 'make lock' --quiet \
		$(if $(UPGRADE),--upgrade) --output-file requirements.lock
	@$(MAKE) --no-print-directory sbom

dumps: $(VENV)/.installed
	$(BIN)/python -m tests.dumps

# The tool is not in the lock: it looks at the environment from outside, and would bring thirty packages for one file.
sbom: $(VENV)/.installed
	$(BIN)/uv tool run --quiet --from "$(SBOM)" cyclonedx-py environment --output-reproducible --pyproject pyproject.toml \
		--output-file $(VENV)/sbom.json $(BIN)/python
	$(BIN)/python docs/site/sbom.py $(VENV)/sbom.json

install: $(VENV)/.installed

# regrow/ holds symbolic links to the four folders beside it (docs/architecture.md); an archive, or a git that was told not
# to make links, lays files with the links' targets in their place.
$(shell for part in search tasks flows infra; do \
	test -L regrow/$$part || { rm -f regrow/$$part && ln -s ../$$part regrow/$$part; }; done)

# The stamps: nothing is installed again until the file that says what to install changes.
$(VENV)/.made:
	@test -n "$(PYTHON)" || { echo "no Python from 3.11 to 3.14 with venv was found" \
		"(on Debian and Ubuntu: apt install python3 python3-venv); or name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	"$(PYTHON)" -m venv $(VENV)
	@touch $@

# --no-deps: the file is complete. Else pip first looks for the newest of a package that another asks for with an extra
# (sqlalchemy[asyncio]), and refuses that, as the lock has an older one.
$(VENV)/.locked: requirements.lock | $(VENV)/.made
	$(PIP) install --quiet --no-deps --require-hashes -r requirements.lock
	@touch $@

# --no-build-isolation: hatchling is in the lock too, so that nothing is installed that is not.
$(VENV)/.installed: $(VENV)/.locked pyproject.toml
	$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

# Not in the lock: pip takes the build, for CUDA or CPU, that it is set up for. Only tests of an example need it.
$(VENV)/.torch: $(VENV)/.locked
	$(PIP) install --quiet "$(TORCH)"
	@touch $@

# Not in the lock either: 1 GB that nobody else needs, and Lightning and Accelerate ask for PyTorch. What is installed stays as it is.
$(VENV)/.frameworks: $(VENV)/.installed $(VENV)/.torch
	$(PIP) freeze --exclude-editable | sed -n '/==/p' > $(VENV)/there.txt
	$(PIP) install --quiet --no-build-isolation --constraint $(VENV)/there.txt --editable ".[$(FRAMEWORKS)]"
	@touch $@

# In folders of their own, which only the programs of their tests have on their path: both bring other releases of what is locked.
$(VENV)/.apart: pyproject.toml | $(VENV)/.installed
	$(PIP) install --quiet --upgrade --target $(VENV)/apart/hydra "$(HYDRA)"
	$(PIP) install --quiet --upgrade --target $(VENV)/apart/wandb "$(WANDB)"
	@touch $@

clean:
	rm -rf $(VENV) .regrow dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis
