"""Each module has its test file, and each test file its module, or an entry here says why not."""

import re
from pathlib import Path

import pytest
import support

ROOT = Path(__file__).parent.parent
ROOMS = ("proxyd", "api", "market", "storage", "config", "client")

# Modules without `tests/<folders>/test_<module>.py`, and the file to open for each: where most of
# what the module promises is held. One line a module.
TESTED_IN = {
    "api/callers.py": "tests/api/test_server.py",
    "api/console.py": "tests/console/test_serving.py",
    "api/cookies.py": "tests/console/test_cookie.py",
    "api/downloads.py": "tests/api/test_artifacts.py",
    "api/limits.py": "tests/api/test_connections.py",
    "api/patience.py": "tests/api/test_work.py",
    "api/responses.py": "tests/api/test_server.py",
    "api/reverse/choosing.py": "tests/api/reverse/test_server.py",
    "api/reverse/kept.py": "tests/api/reverse/test_server.py",
    "api/reverse/pages.py": "tests/api/reverse/test_server.py",
    "api/reverse/raw_stream.py": "tests/api/reverse/test_server.py",
    "api/reverse/relaying.py": "tests/api/reverse/test_server.py",
    "api/reverse/streams.py": "tests/api/reverse/test_server.py",
    "api/reverse/upstream.py": "tests/api/reverse/test_server.py",
    "api/routes.py": "tests/api/test_router.py",
    "client/proxyctl/__main__.py": "tests/client/proxyctl/exit/test_commands.py",
    "client/proxyctl/api.py": "tests/client/proxyctl/exit/test_consent.py",
    "client/proxyctl/exit/api.py": "tests/client/proxyctl/exit/test_consent.py",
    "client/proxyctl/exit/carrier.py": "tests/client/proxyctl/exit/test_agent.py",
    "client/proxyctl/exit/closing.py": "tests/client/proxyctl/exit/test_relay_linux.py",
    "client/proxyctl/exit/control.py": "tests/client/proxyctl/exit/test_agent.py",
    "client/proxyctl/exit/halfpipe.py": "tests/client/proxyctl/exit/test_relay_linux.py",
    "client/proxyctl/exit/names.py": "tests/client/proxyctl/exit/test_commands.py",
    "client/proxyctl/exit/netlink.py": "tests/client/proxyctl/exit/test_lan.py",
    "client/proxyctl/exit/path.py": "tests/client/proxyctl/exit/test_relay_linux.py",
    "client/proxyctl/exit/pipes.py": "tests/client/proxyctl/exit/test_relay_linux.py",
    "client/proxyctl/exit/poller.py": "tests/client/proxyctl/exit/test_relay_linux.py",
    "client/proxyctl/exit/pool.py": "tests/client/proxyctl/exit/test_agent.py",
    "client/proxyctl/exit/record.py": "tests/client/proxyctl/exit/test_consent.py",
    "client/proxyctl/exit/relay.py": "tests/client/proxyctl/exit/test_agent.py",
    "client/proxyctl/exit/relays.py": "tests/client/proxyctl/exit/test_relay_linux.py",
    "client/proxyctl/exit/restraints.py": "tests/client/proxyctl/exit/test_agent.py",
    "client/proxyctl/exit/watcher.py": "tests/client/proxyctl/exit/test_agent.py",
    "client/proxyctl/protocol/addresses.py": "tests/client/proxyctl/protocol/test_policy.py",
    "client/proxyctl/protocol/jobspec/errors.py": (
        "tests/client/proxyctl/protocol/jobspec/test_checks.py"
    ),
    "client/proxyctl/status.py": "tests/client/proxyctl/exit/test_commands.py",
    "client/proxyctl/words.py": "tests/client/proxyctl/exit/test_consent.py",
    "client/proxyctl/worker/bell.py": "tests/client/proxyctl/worker/test_agent.py",
    "client/proxyctl/worker/benchmark.py": "tests/api/test_benchmarks.py",
    "client/proxyctl/worker/checks.py": "tests/client/proxyctl/worker/test_commands.py",
    "client/proxyctl/worker/endings.py": "tests/client/proxyctl/worker/test_agent.py",
    "client/proxyctl/worker/executors/base.py": (
        "tests/client/proxyctl/worker/executors/test_bwrap.py"
    ),
    "client/proxyctl/worker/executors/container_watch.py": (
        "tests/client/proxyctl/worker/executors/test_containers.py"
    ),
    "client/proxyctl/worker/executors/docker.py": (
        "tests/client/proxyctl/worker/executors/test_containers.py"
    ),
    "client/proxyctl/worker/executors/engine.py": (
        "tests/client/proxyctl/worker/executors/test_containers.py"
    ),
    "client/proxyctl/worker/executors/family.py": (
        "tests/client/proxyctl/worker/executors/test_bwrap.py"
    ),
    "client/proxyctl/worker/executors/guarded.py": (
        "tests/client/proxyctl/worker/executors/test_containers.py"
    ),
    "client/proxyctl/worker/executors/gvisor.py": (
        "tests/client/proxyctl/worker/executors/test_containers.py"
    ),
    "client/proxyctl/worker/executors/kube_trial.py": (
        "tests/client/proxyctl/worker/executors/test_kube_objects.py"
    ),
    "client/proxyctl/worker/executors/limits/base.py": (
        "tests/client/proxyctl/worker/executors/test_bwrap.py"
    ),
    "client/proxyctl/worker/executors/limits/slurm.py": (
        "tests/client/proxyctl/worker/executors/test_slurm.py"
    ),
    "client/proxyctl/worker/executors/limits/unbounded.py": (
        "tests/client/proxyctl/worker/executors/test_bwrap.py"
    ),
    "client/proxyctl/worker/executors/machine_code.py": (
        "tests/client/proxyctl/worker/executors/test_kube_objects.py"
    ),
    "client/proxyctl/worker/executors/none.py": "tests/client/proxyctl/worker/test_attempt.py",
    "client/proxyctl/worker/executors/ownership.py": (
        "tests/client/proxyctl/worker/executors/test_containers.py"
    ),
    "client/proxyctl/worker/executors/signals.py": (
        "tests/client/proxyctl/worker/executors/test_bwrap.py"
    ),
    "client/proxyctl/worker/executors/slurm_calls.py": (
        "tests/client/proxyctl/worker/executors/test_slurm.py"
    ),
    "client/proxyctl/worker/executors/syscalls.py": (
        "tests/client/proxyctl/worker/executors/test_seccomp.py"
    ),
    "client/proxyctl/worker/executors/trial.py": (
        "tests/client/proxyctl/worker/executors/test_containers.py"
    ),
    "client/proxyctl/worker/files/inputs.py": (
        "tests/client/proxyctl/worker/files/test_transfers.py"
    ),
    "client/proxyctl/worker/files/room.py": (
        "tests/client/proxyctl/worker/files/test_transfers.py"
    ),
    "client/proxyctl/worker/files/unpacker.py": (
        "tests/client/proxyctl/worker/files/test_unpacking.py"
    ),
    "client/proxyctl/worker/files/uploads.py": (
        "tests/client/proxyctl/worker/files/test_transfers.py"
    ),
    "client/proxyctl/worker/files/web.py": "tests/client/proxyctl/worker/files/test_transfers.py",
    "client/proxyctl/worker/kube_client.py": (
        "tests/client/proxyctl/worker/executors/test_kubernetes.py"
    ),
    "client/proxyctl/worker/libc.py": ("tests/client/proxyctl/worker/files/test_confinement.py"),
    "client/proxyctl/worker/lock.py": "tests/client/proxyctl/worker/test_agent.py",
    "client/proxyctl/worker/names.py": "tests/client/proxyctl/worker/test_agent.py",
    "client/proxyctl/worker/probe.py": "tests/client/proxyctl/worker/test_ports.py",
    "client/proxyctl/worker/processes.py": "tests/client/proxyctl/worker/test_supervisor.py",
    "client/proxyctl/worker/programs.py": ("tests/client/proxyctl/worker/executors/test_slurm.py"),
    "client/proxyctl/worker/pump.py": "tests/client/proxyctl/worker/test_agent.py",
    "client/proxyctl/worker/registry.py": "tests/client/proxyctl/worker/test_images.py",
    "client/proxyctl/worker/running.py": "tests/client/proxyctl/worker/test_agent.py",
    "client/proxyctl/worker/sensors/nvidia.py": "tests/client/proxyctl/worker/sensors/test_host.py",
    "client/proxyctl/worker/setup.py": "tests/client/proxyctl/worker/test_commands.py",
    "client/proxyctl/worker/slurm_client.py": (
        "tests/client/proxyctl/worker/executors/test_slurm.py"
    ),
    "client/proxyctl/worker/slurm_node.py": "tests/client/proxyctl/worker/executors/test_slurm.py",
    "client/proxyctl/worker/supervisors.py": "tests/client/proxyctl/worker/test_supervisor.py",
    "client/proxyctl/worker/tasks.py": "tests/client/proxyctl/worker/test_agent.py",
    "config/changes.py": "tests/proxyd/test_reload.py",
    "config/settings.py": "tests/config/test_load.py",
    "market/assistant/builtin.py": "tests/market/assistant/test_chat.py",
    "market/assistant/model.py": "tests/market/assistant/test_asking.py",
    "market/assistant/phrases.py": "tests/market/assistant/test_languages.py",
    "market/attempt_reports.py": "tests/market/test_attempts.py",
    "market/context.py": "tests/market/test_market.py",
    "market/errors.py": "tests/docs/test_documents.py",
    "market/job_pay.py": "tests/market/test_jobs.py",
    "market/lease_book.py": "tests/market/test_leases.py",
    "market/lease_transactions.py": "tests/market/test_leases.py",
    "market/outcomes.py": "tests/market/test_jobs.py",
    "market/photos/containers.py": "tests/market/photos/test_decoding.py",
    "market/photos/photo.py": "tests/market/photos/test_decoding.py",
    "market/photos/picture.py": "tests/market/photos/test_decoding.py",
    "market/photos/prints.py": "tests/market/photos/test_likeness.py",
    "market/photos/trailers.py": "tests/market/photos/test_decoding.py",
    "market/postings.py": "tests/market/test_jobs.py",
    "market/proofs.py": "tests/market/test_recovery.py",
    "market/renewals.py": "tests/market/test_attempts.py",
    "market/sample_checks.py": "tests/market/test_samples.py",
    "market/scopes.py": "tests/api/test_keys.py",
    "market/templates.py": "tests/market/test_rollouts.py",
    "proxyd/__main__.py": "tests/proxyd/cli/test_commands.py",
    "proxyd/acceptor.py": "tests/conformance/test_shedding.py",
    "proxyd/build.py": "tests/proxyd/cli/test_serving.py",
    "proxyd/cli/bookkeeping.py": "tests/proxyd/cli/test_commands.py",
    "proxyd/cli/demo.py": "tests/proxyd/cli/test_serving.py",
    "proxyd/compiled/compilation.py": "tests/proxyd/compiled/test_builder.py",
    "proxyd/compiled/generate.py": "tests/proxyd/compiled/test_builder.py",
    "proxyd/compiled/hot.py": "tests/proxyd/compiled/test_finder.py",
    "proxyd/compiled/toolchain.py": "tests/proxyd/compiled/test_builder.py",
    "proxyd/connection.py": "tests/conformance/test_handshake.py",
    "proxyd/egress/exit.py": "tests/proxyd/egress/test_direct.py",
    "proxyd/egress/lookup.py": "tests/proxyd/egress/test_direct.py",
    "proxyd/exit_port.py": "tests/conformance/test_exits.py",
    "proxyd/exits/asking.py": "tests/proxyd/exits/test_answering.py",
    "proxyd/exits/borrowing.py": "tests/proxyd/exits/test_loans.py",
    "proxyd/exits/errand.py": "tests/proxyd/exits/test_canaries.py",
    "proxyd/exits/lending.py": "tests/proxyd/exits/test_loans.py",
    "proxyd/exits/remote.py": "tests/proxyd/exits/test_mesh.py",
    "proxyd/exits/stand_in.py": "tests/proxyd/exits/test_loans.py",
    "proxyd/listeners.py": "tests/proxyd/ops/test_listening.py",
    "proxyd/loop/runner.py": "tests/proxyd/loop/test_cancellation.py",
    "proxyd/metering/address_proofs.py": "tests/conformance/test_passwordless.py",
    "proxyd/metering/single_flight.py": "tests/proxyd/metering/test_meter.py",
    "proxyd/ops/errors.py": "tests/proxyd/cli/test_serving.py",
    "proxyd/ops/metrics.py": "tests/api/test_metrics.py",
    "proxyd/ops/process_metrics.py": "tests/api/test_metrics.py",
    "proxyd/ops/role.py": "tests/proxyd/ops/test_shared_metrics.py",
    "proxyd/outbound/posting.py": "tests/proxyd/outbound/test_webhooks.py",
    "proxyd/outbound/smtp.py": "tests/proxyd/outbound/test_mailer.py",
    "proxyd/relay/closing.py": "tests/conformance/test_streams.py",
    "proxyd/relay/exit_datagrams.py": "tests/conformance/test_exit_datagrams.py",
    "proxyd/relay/halfpipe.py": "tests/proxyd/relay/test_tcp.py",
    "proxyd/relay/udp.py": "tests/conformance/test_udp.py",
    "proxyd/services.py": "tests/proxyd/cli/test_serving.py",
    "proxyd/supervisor/signals.py": "tests/integration/test_processes.py",
    "proxyd/supervisor/supervisor.py": "tests/integration/test_processes.py",
    "proxyd/unmetered.py": "tests/proxyd/exits/test_loans.py",
    "proxyd/wire/asks.py": "tests/proxyd/exits/test_answering.py",
    "proxyd/wire/events.py": "tests/proxyd/wire/test_detect.py",
    "proxyd/wire/http_refusals.py": "tests/proxyd/wire/test_http.py",
    "proxyd/wire/http_request.py": "tests/proxyd/wire/test_http.py",
    "storage/allowlist.py": "tests/market/test_allowlist.py",
    "storage/apps.py": "tests/market/test_apps.py",
    "storage/artifacts.py": "tests/market/test_artifacts.py",
    "storage/assistant.py": "tests/market/assistant/test_goodness.py",
    "storage/attempts.py": "tests/market/test_attempts.py",
    "storage/bandwidth.py": "tests/market/test_bandwidth.py",
    "storage/benchmarks.py": "tests/market/test_benchmarks.py",
    "storage/blobs/base.py": "tests/storage/blobs/test_local.py",
    "storage/claims.py": "tests/market/test_claims.py",
    "storage/copies.py": "tests/market/test_copies.py",
    "storage/deploys.py": "tests/market/test_deploys.py",
    "storage/device_codes.py": "tests/market/test_device_codes.py",
    "storage/device_work.py": "tests/market/test_device_work.py",
    "storage/devices.py": "tests/market/test_devices.py",
    "storage/draws.py": "tests/market/test_draws.py",
    "storage/errors.py": "tests/storage/test_store.py",
    "storage/events.py": "tests/market/test_event_log.py",
    "storage/exits.py": "tests/market/test_exits.py",
    "storage/health.py": "tests/storage/test_postgres_availability.py",
    "storage/job_specs.py": "tests/market/test_specs.py",
    "storage/jobs.py": "tests/market/test_jobs.py",
    "storage/keys.py": "tests/market/test_keys.py",
    "storage/ledger.py": "tests/market/test_ledger.py",
    "storage/logs.py": "tests/market/test_logs.py",
    "storage/made_by_keys.py": "tests/market/test_made_by_keys.py",
    "storage/mesh.py": "tests/proxyd/exits/test_link.py",
    "storage/nodes.py": "tests/market/test_leases_among_nodes.py",
    "storage/open.py": "tests/storage/test_store.py",
    "storage/outbox.py": "tests/market/test_outbox.py",
    "storage/postgres_link.py": "tests/storage/test_postgres.py",
    "storage/postgres_pooler.py": "tests/storage/test_postgres.py",
    "storage/referrals.py": "tests/market/test_referrals.py",
    "storage/reviews.py": "tests/market/test_reviews.py",
    "storage/rollouts.py": "tests/market/test_rollouts.py",
    "storage/samples.py": "tests/market/test_samples.py",
    "storage/trust.py": "tests/market/test_trust.py",
    "storage/usage.py": "tests/market/test_usage.py",
    "storage/users.py": "tests/market/test_accounts.py",
    "storage/webhooks.py": "tests/market/test_webhooks.py",
}

