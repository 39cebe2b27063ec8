# Each command does all of its own set-up in ./.venv: Python 3.11 or newer with its venv module is enough.
#
#   make run            the restart suite on the simulator   (make run ARGS="--suite all")
#   make test           everything that has to hold and takes minutes; `make check` is the same
#   make slow           the tests that take longer: many processes killed, the real clock, every command of the docs
#   make kills          every process of a bench rehearsal killed at every frame (half an hour; ARGS="--every 20")
#   make model          every order of what may go wrong, tried on the table of states (half a minute; ARGS=--deep)
#   make bench          durable commands per second against raw sqlite3 and DBOS, the simulator's requests per second against
#                       other servers; ratios, benchmarks/README.md   (ARGS for the first, SERVER_ARGS for the second)
#   make clients        real client programs against the simulator, each in an environment of its own (docs/clients.md)
#   make mutants        does each guard's test notice when the guard is gone? then the registry, against whole suites
#                       (an hour; ARGS=tests/ledger for the guards of some tests only)
#   make registry       the production mutants, one rule of the command path dropped at a time, against their tests
#   make format         format and apply the linter's safe fixes
#   make wheel          build the wheel into dist/
#   make clean          remove what these commands made, run folders excepted
#
# PYTHON=python3.12 make test   uses another Python; .venv is rebuilt for it.

SHELL := /bin/sh
PYTHON ?= python3
ARGS ?=
SERVER_ARGS ?=
# Tests, mutants: how many at a time.
JOBS ?= 2
BIN := .venv/bin

# Every step shares one .venv, also under `make -j`.
.NOTPARALLEL:
.PHONY: run test check slow kills model clients mutants registry format wheel clean setup-run setup-test setup-bench

run: setup-run
	$(BIN)/hil run $(ARGS)

test: check

check: setup-test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -q -n $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)
	$(BIN)/coverage combine -q
	$(BIN)/coverage report

slow: setup-test
	$(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile --no-loadscope-reorder -m slow $(ARGS)

# Runner, guardian, worker, and Ctrl-C, at every frame of a rehearsal, on three kinds of unit: about 2,000 runs.
kills: setup-test
	$(BIN)/python tests/hil/killkit.py $(ARGS)

# What is not to be had here (no network, no newer Python) is skipped with the reason; HIL_CLIENTS=require fails it.
clients: setup-test
	$(BIN)/python -m pytest -q -rs -n $(JOBS) -m clients tests/clients $(ARGS)

model: setup-run
	$(BIN)/python -m hil.modelcheck $(ARGS)

bench: setup-bench
	$(BIN)/python -m benchmarks.ledger $(ARGS)
	$(BIN)/python -m benchmarks.server $(SERVER_ARGS)

mutants: setup-test
	$(BIN)/python tests/mutants.py --jobs $(JOBS) $(ARGS)
	$(if $(ARGS),,$(BIN)/python tests/production_mutants.py --others --jobs $(JOBS))

registry: setup-test
	$(BIN)/python tests/production_mutants.py --jobs $(JOBS) $(ARGS)

format: setup-test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

wheel: setup-test
	$(BIN)/python -m build --wheel --outdir dist .

clean:
	rm -rf .venv .venv-clients build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	rm -f .coverage .coverage.*
	find ledger adapters simulator hil tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

setup-run:
	@$(call setup,run,.)

setup-test:
	@$(call setup,test,.[test])

setup-bench:
	@$(call setup,bench,.[bench])

# $(call setup,NAME,REQUIREMENT): a .venv of this Python at this place, and REQUIREMENT installed in it, editable.
# A .venv that another Python made, or that was moved or copied here, is rebuilt: its scripts point elsewhere.
# Workers that start cold should not spend their time on compiling, whatever PYTHONDONTWRITEBYTECODE says.
# The note .venv/.installed-NAME says for which pyproject.toml the installation was finished.
define setup
set -eu; \
base=$$($(PYTHON) -c 'import sys; print(sys._base_executable)') || { \
	echo 'Python not found: install python3 (3.11 or newer) or set PYTHON=' >&2; exit 1; }; \
"$$base" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	echo "$$base is older than Python 3.11: set PYTHON=" >&2; exit 1; }; \
id='import sys; print(sys.version, sys.base_prefix)'; \
want="$$("$$base" -c "$$id") $$(pwd -P)/.venv"; \
have="$$($(BIN)/python -c "$$id" 2>/dev/null) $$($(BIN)/pip --version 2>/dev/null | sed 's/^pip [^ ]* from //; s|/lib/python.*||')" || true; \
if [ "$$want" != "$$have" ]; then \
	echo 'Making .venv'; \
	rm -rf .venv; \
	"$$base" -m venv .venv; \
fi; \
sum=$$(cksum < pyproject.toml); \
if [ "$$(cat .venv/.installed-$(1) 2>/dev/null)" != "$$sum" ]; then \
	echo 'Installing battery-hil into .venv, for "make $(1)" (once)'; \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '$(2)'; \
	echo "$$sum" > .venv/.installed-$(1); \
	if [ $(1) = test ]; then echo "$$sum" > .venv/.installed-run; fi; \
fi; \
$(BIN)/python -m compileall -q ledger adapters simulator hil
endef
