"""Each module has its test file, and each test file its module, or an entry here says why not."""

import re
from pathlib import Path

import support

ROOT = Path(__file__).parent.parent
ROOMS = ("proxyd", "api", "market", "storage", "config", "client", "clusters")

# Modules without `tests/<folders>/test_<module>.py`, and the file to open for each: the file that
# covers most promises of the module. One line a module.
TESTED_IN = {
    "api/console.py": "tests/console/test_serving.py",
    "api/files/downloads.py": "tests/api/files/test_artifacts.py",
    "api/http/allowed.py": "tests/api/staff/test_app.py",
    "api/http/limits.py": "tests/api/serving/test_connections.py",
    "api/payments/pdf.py": "tests/api/payments/test_receipts.py",
    "api/payments/picture.py": "tests/api/payments/test_receipts.py",
    "api/reverse/choosing.py": "tests/api/reverse/test_server.py",
    "api/reverse/kept.py": "tests/api/reverse/test_server.py",
    "api/reverse/pages.py": "tests/api/reverse/test_server.py",
    "api/reverse/raw_stream.py": "tests/api/reverse/test_server.py",
    "api/reverse/relaying.py": "tests/api/reverse/test_server.py",
    "api/reverse/streams.py": "tests/api/reverse/test_server.py",
    "api/reverse/upstream.py": "tests/api/reverse/test_server.py",
    "api/routing/callers.py": "tests/api/test_server.py",
    "api/routing/cookies.py": "tests/console/test_cookie.py",
    "api/routing/in_memory.py": "tests/api/payments/test_receipts.py",
    "api/routing/responses.py": "tests/api/test_server.py",
    "api/routing/routes.py": "tests/api/routing/test_router.py",
    "api/serving/calls.py": "tests/api/test_server.py",
    "api/serving/patience.py": "tests/api/jobs/test_work.py",
    "api/staff/pages.py": "tests/console/test_staff.py",
    "api/staff/words.py": "tests/api/staff/test_users.py",
    "client/proxyctl/__main__.py": "tests/client/proxyctl/exit/commands/test_commands.py",
    "client/proxyctl/api.py": "tests/client/proxyctl/exit/commands/test_consent.py",
    "client/proxyctl/attach/daemon/control.py": "tests/client/proxyctl/exit/agent/test_agent.py",
    "client/proxyctl/attach/network/netlink.py": "tests/client/proxyctl/attach/network/test_lan.py",
    "client/proxyctl/attach/relay/closing.py": (
        "tests/client/proxyctl/attach/relay/test_relay_linux.py"
    ),
    "client/proxyctl/attach/relay/halfpipe.py": (
        "tests/client/proxyctl/attach/relay/test_relay_linux.py"
    ),
    "client/proxyctl/attach/relay/keepalive.py": "tests/client/proxyctl/exit/agent/test_agent.py",
    "client/proxyctl/attach/relay/pipes.py": (
        "tests/client/proxyctl/attach/relay/test_relay_linux.py"
    ),
    "client/proxyctl/attach/relay/poller.py": (
        "tests/client/proxyctl/attach/relay/test_relay_linux.py"
    ),
    "client/proxyctl/attach/relay/relay.py": "tests/client/proxyctl/exit/agent/test_agent.py",
    "client/proxyctl/attach/relay/relays.py": (
        "tests/client/proxyctl/attach/relay/test_relay_linux.py"
    ),
    "client/proxyctl/exit/agent/attaching.py": "tests/client/proxyctl/exit/agent/test_doors.py",
    "client/proxyctl/exit/agent/restraints.py": "tests/client/proxyctl/exit/agent/test_agent.py",
    "client/proxyctl/exit/agent/watcher.py": "tests/client/proxyctl/exit/agent/test_agent.py",
    "client/proxyctl/exit/base/api.py": "tests/client/proxyctl/exit/commands/test_consent.py",
    "client/proxyctl/exit/base/names.py": "tests/client/proxyctl/exit/commands/test_commands.py",
    "client/proxyctl/exit/base/record.py": "tests/client/proxyctl/exit/commands/test_consent.py",
    "client/proxyctl/exit/carrying/carrier.py": "tests/client/proxyctl/exit/agent/test_agent.py",
    "client/proxyctl/exit/carrying/pool.py": "tests/client/proxyctl/exit/agent/test_agent.py",
    "client/proxyctl/protocol/addresses.py": "tests/client/proxyctl/protocol/test_policy.py",
    "client/proxyctl/protocol/jobspec/errors.py": (
        "tests/client/proxyctl/protocol/jobspec/test_checks.py"
    ),
    "client/proxyctl/status.py": "tests/client/proxyctl/exit/commands/test_commands.py",
    "client/proxyctl/words.py": "tests/client/proxyctl/exit/commands/test_consent.py",
    "client/proxyctl/worker/agent/asking.py": "tests/client/proxyctl/worker/agent/test_agent.py",
    "client/proxyctl/worker/agent/attempts.py": "tests/client/proxyctl/worker/agent/test_agent.py",
    "client/proxyctl/worker/agent/bell.py": "tests/client/proxyctl/worker/agent/test_agent.py",
    "client/proxyctl/worker/agent/device.py": "tests/client/proxyctl/worker/agent/test_agent.py",
    "client/proxyctl/worker/agent/intake.py": "tests/client/proxyctl/worker/agent/test_agent.py",
    "client/proxyctl/worker/agent/lifecycle.py": "tests/client/proxyctl/worker/agent/test_agent.py",
    "client/proxyctl/worker/agent/reporting.py": "tests/client/proxyctl/worker/agent/test_agent.py",
    "client/proxyctl/worker/agent/resting.py": "tests/client/proxyctl/worker/agent/test_agent.py",
    "client/proxyctl/worker/agent/sweeping.py": "tests/client/proxyctl/worker/agent/test_agent.py",
    "client/proxyctl/worker/agent/syncing.py": "tests/client/proxyctl/worker/agent/test_agent.py",
    "client/proxyctl/worker/agent/workshop.py": "tests/client/proxyctl/worker/agent/test_agent.py",
    "client/proxyctl/worker/attempt/delivery.py": (
        "tests/client/proxyctl/worker/attempt/test_attempt.py"
    ),
    "client/proxyctl/worker/attempt/endings.py": "tests/client/proxyctl/worker/agent/test_agent.py",
    "client/proxyctl/worker/attempt/interruption.py": (
        "tests/client/proxyctl/worker/attempt/test_attempt.py"
    ),
    "client/proxyctl/worker/attempt/listening.py": (
        "tests/client/proxyctl/worker/attempt/test_attempt.py"
    ),
    "client/proxyctl/worker/attempt/streams.py": (
        "tests/client/proxyctl/worker/attempt/test_supervisor.py"
    ),
    "client/proxyctl/worker/attempt/supervisors.py": (
        "tests/client/proxyctl/worker/attempt/test_supervisor.py"
    ),
    "client/proxyctl/worker/attempt/traces.py": (
        "tests/client/proxyctl/worker/attempt/test_attempt.py"
    ),
    "client/proxyctl/worker/base/libc.py": "tests/client/proxyctl/worker/files/test_confinement.py",
    "client/proxyctl/worker/base/lock.py": "tests/client/proxyctl/worker/agent/test_agent.py",
    "client/proxyctl/worker/base/names.py": "tests/client/proxyctl/worker/agent/test_agent.py",
    "client/proxyctl/worker/base/programs.py": (
        "tests/clusters/proxyctl_clusters/slurm/test_slurm.py"
    ),
    "client/proxyctl/worker/commands/checks.py": (
        "tests/client/proxyctl/worker/commands/test_commands.py"
    ),
    "client/proxyctl/worker/commands/running.py": (
        "tests/client/proxyctl/worker/agent/test_agent.py"
    ),
    "client/proxyctl/worker/commands/setup.py": (
        "tests/client/proxyctl/worker/commands/test_commands.py"
    ),
    "client/proxyctl/worker/executors/base/base.py": (
        "tests/client/proxyctl/worker/executors/bwrap/test_bwrap.py"
    ),
    "client/proxyctl/worker/executors/base/family.py": (
        "tests/client/proxyctl/worker/executors/bwrap/test_bwrap.py"
    ),
    "client/proxyctl/worker/executors/base/gate.py": (
        "tests/client/proxyctl/worker/attempt/test_walls.py"
    ),
    "client/proxyctl/worker/executors/base/none.py": (
        "tests/client/proxyctl/worker/attempt/test_attempt.py"
    ),
    "client/proxyctl/worker/executors/base/ownership.py": (
        "tests/client/proxyctl/worker/executors/containers/test_containers.py"
    ),
    "client/proxyctl/worker/executors/base/signals.py": (
        "tests/client/proxyctl/worker/executors/bwrap/test_bwrap.py"
    ),
    "client/proxyctl/worker/executors/bwrap/machine_code.py": (
        "tests/clusters/proxyctl_clusters/kubernetes/test_kube_objects.py"
    ),
    "client/proxyctl/worker/executors/bwrap/syscalls.py": (
        "tests/client/proxyctl/worker/executors/bwrap/test_seccomp.py"
    ),
    "client/proxyctl/worker/executors/containers/container_watch.py": (
        "tests/client/proxyctl/worker/executors/containers/test_containers.py"
    ),
    "client/proxyctl/worker/executors/containers/creation.py": (
        "tests/client/proxyctl/worker/executors/containers/test_containers.py"
    ),
    "client/proxyctl/worker/executors/containers/docker.py": (
        "tests/client/proxyctl/worker/executors/containers/test_containers.py"
    ),
    "client/proxyctl/worker/executors/containers/engine.py": (
        "tests/client/proxyctl/worker/executors/containers/test_containers.py"
    ),
    "client/proxyctl/worker/executors/containers/guarded.py": (
        "tests/client/proxyctl/worker/executors/containers/test_containers.py"
    ),
    "client/proxyctl/worker/executors/containers/gvisor.py": (
        "tests/client/proxyctl/worker/executors/containers/test_containers.py"
    ),
    "client/proxyctl/worker/executors/containers/naming.py": (
        "tests/client/proxyctl/worker/executors/containers/test_containers.py"
    ),
    "client/proxyctl/worker/executors/containers/networks.py": (
        "tests/client/proxyctl/worker/executors/containers/test_containers.py"
    ),
    "client/proxyctl/worker/executors/containers/suitability.py": (
        "tests/client/proxyctl/worker/executors/containers/test_containers.py"
    ),
    "client/proxyctl/worker/executors/containers/trial.py": (
        "tests/client/proxyctl/worker/executors/containers/test_containers.py"
    ),
    "client/proxyctl/worker/executors/containers/watches.py": (
        "tests/client/proxyctl/worker/executors/containers/test_containers.py"
    ),
    "client/proxyctl/worker/executors/limits/base.py": (
        "tests/client/proxyctl/worker/executors/bwrap/test_bwrap.py"
    ),
    "client/proxyctl/worker/executors/limits/unbounded.py": (
        "tests/client/proxyctl/worker/executors/bwrap/test_bwrap.py"
    ),
    "client/proxyctl/worker/files/inputs.py": (
        "tests/client/proxyctl/worker/files/test_transfers.py"
    ),
    "client/proxyctl/worker/files/room.py": "tests/client/proxyctl/worker/files/test_transfers.py",
    "client/proxyctl/worker/files/unpacker.py": (
        "tests/client/proxyctl/worker/files/test_unpacking.py"
    ),
    "client/proxyctl/worker/files/uploads.py": (
        "tests/client/proxyctl/worker/files/test_transfers.py"
    ),
    "client/proxyctl/worker/files/web.py": "tests/client/proxyctl/worker/files/test_transfers.py",
    "client/proxyctl/worker/images/registry.py": (
        "tests/client/proxyctl/worker/images/test_images.py"
    ),
    "client/proxyctl/worker/network/probe.py": "tests/client/proxyctl/worker/network/test_ports.py",
    "client/proxyctl/worker/sensors/nvidia.py": "tests/client/proxyctl/worker/sensors/test_host.py",
    "client/proxyctl/worker/task/processes.py": (
        "tests/client/proxyctl/worker/attempt/test_supervisor.py"
    ),
    "client/proxyctl/worker/task/tasks.py": "tests/client/proxyctl/worker/agent/test_agent.py",
    "clusters/proxyctl_clusters/kubernetes/kube_trial.py": (
        "tests/clusters/proxyctl_clusters/kubernetes/test_kube_objects.py"
    ),
    "clusters/proxyctl_clusters/slurm/slurm_calls.py": (
        "tests/clusters/proxyctl_clusters/slurm/test_slurm.py"
    ),
    "clusters/proxyctl_clusters/slurm/slurm_groups.py": (
        "tests/clusters/proxyctl_clusters/slurm/test_slurm.py"
    ),
    "config/changes.py": "tests/proxyd/wiring/test_reload.py",
    "config/settings.py": "tests/config/test_load.py",
    "market/accounts/personal.py": "tests/market/staff/money/test_user_limits.py",
    "market/accounts/proofs.py": "tests/market/recovery/test_recovery.py",
    "market/accounts/restrictions.py": "tests/market/payments/test_payments.py",
    "market/accounts/scopes.py": "tests/api/accounts/test_keys.py",
    "market/accounts/suspensions.py": "tests/market/staff/stopping/test_suspending.py",
    "market/assistant/builtin.py": "tests/market/assistant/test_chat.py",
    "market/assistant/model.py": "tests/market/assistant/test_asking.py",
    "market/assistant/phrases.py": "tests/market/assistant/test_languages.py",
    "market/attempts/renewals.py": "tests/market/attempts/test_attempts.py",
    "market/bandwidth/halts.py": "tests/market/staff/stopping/test_suspending.py",
    "market/bandwidth/lease_book.py": "tests/market/bandwidth/test_leases.py",
    "market/bandwidth/lease_transactions.py": "tests/market/bandwidth/test_leases.py",
    "market/base/errors.py": "tests/docs/test_documents.py",
    "market/deploys/standing.py": "tests/market/deploys/test_rollouts.py",
    "market/deploys/templates.py": "tests/market/deploys/test_rollouts.py",
    "market/devices/reports.py": "tests/market/devices/test_devices.py",
    "market/dispatch/asks.py": "tests/market/dispatch/test_dispatch.py",
    "market/dispatch/devices.py": "tests/market/dispatch/test_dispatch.py",
    "market/dispatch/given_jobs.py": "tests/market/dispatch/test_dispatch.py",
    "market/dispatch/looking.py": "tests/market/dispatch/test_dispatch.py",
    "market/dispatch/pairing.py": "tests/market/dispatch/test_dispatch.py",
    "market/erasure/acts.py": "tests/api/accounts/test_acts.py",
    "market/events/context.py": "tests/market/test_market.py",
    "market/files/evidence.py": "tests/market/files/test_artifacts.py",
    "market/jobs/attempt_reports.py": "tests/market/attempts/test_attempts.py",
    "market/jobs/chances.py": "tests/market/jobs/test_jobs.py",
    "market/jobs/kinds/base.py": "tests/market/jobs/test_kinds.py",
    "market/jobs/kinds/copied.py": "tests/market/jobs/test_copies.py",
    "market/jobs/kinds/plain.py": "tests/market/jobs/test_jobs.py",
    "market/jobs/kinds/plain_replica.py": "tests/market/deploys/test_deploys.py",
    "market/jobs/kinds/replica.py": "tests/market/jobs/test_draws.py",
    "market/jobs/kinds/sample.py": "tests/market/dispatch/test_samples.py",
    "market/jobs/kinds/scripted.py": "tests/market/jobs/test_failed_attempts.py",
    "market/jobs/outcomes.py": "tests/market/jobs/test_jobs.py",
    "market/jobs/pay.py": "tests/market/jobs/test_jobs.py",
    "market/jobs/postings.py": "tests/market/jobs/test_jobs.py",
    "market/jobs/sweeper.py": "tests/market/accounts/test_bounds.py",
    "market/jobs/terms.py": "tests/market/jobs/test_reviews.py",
    "market/logs/disk.py": "tests/market/logs/test_logs.py",
    "market/logs/removal.py": "tests/market/logs/test_logs.py",
    "market/money/debts.py": "tests/market/payments/test_payments.py",
    "market/money/lots.py": "tests/market/staff/money/test_money.py",
    "market/money/unclaimed.py": "tests/market/exits/test_payouts.py",
    "market/payments/booking.py": "tests/market/payments/test_payments.py",
    "market/payments/cards.py": "tests/market/payments/test_top_ups.py",
    "market/payments/exchange.py": "tests/market/staff/money/test_doubts.py",
    "market/payments/mail.py": "tests/market/payments/test_payments.py",
    "market/payments/provider.py": "tests/proxyd/outbound/test_stripe.py",
    "market/payments/returning.py": "tests/market/payments/test_payments.py",
    "market/payments/terms.py": "tests/market/payments/test_payments.py",
    "market/payments/top_up_outcomes.py": "tests/market/payments/test_top_ups.py",
    "market/payouts/details.py": "tests/api/payouts/test_payouts.py",
    "market/payouts/payouts.py": "tests/api/payouts/test_payouts.py",
    "market/payouts/rules.py": "tests/market/payouts/test_earned.py",
    "market/payouts/terms.py": "tests/market/payouts/test_steps.py",
    "market/photos/containers.py": "tests/market/photos/test_decoding.py",
    "market/photos/photo.py": "tests/market/photos/test_decoding.py",
    "market/photos/picture.py": "tests/market/photos/test_decoding.py",
    "market/photos/prints.py": "tests/market/photos/test_likeness.py",
    "market/site/texts.py": "tests/api/site/test_pages.py",
    "market/staff/abuse/looks.py": "tests/proxyd/wiring/test_look_watch.py",
    "market/staff/abuse/questions.py": "tests/proxyd/cli/staff/abuse/test_abuse.py",
    "market/staff/base/answers.py": "tests/api/staff/test_app.py",
    "market/staff/base/columns.py": "tests/api/staff/test_users.py",
    "market/staff/base/requests.py": "tests/market/staff/leaving/test_erasing.py",
    "market/staff/base/shown_reasons.py": "tests/market/staff/money/test_judging.py",
    "market/staff/cases/base.py": "tests/market/staff/cases/test_cases.py",
    "market/staff/desk.py": "tests/api/staff/test_logins.py",
    "market/staff/finding/tables.py": "tests/api/staff/test_users.py",
    "market/staff/leaving/posters.py": "tests/market/staff/leaving/test_closing.py",
    "market/staff/leaving/waiving.py": "tests/market/staff/leaving/test_closing.py",
    "market/staff/members/attempts.py": "tests/market/staff/members/test_logins.py",
    "market/staff/money/approvals.py": "tests/market/staff/money/test_second_person.py",
    "market/staff/money/evidence.py": "tests/api/staff/test_jobs.py",
    "market/staff/money/job_files.py": "tests/api/staff/test_jobs.py",
    "market/staff/money/payments.py": "tests/market/payments/test_payments.py",
    "market/staff/money/second_person_limit.py": "tests/market/staff/money/test_second_person.py",
    "market/staff/stopping/halting.py": "tests/market/staff/test_rule_stops.py",
    "market/trust/sample_checks.py": "tests/market/dispatch/test_samples.py",
    "proxyd/__main__.py": "tests/proxyd/cli/test_commands.py",
    "proxyd/acceptor.py": "tests/conformance/test_shedding.py",
    "proxyd/access_records.py": "tests/proxyd/ops/access_log/test_access_log.py",
    "proxyd/backups/contents.py": "tests/proxyd/backups/test_making.py",
    "proxyd/backups/files.py": "tests/proxyd/backups/test_restoring.py",
    "proxyd/backups/folder.py": "tests/proxyd/backups/test_making.py",
    "proxyd/backups/manifest.py": "tests/proxyd/backups/test_restoring.py",
    "proxyd/cli/bookkeeping.py": "tests/proxyd/cli/test_commands.py",
    "proxyd/cli/demo.py": "tests/proxyd/cli/test_serving.py",
    "proxyd/cli/demo_files.py": "tests/proxyd/cli/test_commands.py",
    "proxyd/cli/parsing.py": "tests/proxyd/cli/test_commands.py",
    "proxyd/cli/staff/abuse/abuse_parsers.py": "tests/proxyd/cli/staff/abuse/test_abuse.py",
    "proxyd/cli/staff/base/desk.py": "tests/proxyd/cli/staff/test_commands.py",
    "proxyd/cli/staff/base/endings.py": "tests/integration/test_erasure.py",
    "proxyd/cli/staff/base/ends.py": "tests/proxyd/cli/staff/test_commands.py",
    "proxyd/cli/staff/base/letters.py": "tests/integration/test_suspension.py",
    "proxyd/cli/staff/base/words.py": "tests/proxyd/cli/staff/test_commands.py",
    "proxyd/cli/staff/cases/case_parsers.py": "tests/proxyd/cli/staff/cases/test_cases.py",
    "proxyd/cli/staff/erasure/erasure.py": "tests/integration/test_erasure.py",
    "proxyd/cli/staff/finding/finding.py": "tests/proxyd/cli/staff/test_commands.py",
    "proxyd/cli/staff/members/keys.py": "tests/proxyd/cli/staff/test_commands.py",
    "proxyd/cli/staff/members/members.py": "tests/proxyd/cli/staff/test_commands.py",
    "proxyd/cli/staff/members/rescue.py": "tests/proxyd/cli/staff/test_commands.py",
    "proxyd/cli/staff/money/limits.py": "tests/proxyd/cli/staff/money/test_money.py",
    "proxyd/cli/staff/money/money_parsers.py": "tests/proxyd/cli/staff/money/test_money.py",
    "proxyd/cli/staff/money/paying_parsers.py": "tests/proxyd/cli/staff/money/test_paying.py",
    "proxyd/cli/staff/parsers.py": "tests/proxyd/cli/staff/test_commands.py",
    "proxyd/cli/staff/site/site_parsers.py": "tests/proxyd/cli/staff/site/test_site.py",
    "proxyd/cli/staff/stopping/stopping.py": "tests/proxyd/cli/staff/test_commands.py",
    "proxyd/compiled/compilation.py": "tests/proxyd/compiled/test_builder.py",
    "proxyd/compiled/generate.py": "tests/proxyd/compiled/test_builder.py",
    "proxyd/compiled/toolchain.py": "tests/proxyd/compiled/test_builder.py",
    "proxyd/connection.py": "tests/conformance/test_handshake.py",
    "proxyd/egress/exit.py": "tests/proxyd/egress/test_direct.py",
    "proxyd/egress/lookup.py": "tests/proxyd/egress/test_direct.py",
    "proxyd/exits/attached/admission.py": "tests/proxyd/exits/attached/test_listener.py",
    "proxyd/exits/attached/allowance.py": "tests/proxyd/exits/attached/test_control.py",
    "proxyd/exits/attached/arrivals.py": "tests/proxyd/exits/attached/test_listener.py",
    "proxyd/exits/attached/attachments.py": "tests/proxyd/exits/attached/test_listener.py",
    "proxyd/exits/attached/controls.py": "tests/proxyd/exits/attached/test_listener.py",
    "proxyd/exits/attached/detached.py": "tests/proxyd/exits/attached/test_attached.py",
    "proxyd/exits/attached/heartbeats.py": "tests/proxyd/exits/attached/test_attached.py",
    "proxyd/exits/attached/load.py": "tests/proxyd/exits/attached/test_attached.py",
    "proxyd/exits/attached/loaner.py": "tests/proxyd/exits/nodes/test_loans.py",
    "proxyd/exits/attached/location.py": "tests/proxyd/exits/attached/test_attached.py",
    "proxyd/exits/attached/neighbours.py": "tests/proxyd/exits/nodes/test_mesh.py",
    "proxyd/exits/attached/notices.py": "tests/proxyd/exits/nodes/test_mesh.py",
    "proxyd/exits/attached/offers.py": "tests/proxyd/exits/attached/test_listener.py",
    "proxyd/exits/attached/origins.py": "tests/proxyd/exits/dialling/test_origin.py",
    "proxyd/exits/attached/pool.py": "tests/proxyd/exits/attached/test_attached.py",
    "proxyd/exits/attached/pulse.py": "tests/proxyd/exits/attached/test_attached.py",
    "proxyd/exits/attached/roster.py": "tests/proxyd/exits/attached/test_listener.py",
    "proxyd/exits/attached/seals.py": "tests/proxyd/exits/attached/test_secure.py",
    "proxyd/exits/attached/terms.py": "tests/proxyd/exits/attached/test_attached.py",
    "proxyd/exits/attached/work.py": "tests/proxyd/exits/attached/test_listener.py",
    "proxyd/exits/choosing/bindings.py": "tests/proxyd/exits/choosing/test_directory.py",
    "proxyd/exits/choosing/bounds.py": "tests/proxyd/exits/choosing/test_directory.py",
    "proxyd/exits/choosing/entries.py": "tests/proxyd/exits/choosing/test_directory.py",
    "proxyd/exits/choosing/faults.py": "tests/proxyd/exits/choosing/test_directory.py",
    "proxyd/exits/choosing/filing.py": "tests/proxyd/exits/choosing/test_directory.py",
    "proxyd/exits/choosing/past_picks.py": "tests/proxyd/exits/choosing/test_directory.py",
    "proxyd/exits/choosing/standing.py": "tests/proxyd/exits/choosing/test_directory.py",
    "proxyd/exits/choosing/wish.py": "tests/proxyd/exits/choosing/test_directory.py",
    "proxyd/exits/dialling/errand.py": "tests/proxyd/exits/watching/test_canaries.py",
    "proxyd/exits/dialling/evidence.py": "tests/proxyd/exits/dialling/test_dial.py",
    "proxyd/exits/dialling/orders.py": "tests/proxyd/exits/dialling/test_tunnels.py",
    "proxyd/exits/dialling/streams.py": "tests/proxyd/exits/dialling/test_tunnels.py",
    "proxyd/exits/dialling/target.py": "tests/proxyd/exits/dialling/test_dial.py",
    "proxyd/exits/dialling/workers.py": "tests/proxyd/exits/dialling/test_tunnels.py",
    "proxyd/exits/nodes/borrowing.py": "tests/proxyd/exits/nodes/test_loans.py",
    "proxyd/exits/nodes/hub.py": "tests/proxyd/exits/nodes/test_link.py",
    "proxyd/exits/nodes/known.py": "tests/proxyd/exits/nodes/test_mesh.py",
    "proxyd/exits/nodes/lending.py": "tests/proxyd/exits/nodes/test_loans.py",
    "proxyd/exits/nodes/peers.py": "tests/proxyd/exits/nodes/test_link.py",
    "proxyd/exits/nodes/remote.py": "tests/proxyd/exits/nodes/test_mesh.py",
    "proxyd/exits/processes/asking.py": "tests/proxyd/exits/processes/test_answering.py",
    "proxyd/exits/watching/agenda.py": "tests/proxyd/exits/watching/test_canaries.py",
    "proxyd/exits/watching/bars.py": "tests/proxyd/exits/watching/test_canaries.py",
    "proxyd/exits/watching/bounds.py": "tests/proxyd/exits/watching/test_canaries.py",
    "proxyd/exits/watching/findings.py": "tests/proxyd/exits/watching/test_canaries.py",
    "proxyd/exits/watching/rounds.py": "tests/proxyd/exits/watching/test_canaries.py",
    "proxyd/exits/watching/truths.py": "tests/proxyd/exits/watching/test_canaries.py",
    "proxyd/loop/runner.py": "tests/proxyd/loop/test_cancellation.py",
    "proxyd/metering/address_proofs.py": "tests/conformance/test_passwordless.py",
    "proxyd/metering/fence.py": "tests/proxyd/metering/test_lease_slices.py",
    "proxyd/metering/leaving.py": "tests/proxyd/metering/test_halting.py",
    "proxyd/metering/single_flight.py": "tests/proxyd/metering/test_meter.py",
    "proxyd/ops/access_log/access_answers.py": "tests/integration/test_complaints.py",
    "proxyd/ops/access_log/access_files.py": "tests/proxyd/ops/access_log/test_access_log.py",
    "proxyd/ops/access_log/access_lines.py": "tests/proxyd/ops/access_log/test_access_log.py",
    "proxyd/ops/access_log/access_place.py": "tests/proxyd/ops/checks/test_accountability.py",
    "proxyd/ops/access_log/exit_records.py": "tests/proxyd/cli/staff/abuse/test_abuse.py",
    "proxyd/ops/base/books.py": "tests/proxyd/cli/test_commands.py",
    "proxyd/ops/base/errors.py": "tests/proxyd/cli/test_serving.py",
    "proxyd/ops/metrics/metrics.py": "tests/api/ops/test_metrics.py",
    "proxyd/ops/metrics/process_metrics.py": "tests/api/ops/test_metrics.py",
    "proxyd/ops/processes/role.py": "tests/proxyd/ops/metrics/test_shared_metrics.py",
    "proxyd/ops/watches/alert_watch.py": "tests/proxyd/ops/watches/test_machine.py",
    "proxyd/outbound/payment_calls.py": "tests/proxyd/outbound/test_stripe.py",
    "proxyd/outbound/posting.py": "tests/proxyd/outbound/test_webhooks.py",
    "proxyd/outbound/smtp.py": "tests/proxyd/outbound/test_mailer.py",
    "proxyd/outbound/stripe_api.py": "tests/proxyd/outbound/test_stripe.py",
    "proxyd/outbound/stripe_cards.py": "tests/proxyd/outbound/test_stripe.py",
    "proxyd/relay/closing.py": "tests/conformance/test_streams.py",
    "proxyd/relay/exit_datagrams.py": "tests/conformance/test_exit_datagrams.py",
    "proxyd/relay/halfpipe.py": "tests/proxyd/relay/test_tcp.py",
    "proxyd/relay/udp.py": "tests/conformance/test_udp.py",
    "proxyd/supervisor/signals.py": "tests/integration/test_processes.py",
    "proxyd/supervisor/supervisor.py": "tests/integration/test_processes.py",
    "proxyd/wire/asks.py": "tests/proxyd/exits/processes/test_answering.py",
    "proxyd/wire/events.py": "tests/proxyd/wire/test_detect.py",
    "proxyd/wire/http_refusals.py": "tests/proxyd/wire/test_http.py",
    "proxyd/wire/http_request.py": "tests/proxyd/wire/test_http.py",
    "proxyd/wiring/abuse_settings.py": "tests/api/staff/test_tickets.py",
    "proxyd/wiring/build.py": "tests/test_wiring.py",
    "proxyd/wiring/build_core.py": "tests/test_wiring.py",
    "proxyd/wiring/build_exits.py": "tests/test_wiring.py",
    "proxyd/wiring/build_services.py": "tests/test_wiring.py",
    "proxyd/wiring/core.py": "tests/proxyd/wiring/test_daemon.py",
    "proxyd/wiring/exit_port.py": "tests/conformance/test_exits.py",
    "proxyd/wiring/halt_watch.py": "tests/integration/test_suspension.py",
    "proxyd/wiring/listeners.py": "tests/proxyd/ops/processes/test_listening.py",
    "proxyd/wiring/market_work.py": "tests/faults/test_clock.py",
    "proxyd/wiring/membership.py": "tests/integration/test_cluster.py",
    "proxyd/wiring/new_accounts.py": "tests/proxyd/cli/staff/test_commands.py",
    "proxyd/wiring/services.py": "tests/proxyd/cli/test_serving.py",
    "proxyd/wiring/staff_port.py": "tests/api/staff/test_app.py",
    "storage/accounts/closures.py": "tests/market/erasure/test_closing.py",
    "storage/accounts/device_codes.py": "tests/market/accounts/test_device_codes.py",
    "storage/accounts/keys.py": "tests/market/accounts/test_keys.py",
    "storage/accounts/levels.py": "tests/market/accounts/test_levels.py",
    "storage/accounts/outbox.py": "tests/market/accounts/test_outbox.py",
    "storage/accounts/referrals.py": "tests/market/accounts/test_referrals.py",
    "storage/accounts/suspensions.py": "tests/market/staff/stopping/test_suspending.py",
    "storage/accounts/user_limits.py": "tests/market/staff/money/test_user_limits.py",
    "storage/accounts/users.py": "tests/market/accounts/test_accounts.py",
    "storage/assistant/assistant.py": "tests/market/assistant/test_goodness.py",
    "storage/attempts/attempts.py": "tests/market/attempts/test_attempts.py",
    "storage/backups/digest.py": "tests/storage/backups/test_move.py",
    "storage/backups/errors.py": "tests/storage/backups/test_move.py",
    "storage/backups/postgres_rows.py": "tests/storage/backups/test_move.py",
    "storage/backups/restorations.py": "tests/integration/test_backups.py",
    "storage/backups/sqlite_rows.py": "tests/storage/backups/test_move.py",
    "storage/backups/tables.py": "tests/storage/backups/test_move.py",
    "storage/bandwidth/allowlist.py": "tests/market/bandwidth/test_allowlist.py",
    "storage/bandwidth/halts.py": "tests/market/staff/stopping/test_suspending.py",
    "storage/bandwidth/nodes.py": "tests/market/bandwidth/test_leases_among_nodes.py",
    "storage/bandwidth/sessions.py": "tests/market/bandwidth/test_sessions.py",
    "storage/bandwidth/usage.py": "tests/market/bandwidth/test_usage.py",
    "storage/blobs/base.py": "tests/storage/blobs/test_local.py",
    "storage/deploys/apps.py": "tests/market/deploys/test_apps.py",
    "storage/deploys/deploys.py": "tests/market/deploys/test_deploys.py",
    "storage/deploys/rollouts.py": "tests/market/deploys/test_rollouts.py",
    "storage/devices/device_work.py": "tests/market/dispatch/test_device_work.py",
    "storage/devices/devices.py": "tests/market/devices/test_devices.py",
    "storage/devices/made_by_keys.py": "tests/market/recovery/test_made_by_keys.py",
    "storage/devices/origins.py": "tests/market/devices/test_origins.py",
    "storage/dispatch/claims.py": "tests/market/dispatch/test_claims.py",
    "storage/engines/durable.py": "tests/storage/engines/test_backup.py",
    "storage/engines/errors.py": "tests/storage/engines/test_store.py",
    "storage/engines/health.py": "tests/storage/engines/test_postgres_availability.py",
    "storage/engines/open.py": "tests/storage/engines/test_store.py",
    "storage/engines/postgres_link.py": "tests/storage/engines/test_postgres.py",
    "storage/engines/postgres_pooler.py": "tests/storage/engines/test_postgres.py",
    "storage/engines/postgres_schema.py": "tests/storage/engines/test_migrate.py",
    "storage/engines/sqlite_room.py": "tests/storage/engines/test_sqlite.py",
    "storage/erasure/acts.py": "tests/api/accounts/test_acts.py",
    "storage/erasure/column.py": "tests/storage/erasure/test_treatment.py",
    "storage/erasure/erasing.py": "tests/market/erasure/test_erasing.py",
    "storage/erasure/open_things.py": "tests/market/erasure/test_closing.py",
    "storage/events/events.py": "tests/market/events/test_recording.py",
    "storage/exits/exits.py": "tests/market/exits/test_consents.py",
    "storage/exits/mesh.py": "tests/proxyd/exits/nodes/test_link.py",
    "storage/files/artifacts.py": "tests/market/files/test_artifacts.py",
    "storage/files/evidence.py": "tests/market/files/test_artifacts.py",
    "storage/jobs/answers.py": "tests/market/jobs/test_answers.py",
    "storage/jobs/appeals.py": "tests/market/jobs/test_appeals.py",
    "storage/jobs/copies.py": "tests/market/jobs/test_copies.py",
    "storage/jobs/draws.py": "tests/market/jobs/test_draws.py",
    "storage/jobs/job_specs.py": "tests/market/jobs/test_specs.py",
    "storage/jobs/jobs.py": "tests/market/jobs/test_jobs.py",
    "storage/jobs/kinds.py": "tests/market/jobs/test_kinds.py",
    "storage/jobs/reviews.py": "tests/market/jobs/test_reviews.py",
    "storage/logs/logs.py": "tests/market/logs/test_logs.py",
    "storage/money/debts.py": "tests/market/payments/test_payments.py",
    "storage/money/earned.py": "tests/market/payouts/test_earned.py",
    "storage/money/ledger.py": "tests/market/money/test_ledger.py",
    "storage/money/lots.py": "tests/market/staff/money/test_money.py",
    "storage/notify/webhooks.py": "tests/market/notify/test_webhooks.py",
    "storage/payments/audit.py": "tests/market/payments/test_payments_invariants.py",
    "storage/payments/buyers.py": "tests/market/staff/stopping/test_suspending.py",
    "storage/payments/cards.py": "tests/market/payments/test_top_ups.py",
    "storage/payments/credit_notes.py": "tests/market/payments/test_payments.py",
    "storage/payments/particulars.py": "tests/market/payments/test_particulars.py",
    "storage/payments/payments.py": "tests/market/payments/test_payments.py",
    "storage/payments/returns.py": "tests/market/payments/test_payments.py",
    "storage/payments/top_ups.py": "tests/market/payments/test_top_ups.py",
    "storage/payments/watching.py": "tests/market/staff/site/test_alerts.py",
    "storage/payouts/audit.py": "tests/market/payouts/test_steps.py",
    "storage/payouts/batches.py": "tests/market/payouts/test_steps.py",
    "storage/payouts/lines.py": "tests/market/payouts/test_lines.py",
    "storage/payouts/methods.py": "tests/api/payouts/test_payouts.py",
    "storage/payouts/payouts.py": "tests/market/payouts/test_steps.py",
    "storage/payouts/sources.py": "tests/market/payouts/test_sources.py",
    "storage/site/alerts.py": "tests/market/staff/site/test_alerts.py",
    "storage/site/invitations.py": "tests/market/site/test_gate.py",
    "storage/site/status.py": "tests/market/site/test_status.py",
    "storage/site/texts.py": "tests/market/site/test_gate.py",
    "storage/site/writes.py": "tests/market/staff/site/test_site.py",
    "storage/staff/abuse/looks.py": "tests/proxyd/wiring/test_look_watch.py",
    "storage/staff/abuse/rule_stops.py": "tests/market/staff/test_rule_stops.py",
    "storage/staff/abuse/ticket_writes.py": "tests/market/staff/abuse/test_tickets.py",
    "storage/staff/abuse/tickets.py": "tests/market/staff/abuse/test_tickets.py",
    "storage/staff/base/answers.py": "tests/api/staff/test_app.py",
    "storage/staff/base/log.py": "tests/market/staff/base/test_chain.py",
    "storage/staff/base/rows.py": "tests/market/staff/members/test_keys.py",
    "storage/staff/base/staff.py": "tests/market/staff/members/test_accounts.py",
    "storage/staff/base/writes.py": "tests/market/staff/base/test_acts.py",
    "storage/staff/cases/case_decisions.py": "tests/market/staff/cases/test_cases.py",
    "storage/staff/cases/case_writes.py": "tests/market/staff/cases/test_cases.py",
    "storage/staff/finding/problems.py": "tests/market/staff/finding/test_users.py",
    "storage/staff/finding/search.py": "tests/market/staff/finding/test_search.py",
    "storage/staff/members/keys.py": "tests/market/staff/members/test_keys.py",
    "storage/staff/members/logins.py": "tests/market/staff/members/test_logins.py",
    "storage/staff/members/rescues.py": "tests/market/staff/members/test_rescue.py",
    "storage/staff/money/approvals.py": "tests/market/staff/money/test_second_person.py",
    "storage/staff/money/judging.py": "tests/market/staff/money/test_judging.py",
    "storage/staff/money/money.py": "tests/market/staff/money/test_money.py",
    "storage/staff/money/money_writes.py": "tests/market/staff/money/test_money.py",
    "storage/staff/stopping/suspending.py": "tests/market/staff/stopping/test_suspending.py",
    "storage/trust/samples.py": "tests/market/dispatch/test_samples.py",
    "storage/trust/trust.py": "tests/market/trust/test_trust.py",
}