# Test files below the rooms' folders without a module of their name, and what they are about.
# One line a file.
ABOUT_SEVERAL = {
    "tests/api/test_bounds.py": "market/bounds.py as the operator sets it and a caller is refused",
    "tests/api/test_fuzz.py": "every route, with requests made up from the API's own document",
    "tests/api/test_idempotency.py": "market/idempotency.py, for every route that takes a key",
    "tests/api/test_job_specs.py": "market/specs.py by the routes of api/jobs.py",
    "tests/api/test_recovery.py": "market/recovery.py by the routes of api/accounts.py",
    "tests/client/proxyctl/worker/executors/test_engine_battery.py": "each kind of container",
    "tests/client/proxyctl/worker/test_walls.py": "the walls around a job, by the whole agent",
    "tests/client/test_autostart.py": "client/autostart/",
    "tests/config/test_example.py": "config/proxyd.example.toml",
    "tests/market/test_cancelling_costs.py": "market/outcomes.py: what cancelling would cost now",
    "tests/market/test_exit_invariants.py": "the money of exits, by any sequence of operations",
    "tests/market/test_failed_attempts.py": "market/outcomes.py and draws.py: work that has failed",
    "tests/market/test_leases_among_nodes.py": "market/leases.py, any sequence on several nodes",
    "tests/market/test_ledger_invariants.py": "money, by any sequence of operations",
    "tests/proxyd/exits/test_failover.py": "dial.py with the choice of directory.py",
    "tests/proxyd/test_imports.py": "what each command imports",
    "tests/proxyd/wire/test_fuzz.py": "both protocols, with conversations that are made up",
    "tests/storage/test_plans.py": "the cost of every query as the market grows",
}


