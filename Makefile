# `make help` lists the targets, by the first sentences of the comments below.

.DEFAULT_GOAL := help
SHELL := /bin/bash
VENV := .venv
STAMP := $(VENV)/.complete
# The first Python 3.11 or later that can make a virtual environment; one with C headers, which compilation needs, is
# preferred. The system's own comes first: servers run it, and Debian's takes a third less time than a plain build.
USABLE = import os, sys, ensurepip, venv, sysconfig; \
	sys.exit(sys.version_info < (3, 11) or not $(if $(1),os.path.exists(sysconfig.get_path("include") + "/$(1)"),True))
FIRST_PYTHON = for python in /usr/bin/python3.11 /usr/bin/python3 python3.11 python3 python3.12 python3.13; do \
	$$python -c '$(call USABLE,$(1))' 2>/dev/null && echo $$python && break; done
PYTHON ?= $(or $(shell $(call FIRST_PYTHON,Python.h)),$(shell $(call FIRST_PYTHON)))

.PHONY: help setup install run exit worker test test-both lint coverage client clusters clients image containers release releases sandboxes screenshots fuzz-api fuzz-wire fuzz-archives bench bench-api bench-growth bench-jobs bench-scaling bench-siege bench-siege-exits \
	bench-start crash crash-jobs failover sim sim-coverage sim-mutants sim-steps soak systemd patroni vm slurm kubernetes notebook audit stripe clean

# Prints this list.
help:
	@echo "Start with: make run"
	@awk '/^#/ { text = (follows ? text " " : "") substr($$0, 3); follows = 1; next } \
		{ follows = 0 } \
		/^[a-z][a-z-]*:/ { \
			sub(/[.:;]( .*)?$$/, "", text); count = split(text, words, " "); \
			sub(/:.*/, ""); printf "%-18s", $$0; width = 18; \
			for (i = 1; i <= count; i++) { \
				if (width + length(words[i]) > 98) { printf "\n%18s", ""; width = 18 } \
				printf " %s", words[i]; width += length(words[i]) + 1 \
			} \
			print "" \
		}' $(firstword $(MAKEFILE_LIST))
	@echo "CONTRIBUTING.md lists the time and the needs of each."

# Compiles the data path with a C compiler, and prints the variant and its reason. Quick when nothing has changed.
setup: $(STAMP)
	@$(VENV)/bin/python -m proxyd.compiled.builder

COMPILE = $(VENV)/bin/python -m compileall -q api client/proxyctl clusters/proxyctl_clusters config market proxyd storage
NEEDS_PYTHON = test -n "$(PYTHON)" || { echo "proxyd needs Python 3.11 or later with venv: apt-get install python3 python3-venv" >&2; exit 1; }

$(STAMP): pyproject.toml clusters/pyproject.toml constraints.txt
	@$(NEEDS_PYTHON)
	@echo "setting up $(VENV): this fetches packages and takes a moment"
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test]' --editable ./clusters
	$(COMPILE)
	touch $(STAMP)

# Installs only the packages for serving, at the pinned versions, into $(PREFIX)/.venv: a copy, so that this folder
# may be moved or changed, without files of root in it. It replaces a development .venv in that place.
#
# No target builds or publishes a wheel, on purpose: its top-level packages would be called api, config, market
# and storage, and would shadow the packages of other programs in one environment.
PREFIX ?= /opt/proxyd
INSTALLED := $(PREFIX)/.venv

install:
	@$(NEEDS_PYTHON)
	@echo "installing into $(INSTALLED): this fetches packages and takes a moment"
	rm -rf build/lib build/bdist.*
	$(PYTHON) -m venv $$(test ! -e $(INSTALLED)/.complete || echo --clear) $(INSTALLED)
	left=; for each in build proxyd.egg-info; do test -e $$each || left="$$left $$each"; done; \
	PIP_CONSTRAINT="$(CURDIR)/constraints.txt" $(INSTALLED)/bin/python -m pip install --quiet \
		--disable-pip-version-check --compile . && rm -rf build/lib build/bdist.* $$left
	@PYTHONDONTWRITEBYTECODE=1 $(INSTALLED)/bin/python -m proxyd.compiled.builder \
		--installed "$$($(INSTALLED)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
	@echo "installed as $(INSTALLED)/bin/proxyd; docs/how-to/operations.md says how it runs as a service"
	@$(INSTALLED)/bin/proxyd --version