# Test files below the rooms' folders without a module of their name, and their subject. One line a
# file.
ABOUT_SEVERAL = {
    "tests/api/accounts/test_bounds.py": (
        "market/accounts/bounds.py as the operator sets it and a caller is refused"
    ),
    "tests/api/accounts/test_recovery.py": (
        "market/recovery/recovery.py by the routes of api/accounts/accounts.py"
    ),
    "tests/api/jobs/test_job_specs.py": "market/jobs/specs.py by the routes of api/jobs/jobs.py",
    "tests/api/staff/test_declared.py": "the refusals of every route of the staff",
    "tests/api/staff/test_odd_names.py": "every route with a name in its path",
    "tests/api/test_fuzz.py": "every route, with requests made up from the API's own document",
    "tests/api/test_idempotency.py": (
        "market/events/idempotency.py, for every route that takes a key"
    ),
    "tests/client/proxyctl/worker/attempt/test_walls.py": (
        "the walls around a job, by the whole agent"
    ),
    "tests/client/proxyctl/worker/executors/containers/test_engine_battery.py": (
        "each kind of container"
    ),
    "tests/client/test_autostart.py": "client/autostart/",
    "tests/clusters/test_interface.py": (
        "what clusters/ imports of proxyctl, and how an owner installs both"
    ),
    "tests/config/test_example.py": "config/proxyd.example.toml",
    "tests/market/bandwidth/test_leases_among_nodes.py": (
        "market/bandwidth/leases.py, any sequence on several nodes"
    ),
    "tests/market/exits/test_exit_invariants.py": (
        "the money of exits, by any sequence of operations"
    ),
    "tests/market/jobs/test_cancelling_costs.py": (
        "market/jobs/kinds/: what cancelling would cost now"
    ),
    "tests/market/jobs/test_failed_attempts.py": (
        "market/jobs/kinds/scripted.py and draws.py: work that has failed"
    ),
    "tests/market/jobs/test_kinds.py": "market/jobs/kinds/ and storage/jobs/kinds.py",
    "tests/market/jobs/test_paid.py": "market/jobs/ by the event of each pay",
    "tests/market/money/test_ledger_invariants.py": "money, by any sequence of operations",
    "tests/market/payments/test_payments_invariants.py": (
        "the money of payments, by any order of events"
    ),
    "tests/market/payouts/test_earned.py": (
        "the earned money of market/money/ledger.py, and the rules of market/payouts/rules.py"
    ),
    "tests/market/payouts/test_payout_invariants.py": "market/payouts/",
    "tests/market/payouts/test_sources.py": (
        "storage/payouts/sources.py as market/payouts/payouts.py and the staff use it"
    ),
    "tests/market/staff/money/test_money_invariants.py": "market/staff/money/",
    "tests/proxyd/backups/test_site.py": (
        "the tables of market/site, of tickets and of halts through the same"
    ),
    "tests/proxyd/backups/test_staff.py": (
        "the tables of market/staff through a backup, a restoration and a move"
    ),
    "tests/proxyd/exits/dialling/test_failover.py": (
        "proxyd/exits/dialling/dial.py with the choice of proxyd/exits/choosing/directory.py"
    ),
    "tests/proxyd/outbound/test_late_charges.py": (
        "market/payments/payments.py with proxyd/outbound/stripe_cards.py over HTTP"
    ),
    "tests/proxyd/outbound/test_stripe_live.py": (
        "proxyd/outbound/stripe*.py, at the stand-in and at the real provider"
    ),
    "tests/proxyd/test_imports.py": "what each command imports",
    "tests/proxyd/test_new_accounts.py": "limits of new accounts, from the settings to the proxy",
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


def test_each_module_has_its_test_file_or_an_entry() -> None:
    failures = []
    for module in MODULES:
        own = own_test(module)
        has_own, has_entry = (ROOT / own).exists(), module in TESTED_IN
        if not (has_own or has_entry):
            failures.append(f"{module}: neither {own} nor an entry in TESTED_IN")
        elif has_own and has_entry:
            failures.append(f"{module}: {own} is there: the entry in TESTED_IN can go")
        elif not (ROOT / TESTED_IN.get(module, own)).exists():
            failures.append(f"{module}: {TESTED_IN[module]} is not there")
    assert failures == []


def test_each_test_file_has_its_module_or_an_entry() -> None:
    failures = []
    for test in TESTS:
        has_module, has_entry = test in EXPECTED, test in ABOUT_SEVERAL
        if not (has_module or has_entry):
            failures.append(f"{test}: neither a module of its name nor an entry in ABOUT_SEVERAL")
        elif has_module and has_entry:
            failures.append(f"{test}: it has its module: the entry in ABOUT_SEVERAL can go")
    assert failures == []


def test_no_entry_is_about_a_removed_file() -> None:
    assert sorted(set(TESTED_IN) - set(MODULES)) == []
    assert sorted(set(ABOUT_SEVERAL) - set(TESTS)) == []


def test_entries_are_sorted() -> None:
    assert list(TESTED_IN) == sorted(TESTED_IN)
    assert list(ABOUT_SEVERAL) == sorted(ABOUT_SEVERAL)


def test_the_index_of_support_names_each_folder_once() -> None:
    entries = re.findall(r"^(\w+): ", support.__doc__ or "", re.MULTILINE)
    folders = {Path(each).parent.name for each in files("tests/support/", "[!_]*.py")}
    assert sorted(entries) == sorted(folders)
