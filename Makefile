# make demo    sets everything up, then runs the main job on real input
# make test    sets everything up, then runs all tests that this machine can run
# make check   formatting, lint, types, layers: what `make test` checks before it runs
# make bench   measures every promise beside its peer, writes JSON to out/benchmarks
# make clean   removes what the others made here

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --quiet --disable-pip-version-check
TESTS  ?= tests
JOBS   ?= $(shell nproc 2>/dev/null || echo 2)
DEMO   ?=
COMPILE = uv pip compile -q --universal --generate-hashes --no-header --no-annotate --no-emit-index-url

.PHONY: demo test check bench setup clean lock
.DEFAULT_GOAL := test

demo: $(VENV)/.agent
	$(BIN)/ropewalk demo $(DEMO)

# Also where the environment forbids bytecode: each of some hundred interpreters would compile everything again.
test: check
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(TESTS)

check: $(VENV)/.dev
	$(BIN)/ruff format --check --quiet src tests
	$(BIN)/ruff check --quiet src tests
	$(BIN)/mypy --no-error-summary
	$(BIN)/lint-imports --no-cache > $(VENV)/layers.txt || { cat $(VENV)/layers.txt; exit 1; }

bench: $(VENV)/.dev
	$(BIN)/ropewalk bench --out out/benchmarks

setup: $(VENV)/.dev

# The lock files hold versions and hashes of every package for all supported Pythons.
$(VENV)/.venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Ropewalk needs Python 3.11 or later; '$(PYTHON)' is $$($(PYTHON) --version 2>&1)."; \
	  echo "Next: install it (Debian, Ubuntu: apt install python3 python3-venv) or run make PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "This Python cannot make virtual environments."; \
	  echo "Next: apt install python3-venv (Debian, Ubuntu)"; exit 1; }
	@touch $@

$(VENV)/.base: $(VENV)/.venv requirements/base.lock pyproject.toml
	@echo "Setting up $(VENV) …"
	@$(PIP) install --require-hashes -r requirements/build.lock
	@$(PIP) install --require-hashes -r requirements/base.lock
	@command -v musl-gcc > /dev/null || $(PIP) install --require-hashes -r requirements/agent.lock
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

# Installing compiles the guest agent (hatch_build.py): by musl-gcc where there is one, else by zig, which is large.
# Later changes are compiled here.
$(VENV)/.agent: $(VENV)/.base hatch_build.py agent/flags $(wildcard agent/src/*.c agent/src/*.h)
	@$(BIN)/python hatch_build.py > /dev/null
	@touch $@

$(VENV)/.dev: $(VENV)/.agent requirements/dev.lock
	@$(PIP) install --require-hashes -r requirements/dev.lock
	@touch $@

# Needs uv. No index is written into the files: they work with whichever one the machine uses.
lock:
	$(COMPILE) --group pyproject.toml:build -o requirements/build.lock
	$(COMPILE) --group pyproject.toml:agent -o requirements/agent.lock
	$(COMPILE) pyproject.toml -o requirements/base.lock
	$(COMPILE) pyproject.toml --group dev -c requirements/base.lock -o requirements/dev.lock

clean:
	$(MAKE) --quiet -C agent clean
	rm -f src/ropewalk/sandbox/agent/agent-*
	rm -rf $(VENV) out .pytest_cache .mypy_cache .ruff_cache .hypothesis