# Builds dist/proxyd_VERSION_ARCHITECTURE.deb with Debian's own Python: docs/how-to/debian.md.
deb:
	@/usr/bin/python3 -m release.deb dist $(if $(VERSION),--version $(VERSION))

# Builds dist/proxyd_VERSION_ARCHITECTURE.image.tar, a container image, as root: docs/how-to/containers.md. BASE=new fetches
# the newest packages of Debian first.
image:
	@/usr/bin/python3 -m release.image dist $(if $(VERSION),--version $(VERSION)) $(if $(filter new,$(BASE)),--new-base)

# Builds everything of a release in dist/VERSION, as root: package, image, programs for devices, notes, SHA256SUMS. Its
# commit must be complete. VERSION=0.2.0.
release:
	@test -n "$(VERSION)" || { echo "make release: name the version: make release VERSION=0.2.0" >&2; exit 1; }
	@/usr/bin/python3 -m release.release "$(VERSION)" $(if $(filter new,$(BASE)),--new-base)

# Builds a release twice, in two folders, and compares every byte: as root. Twenty minutes.
releases: setup
	@test -d build/image/base || $(MAKE) --no-print-directory image
	PROXYD_RELEASE=1 $(VENV)/bin/python -m pytest tests/release

# Writes the program for users and devices to one file, which needs only Python 3.9 or later.
client:
	@$(NEEDS_PYTHON)
	@$(PYTHON) client/build.py dist/proxyctl.pyz

# Writes the same program with the executors of Slurm and Kubernetes, for the owner of a cluster.
clusters:
	@$(NEEDS_PYTHON)
	@$(PYTHON) client/build.py dist/proxyctl-clusters.pyz clusters

# Starts the demonstration, and makes the virtual environment first. It does not compile: a demonstration needs no
# speed, and its user waits for the start.
run: $(STAMP)
	@$(VENV)/bin/proxyd serve --demo

# Runs a device that carries connections of the demonstration that `make run` has started in another terminal. It requests
# consent first, as any device does; a later start does so only for changed terms. API=http://127.0.0.1:8090 names a
# moved API, DEMO=second the database var/second.db; `proxyd demo --examples` prints the line.
API ?= http://127.0.0.1:8080
DEMO ?= proxyd
PROXYCTL = PYTHONPATH=client $(VENV)/bin/python -m proxyctl

exit: $(STAMP)
	@test -r var/$(DEMO)-exit.token || { echo "make exit: no demonstration has run here; start one with make run, in another terminal" >&2; exit 1; }
	@$(PROXYCTL) exit consent --api $(API) --token-file var/$(DEMO)-exit.token --folder var/$(DEMO)-exit \
		--unless-agreed
	@$(PROXYCTL) exit run --folder var/$(DEMO)-exit --allow 127.0.0.0/8 --allow ::1/128

# Runs a device that runs jobs of the demonstration in a sandbox; it requests consent like `make exit`. JOBS="script docker"
# also lends it to jobs with images (podman or docker must be installed), NETWORK=egress gives jobs public addresses.
LENT = $(if $(filter command%,$(origin JOBS)),$(JOBS:%=--jobs %)) $(if $(filter command%,$(origin NETWORK)),--network $(NETWORK))

worker: $(STAMP)
	@test -r var/$(DEMO)-worker.token || { echo "make worker: no demonstration has run here; start one with make run, in another terminal" >&2; exit 1; }
	@$(PROXYCTL) worker setup --api $(API) --token-file var/$(DEMO)-worker.token --folder var/$(DEMO)-worker \
		--unless-agreed --max-jobs 4 $(LENT)
	@$(PROXYCTL) worker run --folder var/$(DEMO)-worker