def own_test(module: str) -> str:
    folder, _, name = module.rpartition("/")
    return f"tests/{folder}/test_{name}"


def files(folder: str, pattern: str) -> list[str]:
    return [each.relative_to(ROOT).as_posix() for each in sorted((ROOT / folder).rglob(pattern))]


MODULES = [
    module for room in ROOMS for module in files(room, "*.py") if not module.endswith("__init__.py")
]
TESTS = [test for room in ROOMS for test in files(f"tests/{room}", "test_*.py")]
EXPECTED = {own_test(module) for module in MODULES}


@pytest.mark.parametrize("module", MODULES)
def test_a_module_has_its_test_file_or_an_entry(module: str) -> None:
    own = own_test(module)
    has_own, has_entry = (ROOT / own).exists(), module in TESTED_IN
    assert has_own or has_entry, f"neither {own} nor an entry in TESTED_IN"
    assert not (has_own and has_entry), f"{own} is there: the entry in TESTED_IN can go"
    assert (ROOT / TESTED_IN.get(module, own)).exists()


@pytest.mark.parametrize("test", TESTS)
def test_a_test_file_has_its_module_or_an_entry(test: str) -> None:
    has_module, has_entry = test in EXPECTED, test in ABOUT_SEVERAL
    assert has_module or has_entry, "neither a module of its name nor an entry in ABOUT_SEVERAL"
    assert not (has_module and has_entry), "it has its module: the entry in ABOUT_SEVERAL can go"


def test_no_entry_is_about_what_is_gone() -> None:
    assert sorted(set(TESTED_IN) - set(MODULES)) == []
    assert sorted(set(ABOUT_SEVERAL) - set(TESTS)) == []


def test_entries_are_sorted() -> None:
    assert list(TESTED_IN) == sorted(TESTED_IN)
    assert list(ABOUT_SEVERAL) == sorted(ABOUT_SEVERAL)


def test_the_index_of_support_names_each_file_once() -> None:
    entries = re.findall(r"^    (\w+): ", support.__doc__ or "", re.MULTILINE)
    assert sorted(entries) == [Path(each).stem for each in files("tests/support", "[!_]*.py")]
