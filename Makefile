# make setup | make run | make test | make lint | make fuzz-api | make bench | make bench-api | make clean

SHELL := /bin/bash
VENV := .venv
STAMP := $(VENV)/.complete
# The first Python 3.11 or later that can make a virtual environment.
PYTHON ?= $(shell for python in python3.11 python3 python3.12 python3.13 /usr/bin/python3; do \
	$$python -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$python && break; done)

.PHONY: setup run test lint fuzz-api bench bench-api clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "proxyd needs Python 3.11 or later with venv: apt-get install python3 python3-venv" >&2; exit 1; }
	@echo "setting up $(VENV): this fetches packages and takes a moment"
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test]'
	touch $(STAMP)

run: setup
	@$(VENV)/bin/proxyd serve --demo

test: lint
	$(VENV)/bin/python -m pytest

lint: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

# Minutes of examples against the API's own document; bounded in `make test`.
fuzz-api: setup
	PROXYD_FUZZ_EXAMPLES=$${PROXYD_FUZZ_EXAMPLES:-1500} $(VENV)/bin/python -m pytest tests/api/test_fuzz.py

# Side by side with dante, microsocks and pproxy; installs what Debian has of them, as root.
# ROUNDS=5 ONLY=bulk,echo RIVALS="name=command {config:PATH}": see docs/benchmarks.md.
bench: setup
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[bench]'
	@PYTHONPATH=.:tests $(VENV)/bin/python -m bench.proxy

# Side by side with a bare aiohttp handler and with the usual way; needs wrk (apt-get install wrk).
bench-api: setup
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[bench]'
	PYTHONPATH=.:tests $(VENV)/bin/python -m bench.api

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