# The number of test processes: six more than the machine has cores, up to PROCESSES, because a test waits two thirds
# of its time, for a timeout or another process. Each has its own PostgreSQL.
PROCESSES ?= 8
WORKERS = $(shell cores=$$(nproc) && echo $$((cores + 6 < $(PROCESSES) ? cores + 6 : $(PROCESSES))))

# Python keeps the compiled modules of product and tests, also where the environment forbids it: to compile them takes
# twenty seconds of processor time in each run, and the processes of the tests do so again.
PYTEST = PYTHONDONTWRITEBYTECODE= $(VENV)/bin/python -m pytest
TESTS = $(PYTEST) --processes $(WORKERS)
# These tests run most of the data path in ten seconds of processor time, for the interpreted variant. The other tests
# cover the database engines and the ways through an exit; `make test-both` runs all of them interpreted.
BRIEFLY := tests/proxyd/relay/test_tcp.py tests/proxyd/metering/test_session.py tests/conformance/test_metering.py \
	-k 'not postgres and not through' -m 'not long'
# All tests of the data path.
DATA_PATH := tests/conformance $(addprefix tests/proxyd/,metering wire relay loop egress wiring) $(wildcard tests/proxyd/test_*.py)
IS_COMPILED = $(VENV)/bin/proxyd --version | grep -q '(compiled)'

# Fails when a C compiler is installed, and the compiled files of `make setup` are not in use.
MUST_BE_COMPILED = $(VENV)/bin/python -m proxyd.compiled.builder --must

# The checks of `make lint`, and with a compiled data path some of its tests interpreted.
ASIDE = $(CHECKS) && { ! $(IS_COMPILED) || { echo "interpreted:"; \
	PROXYD_INTERPRETED=1 $(PYTEST) --processes 2 $(BRIEFLY); }; }

# Tests the variant of `make setup`, mostly the compiled one; the last line names it. The work of ASIDE runs at the
# same time, because the tests wait for half of their time, and its output follows theirs. The failed tests are printed
# once more at the end, for a reader of the last lines.
test: setup
	@$(MUST_BE_COMPILED)
	@SECONDS=0; mkdir -p build; set -m; { $(ASIDE); } >build/aside.log 2>&1 & aside=$$!; set +m; trap 'kill -- -$$aside 2>/dev/null' EXIT; \
	echo "$(TESTS)"; rm -f build/failures.log; $(TESTS) --engines needed -m "not long" --failures build/failures.log; status=$$?; \
	wait $$aside || status=$$?; trap - EXIT; cat build/aside.log build/failures.log; \
	echo "make test: the tests took $$((SECONDS / 60)) minutes and $$((SECONDS % 60)) seconds"; exit $$status
	@$(MUST_BE_COMPILED)
	@echo "make test: every test that ran passed, of $$($(VENV)/bin/proxyd --version)"

# Runs all tests of the data path, compiled and interpreted, all of the marketplace on both engines, the property tests
# with all examples, those of the console in a browser with windows, and the long ones.
test-both: setup
	@$(IS_COMPILED) || { $(VENV)/bin/proxyd --version; echo "make test-both: nothing is compiled here" >&2; exit 1; }
	$(TESTS) --engines checked $(DATA_PATH) tests/market tests/storage
	$(TESTS) tests/integration tests/faults -k postgres
	PROXYD_INTERPRETED=1 $(TESTS) $(DATA_PATH)
	PROXYD_EXAMPLES=all $(TESTS) -m hypothesis
	PROXYD_WINDOWS=1 $(TESTS) -m "not long" tests/console
	$(TESTS) -m long --ignore tests/conformance

# Runs every test and measures the lines that they reach; fails below the floor in pyproject.toml. Not a part of
# `make test`, because measured code takes three times as long. Daemons in processes of their own are not measured.
coverage: setup
	PROXYD_INTERPRETED=1 $(VENV)/bin/python -m pytest --numprocesses $(WORKERS) --dist worksteal \
		--override-ini timeout=600 --cov

