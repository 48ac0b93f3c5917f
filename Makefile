# make setup | make run | make test | make lint | make clients | make fuzz-api | make fuzz-wire | make bench | make bench-api | make bench-siege |
# make crash | make soak | make systemd | make audit | make clean

SHELL := /bin/bash
VENV := .venv
STAMP := $(VENV)/.complete
# The first Python 3.11 or later that can make a virtual environment.
PYTHON ?= $(shell for python in python3.11 python3 python3.12 python3.13 /usr/bin/python3; do \
	$$python -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$python && break; done)

.PHONY: setup run test lint clients fuzz-api fuzz-wire bench bench-api bench-siege crash soak systemd audit clean

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

# What the tests of real clients fetch with; without one of them, its tests are skipped.
PROGRAMS := chromium git proxychains4 wget
SUDO := $(shell test "$$(id -u)" = 0 || echo sudo)

clients:
	@missing=$$(for each in $(PROGRAMS); do command -v $$each >/dev/null || echo $$each; done; \
		command -v npm >/dev/null || echo nodejs npm); \
	test -z "$$missing" || { $(SUDO) apt-get update && \
		$(SUDO) apt-get install --yes --no-install-recommends $$missing; }
	npm install --prefix tests/clients --no-package-lock --ignore-scripts --no-audit --no-fund

# Minutes of examples against the API's own document; bounded in `make test`.
fuzz-api: setup
	PROXYD_FUZZ_EXAMPLES=$${PROXYD_FUZZ_EXAMPLES:-1500} $(VENV)/bin/python -m pytest tests/api/test_fuzz.py

# A million made-up handshakes in memory and 20,000 over sockets, others each time: six minutes.
fuzz-wire: setup
	@start=$${PROXYD_FUZZ_START:-$$(date +%s)000000}; echo "PROXYD_FUZZ_START=$$start"; \
	PROXYD_FUZZ_START=$$start PROXYD_FUZZ_HANDSHAKES=$${PROXYD_FUZZ_HANDSHAKES:-1000000} \
	PROXYD_FUZZ_SOCKETS=$${PROXYD_FUZZ_SOCKETS:-20000} $(VENV)/bin/python -m pytest \
		tests/proxyd/wire/test_fuzz.py tests/conformance/test_fuzz.py

# Side by side with dante, microsocks and pproxy; installs what Debian has of them, as root.
# ROUNDS=5 ONLY=bulk,echo RIVALS="name=command {config:PATH}": see docs/benchmarks.md.
bench: setup
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[bench]'
	@PYTHONPATH=.:tests $(VENV)/bin/python -m bench.proxy

# Side by side with a bare aiohttp handler and with the usual way; needs wrk (apt-get install wrk).
bench-api: setup
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[bench]'
	PYTHONPATH=.:tests $(VENV)/bin/python -m bench.api

# One address does its worst to the API, another one measures its answers: a minute and a half.
bench-siege: setup
	PYTHONPATH=.:tests SIEGE_SECONDS=$${SIEGE_SECONDS:-60} $(VENV)/bin/python -m bench.siege

# kill -9 under load, a hundred times on each engine, at other moments each time: five minutes.
KILLS ?= 100

crash: setup
	@seed=$${SEED:-$$(date +%s)}; echo "SEED=$$seed KILLS=$(KILLS)"; \
	PROXYD_CRASH_SEED=$$seed PROXYD_CRASH_KILLS=$(KILLS) $(VENV)/bin/python -m pytest \
		--timeout 0 --capture no tests/faults/test_kill.py

# Everything at once for a while: what a daemon holds must stop growing.
soak: setup
	PYTHONPATH=.:tests SOAK_SECONDS=$${SOAK_SECONDS:-300} $(VENV)/bin/python -m soak

# The units under a real systemd, on a Debian of its own in build/machine: as root, on Debian, with
# debootstrap and systemd-container. Minutes the first time, then less than two.
MACHINE := build/machine

systemd: setup
	PYTHONPATH=.:tests $(VENV)/bin/python -m support.machine $(MACHINE)
	unshare --net /bin/sh -euc 'ip link set lo up; \
		PROXYD_MACHINE=$(MACHINE) exec $(VENV)/bin/python -m pytest tests/systemd'

# Asks the package index which of the pinned versions have known weaknesses.
audit: setup
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[audit]'
	@$(VENV)/bin/pip-audit --requirement constraints.txt --no-deps --disable-pip --strict --progress-spinner off \
		|| { echo "make audit: a pinned version has a known weakness, or the index's advisories are out of reach; the lines above say which" >&2; exit 1; }

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
