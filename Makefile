# Everything happens in .venv, which is made once; `make` alone says what there is.
PYTHON ?= python3
RUN := .venv/bin/python
INSTALLED := .venv/.installed

.DEFAULT_GOAL := help
.PHONY: help demo test chaos bench conformance lint

help: ## say what there is
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(INSTALLED) ## a real API, polled and consumed into rows that you can see; needs no server
	$(RUN) -m examples.demo

test: $(INSTALLED) ## run every test, on a real PostgreSQL and a real Kafka that it starts itself
	$(RUN) -m tests.harness.prepare
	$(RUN) -m pytest

ENGINE ?= sqlite
MINUTES ?= 3
SEED ?=

chaos: $(INSTALLED) ## random faults against running processes: ENGINE=sqlite|kafka MINUTES=3 SEED=7
	$(RUN) -m tests.harness.prepare
	$(RUN) -m tests.chaos --engine $(ENGINE) --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

bench: $(INSTALLED) ## measure
	$(RUN) -m tests.harness.prepare
	$(RUN) -m tests.bench

conformance: $(INSTALLED) ## what APIs do to this tool and to its peers, measured into docs/conformance.md
	$(RUN) -m tests.conformance

lint: $(INSTALLED) ## ruff and mypy
	$(RUN) -m ruff check .
	$(RUN) -m mypy

$(INSTALLED): pyproject.toml
	@echo "installing into .venv: about a minute"
	$(PYTHON) -m venv .venv
	$(RUN) -m pip install --quiet --editable '.[dev]'
	touch $@