CHECKS = $(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check . && $(VENV)/bin/mypy && $(VENV)/bin/lint-imports \
	&& $(VENV)/bin/oxlint --deny-warnings api/console api/staff

# Checks style, types and import rules, and the scripts of the console.
lint: setup
	$(CHECKS)

# Installs the third-party clients that some tests use (Debian or Ubuntu, as root). The tests of a missing client are
# skipped. Quick when all are installed.
clients:
	@tests/clients/install

# Tests the walls, bounds and ends of jobs in each sandbox: bubblewrap, podman, docker and gVisor. As root, after
# `make clients`; three minutes.
sandboxes: setup
	REQUIRE_SANDBOX=1 $(VENV)/bin/python -m pytest tests/client/proxyctl/worker/executors

# Runs the tour of docs/how-to/console.md, and takes its pictures. Half a minute.
screenshots: setup
	PROXYD_SCREENSHOTS=$(CURDIR)/docs/images REQUIRE_SANDBOX=1 $(VENV)/bin/python -m pytest tests/console/test_tour.py

# Invents requests against the API's own description, for minutes; `make test` does so for seconds.
fuzz-api: setup
	PROXYD_FUZZ_EXAMPLES=$${PROXYD_FUZZ_EXAMPLES:-1500} $(VENV)/bin/python -m pytest tests/api/test_fuzz.py

# Invents a million handshakes in memory and 20,000 over sockets, new ones each time: six minutes.
fuzz-wire: setup
	@start=$${PROXYD_FUZZ_START:-$$(date +%s)000000}; echo "PROXYD_FUZZ_START=$$start"; \
	PROXYD_FUZZ_START=$$start PROXYD_FUZZ_HANDSHAKES=$${PROXYD_FUZZ_HANDSHAKES:-1000000} \
	PROXYD_FUZZ_SOCKETS=$${PROXYD_FUZZ_SOCKETS:-20000} $(VENV)/bin/python -m pytest \
		tests/proxyd/wire/test_fuzz.py tests/conformance/test_fuzz.py

# Unpacks 300,000 archives of a hostile stranger, new ones each time, and compares everything outside before and after:
# ten minutes.
fuzz-archives: setup
	@start=$${PROXYD_FUZZ_START:-$$(date +%s)000000}; echo "PROXYD_FUZZ_START=$$start"; \
	PROXYD_FUZZ_START=$$start PROXYD_FUZZ_ARCHIVES=$${PROXYD_FUZZ_ARCHIVES:-300000} $(VENV)/bin/python -m pytest \
		--timeout 0 tests/client/proxyctl/worker/files/test_archives.py

# Compares the proxy with dante, microsocks and pproxy; installs their Debian packages, as root. Its variables, such as
# ROUNDS=5 ONLY=bulk,echo RIVALS="name=command {config:PATH}" BUFFERS=default, are in docs/reference/benchmarks.md.
bench: setup
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[bench]'
	@PYTHONPATH=.:tests $(VENV)/bin/python -m bench.proxy

# Compares the API with a bare aiohttp handler and the usual frameworks; needs wrk (apt-get install wrk).
bench-api: setup
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[bench]'
	PYTHONPATH=.:tests $(VENV)/bin/python -m bench.api

# Compares one process with several, as root: on few cores, each process gets a part of one. ROUNDS=5 PROCESSES=2,8.
bench-scaling: setup
	@PYTHONPATH=.:tests $(VENV)/bin/python -m bench.scaling

# Measures the time of each command, and of the daemon until it is ready. START_ROUNDS=15. Python files are compiled
# first, as by `make install`, because Python may be unable to write its cache.
bench-start: setup
	$(COMPILE)
	PYTHONPATH=.:tests $(VENV)/bin/python -m bench.start

# Measures a market of 1,000, 100,000 and 1,000,000 transfers, on both engines: ten minutes and 5 GB of disk.
# SIZES=1000,100000 ENGINES=sqlite measures less.
bench-growth: setup
	@PYTHONPATH=.:tests $(VENV)/bin/python -W ignore -m bench.growth

# One address attacks the API while another measures its replies: a minute and a half.
bench-siege: setup
	PYTHONPATH=.:tests SIEGE_SECONDS=$${SIEGE_SECONDS:-60} $(VENV)/bin/python -m bench.siege

# One buyer attacks three exits for a minute while another one uses them.
bench-siege-exits: setup
	EXIT_SIEGE_SECONDS=$${EXIT_SIEGE_SECONDS:-60} $(VENV)/bin/python -m pytest -s --override-ini timeout=600 tests/faults/test_exit_siege.py

# Assigns jobs to a thousand waiting devices, compares other queues, and measures the cost of the wait. ROUNDS=3
# ENGINES=sqlite RIVALS=0 measures less.
bench-jobs: setup
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[bench]'
	@PYTHONPATH=.:client:tests $(VENV)/bin/python -W ignore -m bench.jobs
	@PYTHONPATH=.:client:tests $(VENV)/bin/python -W ignore -m bench.jobs_artifacts
	@PYTHONPATH=.:client:tests $(VENV)/bin/python -W ignore -m bench.jobs_logs
	@PYTHONPATH=.:client:tests $(VENV)/bin/python -W ignore -m bench.jobs_whole
	@PYTHONPATH=.:client:tests $(VENV)/bin/python -W ignore -m bench.jobs_timeline

# Runs the marketplace in virtual time, with new seeds, in as many processes as there are cores. Prints the failed seeds.
# SECONDS=3600 is an hour; SEED=7 repeats one, and TRACE=1 prints all of its lines.
sim: setup
	$(if $(SEED),$(VENV)/bin/python -m tests.sim $(SEED) $(if $(TRACE),--trace),$(VENV)/bin/python -m tests.sim --seconds $(if $(filter command% environment%,$(origin SECONDS)),$(SECONDS),60))

# Has units of two nodes meet on a real PostgreSQL, statement by statement, in COUNT orders of each pair. Prints an order
# that ends otherwise than one unit after the other. SEED=7 PAIR=name repeats one. THREE=100 has three units meet, in a
# hundred drawn choices of SEED.
sim-steps: setup
	PYTHONPATH=.:client:tests $(VENV)/bin/python -W ignore -m tests.sim.stepped $(if $(SEED),--seed $(SEED),--count $(or $(COUNT),10)) $(if $(PAIR),--pair "$(PAIR)") $(if $(THREE),--three $(THREE))

# Puts faults into the product, one at a time, and prints how many seeds find each.
sim-mutants: setup
	$(VENV)/bin/python -m tests.sim --mutants

# Measures the branches that the simulation alone reaches, with COUNT seeds of each subject; fails below the floors.
sim-coverage: setup
	PYTHONHASHSEED=0 PROXYD_INTERPRETED=1 PYTHONDONTWRITEBYTECODE= $(VENV)/bin/python -m coverage run \
		--data-file=.coverage.sim -m tests.sim --subjects --count $(or $(COUNT),20) --go-on
	$(VENV)/bin/python -m coverage report --data-file=.coverage.sim --include='market/*' --fail-under=70
	$(VENV)/bin/python -m coverage report --data-file=.coverage.sim --include='proxyd/metering/*' --fail-under=90

# Kills daemons under load (SIGKILL), a hundred times on each engine: several processes, and a daemon and its exits on each
# engine, at random moments (SEED): twenty minutes.
KILLS ?= 100

crash: setup
	@seed=$${SEED:-$$(date +%s)}; echo "SEED=$$seed KILLS=$(KILLS)"; \
	PROXYD_CRASH_SEED=$$seed PROXYD_CRASH_KILLS=$(KILLS) $(VENV)/bin/python -m pytest \
		--timeout 0 --capture no tests/faults/test_kill.py

# Kills, silences, fills and removes a PostgreSQL with a standby, or makes it read-only, under daemons with traffic: on
# Debian, as root, with its package postgresql. Five minutes. The line of each case shows the effect on its clients.
failover: setup
	@test -n "$$(ls /usr/lib/postgresql/*/bin/pg_basebackup 2>/dev/null)" || \
		DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends postgresql
	REQUIRE_FAILOVER=1 $(VENV)/bin/python -m pytest --verbose tests/failover

# Kills worker devices and their marketplace, with a hundred seeds each: agent and supervisor with a marketplace that fails at times (five
# minutes), and with a real daemon that is also killed, over SQLite, and over PostgreSQL, which is also killed (half an
# hour); podman and docker with the processes of a container (as root; an hour). Then agent, daemon and database stop
# for STOP seconds each, and the disk fills (half an hour). KILLS=10 STOP=20 is a tenth of it.
STOP ?= 300

crash-jobs: setup
	@seed=$${SEED:-$$(date +%s)}; echo "SEED=$$seed KILLS=$(KILLS)"; \
	PROXYD_CRASH_SEED=$$seed PROXYD_CRASH_KILLS=$(KILLS) PROXYD_CRASH_STOP=$(STOP) $(VENV)/bin/python -m pytest \
		--timeout 120 tests/faults/test_worker_kill.py tests/faults/test_job_kill.py \
		tests/faults/test_engine_kill.py

# Runs a mixed load on a daemon, whose memory and counts must stop growing. Then compares all synthetic photos, of
# which `make test` compares a sample.
soak: setup
	PYTHONPATH=.:tests SOAK_SECONDS=$${SOAK_SECONDS:-300} $(VENV)/bin/python -m soak
	PROXYD_PHOTOS=$${PROXYD_PHOTOS:-320} $(VENV)/bin/python -m pytest tests/market/photos/test_likeness.py

# Tests the units under a real systemd, on a separate Debian in build/machine: as root, on Debian, with
# debootstrap and systemd-container. Then the Debian package, which it builds twice. Ten minutes, more the first time.
MACHINE := build/machine

systemd: setup
	PYTHONPATH=.:tests $(VENV)/bin/python -m support.machines.machine $(MACHINE)
	rm -f dist/proxyd_*.deb
	@$(MAKE) --no-print-directory deb
	PROXYD_MACHINE=$(MACHINE) $(VENV)/bin/python -m pytest tests/systemd/package/test_build.py
	unshare --net /bin/sh -euc 'ip link set lo up; export PROXYD_MACHINE=$(MACHINE); \
		$(VENV)/bin/python -m pytest tests/systemd --ignore tests/systemd/package; \
		$(VENV)/bin/python -m pytest tests/systemd/package/test_package.py'

# Tests the container image that it builds, by the commands of docs/how-to/containers.md in podman: as root, on Debian, in
# its own network. Ten minutes, most of them for the compilation.
containers: setup
	rm -f dist/proxyd_*.image.tar
	@$(MAKE) --no-print-directory image
	PROXYD_IMAGE=$$(ls dist/proxyd_*.image.tar) unshare --net /bin/sh -euc 'ip link set lo up; \
		exec $(VENV)/bin/python -m pytest --timeout 300 tests/image'

# Tests PostgreSQL on three machines with Patroni and etcd, each in its own namespaces, and three daemons: as root, on
# Debian, from whose packages they are installed. Rounds: KILLS=10 SWITCHOVERS=10, twenty minutes. DRILLS="kill or peers" selects,
# STRICT=1 takes synchronous_mode_strict.
SWITCHOVERS ?= 10
PATRONI_PACKAGES := etcd-server iproute2 iptables patroni postgresql util-linux

patroni: setup
	@test "$$(command -v etcd ip iptables patroni pg_lsclusters nsenter | wc -l)" = 6 || \
		DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends $(PATRONI_PACKAGES)
	unshare --net --pid --fork --kill-child --mount-proc /bin/sh -euc 'ip link set lo up; \
		REQUIRE_PATRONI=1 KILLS=$(if $(filter command% environment%,$(origin KILLS)),$(KILLS),10) \
		SWITCHOVERS=$(SWITCHOVERS) STRICT=$(STRICT) $(VENV)/bin/python -m pytest --capture no tests/patroni $${DRILLS:+-k "$$DRILLS"}'

# Tests the bounds of jobs under control groups of the second version, in a virtual machine: on Debian, with
# qemu-system-x86 and busybox-static. Half a minute; the first time it fetches a kernel into build/vm.
vm: setup
	kernel=$$(PYTHONPATH=.:tests $(VENV)/bin/python -m support.machines.guest build/vm | tail -1) && \
		PROXYD_KERNEL=$$kernel $(VENV)/bin/python -m pytest --timeout 400 tests/vm

# Tests jobs on the node of a real Slurm with one node, which ends with the tests: as root, on Debian, from whose packages
# it is installed. Two minutes.
SLURM_PACKAGES := munge slurm-client slurmctld slurmd

slurm: setup
	@test "$$(command -v munged sbatch slurmctld slurmd | wc -l)" = 4 || \
		DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends bubblewrap $(SLURM_PACKAGES)
	REQUIRE_SLURM=1 REQUIRE_SANDBOX=1 $(VENV)/bin/python -m pytest tests/clusters/proxyctl_clusters/slurm/test_slurm.py

# Tests jobs in a real Kubernetes of one node, which ends with the tests: as root, on Debian, from whose sources
# it is built the first time, which takes 20 minutes. Then four. In its own network: a node's firewall
# rules must not reach the machine.
kubernetes: setup
	programs=$$(tests/clients/kubernetes build/kubernetes | tail -1) && \
		PATH=$$programs:$$PATH PROXYD_KUBERNETES=$$programs unshare --net /bin/sh -euc ' \
			ip link set lo up; ip link add outside type bridge; ip addr add 192.0.2.1/24 dev outside; \
			ip link set outside up; ip route add default via 192.0.2.2; \
			exec $(VENV)/bin/python -m pytest --timeout 300 tests/clusters/proxyctl_clusters/kubernetes/test_kubernetes.py'

# Tests a notebook that runs as a job, in a real browser, through all layers: as root, on Debian, from whose packages notebook
# and browser are installed (116 MB), and a notebook that a job brings, fetched by pip. A minute.
NOTEBOOK_PACKAGES := bubblewrap chromium jupyter-notebook python3-ipykernel

notebook: setup
	@test "$$(command -v bwrap chromium jupyter-notebook | wc -l)" = 3 || \
		DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends $(NOTEBOOK_PACKAGES)
	REQUIRE_NOTEBOOK=1 REQUIRE_SANDBOX=1 $(VENV)/bin/python -m pytest tests/integration/test_notebook.py
	REQUIRE_NOTEBOOK=1 REQUIRE_SANDBOX=1 $(VENV)/bin/python -m pytest tests/docs/test_documents.py -k packages

# Runs the same tests against the stand-in for Stripe and the real Stripe, in its test mode, with the key of PROXYD_TEST_STRIPE_KEY.
# With PROXYD_TEST_STRIPE_SECONDS=300 it prints a page of Stripe, and waits so long for a person who pays there. Without a key it
# runs the half of the stand-in, and fails.
stripe: setup
	$(VENV)/bin/python -m pytest --capture no --timeout 900 -rs tests/proxyd/outbound/test_stripe_live.py
	@test -n "$$PROXYD_TEST_STRIPE_KEY" || { echo "Stripe itself was not asked: PROXYD_TEST_STRIPE_KEY has no sk_test_ key" >&2; exit 1; }

# Requests the known weaknesses of the pinned versions from the package index.
audit: setup
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[audit]'
	@$(VENV)/bin/pip-audit --requirement constraints.txt --no-deps --disable-pip --strict --progress-spinner off \
		|| { echo "make audit: a pinned version has a known weakness, or the index's advisories are out of reach; the lines above say which" >&2; exit 1; }

# Removes the virtual environment, the built files and the caches.
clean:
	rm -rf $(VENV) .venv-* build dist proxyd/compiled/cpython-* *.egg-info clusters/*.egg-info .coverage .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
