"""The treatment of every column at the erasure of a user; the erasure and the export follow it.

Tables are in the order of the erasure: rows go before the rows that they refer to. A test compares
the names with the schema of both engines, so a new column needs a line here.
"""

from collections.abc import Mapping

from storage.erasure.column import Rows, deleted, nobody, rows

_OWN = "user_id = :user"
_JOBS = "job_id IN (SELECT id FROM jobs WHERE user_id = :user)"
_DEVICES = "device_id IN (SELECT id FROM devices WHERE user_id = :user)"
_WORKED_AT = f"SELECT job_id FROM job_attempts WHERE {_DEVICES}"
_DEPLOYS = "deploy_id IN (SELECT id FROM deploys WHERE user_id = :user)"
_SESSIONS = "session_id IN (SELECT id FROM bandwidth_sessions WHERE user_id = :user)"
_ENDPOINTS = "endpoint_id IN (SELECT id FROM webhook_endpoints WHERE user_id = :user)"


def _either(table: str, key: str, *conditions: str) -> str:
    """Return SQL for the rows of a table that meet a condition, found by indexes.

    PostgreSQL answers an OR between sub-selects by a scan of the table, so the first column of the
    primary key selects the rows before.
    """
    found = " UNION ".join(f"SELECT {key} FROM {table} WHERE {each}" for each in conditions)
    return f"{key} IN ({found}) AND (({') OR ('.join(conditions)}))"


_ACCOUNTS = "(SELECT id FROM accounts WHERE user_id = :user)"
# The transfers that have an entry on an account of the user.
_TRANSFERS = (
    f"(SELECT transfer_id FROM entries WHERE debit_account IN {_ACCOUNTS}"
    f" UNION SELECT transfer_id FROM entries WHERE credit_account IN {_ACCOUNTS})"
)
# E-mails that wait. The e-mail about the erasure itself goes once it was sent, as every other one.
_LETTERS = """channel IN ('mail', 'forgotten password') AND (
    item_key IN (
        'verify:' || :user, 'reset:' || :user, 'account suspended:' || :user,
        'account resumed:' || :user, 'password changed:' || :user, 'account closed:' || :user
    )
    OR item_key IN (SELECT 'key created:' || id FROM api_keys WHERE user_id = :user)
    OR item_key IN (SELECT 'key revoked:' || id FROM api_keys WHERE user_id = :user)
    OR item_key IN (SELECT 'webhook disabled:' || id FROM webhook_endpoints WHERE user_id = :user)
    OR item_key IN (SELECT 'session halted:' || id FROM bandwidth_sessions WHERE user_id = :user)
    OR item_key IN (SELECT 'payment ' || id FROM payments WHERE user_id = :user)
    OR item_key IN (
        SELECT 'payment return ' || r.id || ' ' || s.status
        FROM payment_returns AS r
        JOIN (SELECT 'pending' AS status UNION SELECT 'done' UNION SELECT 'void') AS s ON 1 = 1
        WHERE r.user_id = :user
    )
    OR item_key IN (SELECT 'case decided:' || subject_id FROM case_decisions WHERE user_id = :user)
    OR item_key IN (
        SELECT 'job disputed:' || job_id || ':' || user_id FROM job_reviews
        WHERE user_id = :user AND disputed_at IS NOT NULL
    )
    OR item_key IN ('top-up:' || :user, 'card:' || :user)
    OR item_key IN (SELECT 'payout-method:' || id FROM payout_methods WHERE user_id = :user)
    OR item_key IN (
        SELECT 'payout-method:' || id || ':end' FROM payout_methods WHERE user_id = :user
    )
    OR item_key = :mail_hash
)"""
_STUB = "'erased-' || id"
# A registration refuses spaces, so no other user can have these names.
_STUB_KEY = "'erased ' || id"
_BOOKS = "the books keep it, and it names no person"
_OF_PROVIDER = "the identifier of a provider, which the books need for later disputes"
_ON_INVOICES = "tax law has the seller keep issued invoices, with their receivers, for years"
_NOW = ":now"
# An attempt at another user's job, on a device of this user, keeps the data of the other user.
_UNLESS_OTHERS = f"CASE WHEN {_JOBS} THEN NULL ELSE {{}} END"
_ONCE = "COALESCE(revoked_at, :now)"

# The rows of users.
_OF_USERS: Mapping[str, Rows] = {
    "outbox": deleted(
        _LETTERS,
        "id",
        "id channel item_key share sealed_payload",
        "created_at expires_at not_before attempts claimed_at",
        exported=None,
    ),
    "login_sessions": deleted(
        _OWN, "id", "id user_id network user_agent", "created_at expires_at ended_at"
    ),
    "login_networks": deleted(
        _OWN, "user_id network_hash", "user_id network_hash", "seen_at", hidden="network_hash"
    ),
    "mail_tokens": deleted(
        _OWN,
        "token_hash",
        "token_hash user_id purpose",
        "created_at expires_at used_at",
        exported=None,
    ),
    "device_codes": deleted(
        _OWN,
        "id",
        "id device_hash user_hash client_name scopes network status user_id share",
        "interval_seconds next_poll_at created_at expires_at",
        hidden="device_hash user_hash",
    ),
    "idempotency_keys": deleted(
        _OWN,
        "user_id idempotency_key",
        "user_id idempotency_key request_hash sealed_answer",
        "created_at",
        exported=None,
    ),
    "app_keys": deleted(
        "app_id IN (SELECT id FROM jobs WHERE user_id = :user"
        " UNION SELECT id FROM deploys WHERE user_id = :user)",
        "app_id",
        "app_id job_id deploy_id key_hash sealed_key",
        "created_at",
        hidden="key_hash sealed_key",
    ),
    "webhook_attempts": deleted(
        f"delivery_id IN (SELECT id FROM webhook_deliveries WHERE {_ENDPOINTS})",
        "delivery_id number",
        "delivery_id error answer",
        "number started_at status ms",
    ),
    "webhook_deliveries": deleted(
        _ENDPOINTS,
        "id",
        "id endpoint_id user_id event_id type status last_error",
        "attempts tries next_at last_status last_ms created_at",
    ),
    "webhook_endpoints": deleted(
        _OWN,
        "id",
        "id user_id url types description sealed_secret sealed_old_secret disabled_reason made_by",
        "old_until created_at failing_since disabled_at proven_at quiet_until",
        hidden="sealed_secret sealed_old_secret",
    ),
    "user_limits": deleted(
        _OWN, "user_id", "user_id level", "sessions jobs devices price_percent until changed_at"
    ),
    "user_logs": deleted(_OWN, "user_id", "user_id", "kept_bytes"),
    "suspended_parts": deleted(_OWN, "user_id part", "user_id part shown_id", "began_at ends_at"),
    "exports": deleted(_OWN, "id", "id user_id", "asked_at expires_at downloads", exported=None),
    "rule_stops": deleted(
        _OWN,
        "session_id rule found_at",
        "session_id rule user_id figures",
        "found_at halted_until told_at counted_at",
    ),
    "rule_peaks": deleted(
        _SESSIONS,
        "hour rule session_id",
        "rule session_id",
        "hour amount failed_percent",
        exported=None,
    ),
    "staff_users": deleted(
        _OWN, "staff_id user_id", "staff_id user_id", "declared_at", exported=None
    ),
    "pending_addresses": deleted(_SESSIONS, "session_id address", "session_id address", "slot"),
    "session_addresses": deleted(_SESSIONS, "address slot", "address session_id", "slot"),
    "exit_bindings": deleted(
        _SESSIONS, "session_id label", "session_id label device_id country", "until"
    ),
    "events": deleted(_OWN, "id", "id user_id type subject_id data", "created_at"),
    "texts": rows(
        "user_id = :user AND erased_at IS NULL",
        "id",
        ids="id user_id",
        enums="kind",
        numbers="log_number created_at",
        erased={"body": "''", "salt": "''", "erased_at": _NOW},
        hidden="salt",
        exported="kind = 'decision'",
    ),
    "copy_networks": deleted(
        f"job_id IN (SELECT id FROM jobs WHERE user_id = :user UNION {_WORKED_AT})",
        "job_id attempt",
        "job_id network",
        "attempt",
        exported=None,
    ),
    "job_inputs": deleted(
        _either(
            "job_inputs",
            "job_id",
            _JOBS,
            "artifact_id IN (SELECT id FROM artifacts WHERE user_id = :user)",
        ),
        "job_id artifact_id",
        "job_id artifact_id",
    ),
    "artifacts": deleted(
        _OWN,
        "id",
        "id user_id job_id kind name digest reference content_id",
        "attempt size_bytes created_at whole_at expires_at",
        hidden="reference content_id",
    ),
    "sample_turns": deleted(_DEVICES, "device_id", "device_id", "jobs_left", exported=None),
    "reputation_buyers": deleted(
        _either("reputation_buyers", "owner_id", "owner_id = :user", "buyer_id = :user"),
        "owner_id buyer_id",
        "owner_id buyer_id",
        "day counted differed_on",
        exported=None,
    ),
    "reputations": deleted(
        "id IN (SELECT id FROM users WHERE id = :user"
        " UNION SELECT id FROM devices WHERE user_id = :user)",
        "id",
        "id kind",
        "reliability correctness attempts checks streak",
    ),
    "goodness_prints": deleted(
        "reward_id IN (SELECT id FROM goodness_rewards WHERE user_id = :user)",
        "reward_id number",
        "reward_id",
        "number bits detail band_a band_b band_c band_d",
    ),
    "goodness_rewards": rows(
        _OWN,
        "id",
        ids="id user_id",
        enums="category",
        numbers="day confidence amount created_at",
        kept={
            "model": "the operator's name of a model",
            "file_hash": "one photo is rewarded once; a hash does not reveal the photo",
        },
        hidden="file_hash",
    ),
    # The sweep of logs removes the files of logs that ended long ago, and then these rows.
    "job_logs": rows(
        _JOBS,
        "job_id attempt",
        ids="job_id user_id",
        numbers="attempt began_at kept_bytes",
        erased={"ended_at": "0"},
    ),
    "job_reviews": rows(
        _either(
            "job_reviews",
            "job_id",
            _JOBS,
            f"user_id = :user AND job_id IN ({_WORKED_AT})",
        ),
        "job_id attempt",
        ids="job_id user_id buyer_id",
        enums="currency state",
        numbers="attempt earned price created_at review_until disputed_at resolved_at is_draw"
        " refunded withheld",
        erased={"reason": "NULL"},
        # The buyer's statement for the staff: neither side of a dispute reads that of the other.
        shown={"reason": "CASE WHEN buyer_id = :user THEN reason END"},
    ),
    "job_attempts": rows(
        _either("job_attempts", "job_id", _JOBS, _DEVICES),
        "job_id attempt",
        ids="job_id device_id",
        enums="outcome phase failure_kind",
        numbers="attempt started_at ended_at work_started_at ready_at renewed_at named_at deadline"
        " progress exit_code cpu_seconds max_memory_bytes served_seconds again_at",
        erased={
            "image_digest": _UNLESS_OTHERS.format("image_digest"),
            "reason": "NULL",
            "left_out": _UNLESS_OTHERS.format("left_out"),
        },
    ),
    "job_specs": rows(
        _JOBS,
        "job_id",
        ids="job_id",
        numbers="is_manual timeout_seconds review_hours min_reputation",
        erased={"payload": "NULL", "secrets": "NULL", "resources": "'{}'", "warnings": "'[]'"},
        hidden="secrets",
    ),
    "jobs": rows(
        _OWN,
        "id",
        ids="id user_id device_id deploy_id",
        enums="job_type status currency",
        numbers="price_credit duration_hrs attempts created_at accepted_at finished_at earned"
        " price_held text_bytes",
        erased={
            "title": "''",
            "description": "''",
            "requirements": "''",
            "result": "NULL",
            "failure_reason": "NULL",
        },
    ),
    "deploy_revisions": rows(
        _OWN,
        "deploy_id revision",
        ids="deploy_id user_id",
        enums="cause state",
        numbers="revision size_bytes created_at",
        erased={"template": "'{}'", "secrets": "NULL"},
        hidden="secrets",
    ),
    "deploy_rollouts": rows(
        _DEPLOYS,
        "deploy_id",
        ids="deploy_id user_id",
        enums="state",
        numbers="revision desired replica_price replica_credit updated progressed_at",
        erased={"problem": "NULL", "strategy": "'{}'"},
    ),
    "deploys": rows(
        _OWN,
        "id",
        ids="id user_id",
        enums="job_type currency",
        numbers="gpu_count duration_hrs replicas price created_at",
        erased={"job_name": "''", "image": "NULL", "command": "NULL", "gpu_model": "''"},
    ),
    "deploy_replicas": rows(
        _DEPLOYS,
        "job_id",
        ids="job_id deploy_id",
        numbers="number revision seconds ready_within stopped_at",
    ),
    "api_keys": rows(
        _OWN,
        "id",
        ids="id user_id purse_id",
        enums="scopes limit_period",
        numbers="limit_usd limit_credit created_at expires_at last_used_at is_expiry_told"
        " limit_told_at",
        erased={
            "name": "''",
            "key_hash": _STUB,
            "prefix": "''",
            "allow_ips": "''",
            "created_by": "''",
            "last_used_network": "NULL",
            "revoked_at": _ONCE,
        },
        hidden="key_hash",
    ),
    "exit_canaries": rows(
        _DEVICES,
        "id",
        ids="id device_id",
        enums="kind",
        numbers="found_at pardoned_at",
        erased={"evidence": "''"},
        hidden="evidence",  # a secret page of the service, and its right answer
    ),
    "exits": rows(
        _OWN,
        "device_id",
        ids="device_id user_id",
        numbers="consented_at paused_at barred_at connections bytes_per_second bytes_per_day"
        " min_price_per_gb",
        erased={"city": "''", "asn": "0", "barred_for": "''", "revoked_at": _ONCE},
        kept={
            "terms_hash": "the proof of an agreement",
            "ports": "numbers of ports that targets may have",
            "country": "statistics of countries",
        },
    ),
    "devices": rows(
        _OWN,
        "id",
        ids="id user_id",
        enums="device_type",
        numbers="min_price_usd created_at last_heartbeat_at offline_at is_present",
        erased={
            "token_hash": _STUB,
            "name": "''",
            "hostname": "''",
            "gpu_name": "''",
            "cpu_cores": "0",
            "ram_gb": "0",
            "cpu_temp": "NULL",
            "gpu_temp": "NULL",
            "cpu_pct": "NULL",
            "ram_pct": "NULL",
            "revoked_at": _ONCE,
            "made_by": "NULL",
        },
        hidden="token_hash",
    ),
    "bandwidth_sessions": rows(
        _OWN,
        "id",
        ids="id user_id",
        enums="status",
        numbers="quota_bytes bytes_used bytes_leased price_per_gb created_at expires_at ended_at"
        " exit_share_percent is_low is_expiry_told halted_at halted_until released_at",
        erased={"username": _STUB, "password_hash": "''", "halt_reason": "''"},
        kept={"exit": "a wish for countries and devices, which names no person"},
        hidden="password_hash",
    ),
    "consents": rows(
        _OWN,
        "user_id kind version",
        ids="user_id",
        enums="kind",
        numbers="version given_at",
        erased={"network": "''"},
    ),
    "users": rows(
        "id = :user",
        "id",
        ids="id",
        numbers="created_at",
        erased={
            "username": _STUB,
            "username_key": _STUB_KEY,
            "email": f"{_STUB} || '@erased.invalid'",
            "email_key": _STUB_KEY,
            "password_hash": "'erased'",
            "email_verified_at": "NULL",
            "referral_code": "NULL",
        },
        kept={"email_domain": "the database computes it from email_key"},
        hidden="password_hash",
    ),
    # Books and proofs: they stay as they are.
    "accounts": rows(_OWN, "id", ids="id user_id", enums="kind currency", numbers="balance earned"),
    "transfers": rows(
        f"id IN {_TRANSFERS}",
        "id",
        ids="id",
        enums="kind",
        numbers="created_at",
        kept={"business_key": _BOOKS, "reference": _BOOKS},
    ),
    "entries": rows(
        f"transfer_id IN {_TRANSFERS}",
        "transfer_id line",
        ids="transfer_id debit_account credit_account",
        enums="currency",
        numbers="line amount earned",
    ),
    "earned_lines": rows(
        f"account IN {_ACCOUNTS}",
        "account is_back transfer_id",
        ids="account transfer_id",
        numbers="is_back",
        exported=None,  # the entries have these amounts
    ),
    "holds": rows(
        _OWN,
        "id",
        ids="id user_id",
        enums="currency",
        numbers="amount captured created_at resolved_at drawn earned",
        exported=None,  # the entries have these amounts
    ),
    "key_spends": rows(
        "purse_id IN (SELECT purse_id FROM api_keys WHERE user_id = :user)",
        "purse_id currency period begins_at",
        ids="purse_id",
        enums="currency period",
        numbers="begins_at spent",
    ),
    "earned_totals": rows(
        _OWN, "user_id currency", ids="user_id", enums="currency", numbers="total first_at"
    ),
    "payments": rows(
        _OWN,
        "id",
        ids="id user_id deposit_id",
        enums="provider status",
        numbers="amount looked_at next_look_at created_at closed_at accepted doubts",
        erased={"url": "''", "doubt": "''"},
        kept={
            "provider_id": _OF_PROVIDER,
            "charge_id": _OF_PROVIDER,
            "customer_id": _OF_PROVIDER,
            "card_id": _OF_PROVIDER,
            "title": "the name of the site, and an amount",
        },
    ),
    # The erasure has the provider end the page, and remove the card and the customer.
    "saved_cards": deleted(
        _OWN,
        "user_id",
        "user_id provider customer_id card_id shown setup_id setup_ref setup_url",
        "saved_at looked_at next_look_at setups setups_since",
        hidden="customer_id card_id setup_id setup_ref setup_url",
    ),
    "forgotten_at_provider": nobody(
        "id provider kind", "a card, a page or a customer to remove, which names no person"
    ),
    "top_ups": deleted(
        _OWN,
        "user_id",
        "user_id state",
        "threshold amount month_ceiling refusals next_at changed_at",
    ),
    "payment_returns": rows(
        _OWN,
        "id",
        ids="id payment_id deposit_id user_id",
        enums="kind status",
        numbers="amount held taken created_at closed_at",
        kept={"provider_ref": _OF_PROVIDER},
    ),
    "debts": rows(_OWN, "id", ids="id user_id", numbers="amount paid created_at"),
    "earning_debts": rows(
        _OWN, "id", ids="id user_id", enums="currency", numbers="amount paid created_at"
    ),
    "receipts": rows(
        "payment_id IN (SELECT id FROM payments WHERE user_id = :user)",
        "number",
        ids="payment_id",
        numbers="number issued_at tax_basis_points",
        kept={
            "seller": "the particulars of the operator",
            "tax_name": "the name of a tax",
            **dict.fromkeys(
                ("buyer_name", "buyer_address", "buyer_country", "buyer_tax_number"), _ON_INVOICES
            ),
        },
    ),
    "buyer_particulars": deleted(
        _OWN, "user_id", "user_id name address country tax_number", "changed_at"
    ),
    "credit_notes": rows(
        "return_id IN (SELECT id FROM payment_returns WHERE user_id = :user)",
        "number",
        ids="return_id",
        numbers="number receipt_number amount issued_at cancelled_at",
    ),
    "payout_methods": rows(
        _OWN,
        "id",
        ids="id user_id",
        enums="kind",
        numbers="created_at usable_at",
        erased={"sealed": "''", "shown": "''", "removed_at": "COALESCE(removed_at, :now)"},
        hidden="sealed",
    ),
    # The file of a batch has the bank data of its receivers in their lines. A file of an older
    # version is in one piece, so it goes as a whole.
    "payout_lines": deleted(
        "payout_id IN (SELECT id FROM payouts WHERE user_id = :user)",
        "payout_id",
        "payout_id sealed",
        hidden="sealed",
        exported=None,
    ),
    "payout_batches": rows(
        "id IN (SELECT batch_id FROM payouts WHERE user_id = :user)",
        "id",
        ids="id parent_id",
        enums="format",
        numbers="payouts net_usd created_at settled_at tried_at looked_at doubtful_at watch_at",
        erased={
            "sealed_content": "CASE WHEN EXISTS (SELECT 1 FROM payouts AS p"
            " JOIN payout_lines AS l ON l.payout_id = p.id"
            " WHERE p.batch_id = payout_batches.id) THEN sealed_content END"
        },
        kept={"outside_id": _OF_PROVIDER},
        exported=None,
    ),
    "payouts": rows(
        _OWN,
        "id",
        ids="id user_id method_id batch_id",
        enums="currency state reason",
        numbers="amount rate usd fee fee_amount requested_at decide_by decided_at sent_at ended_at"
        " is_returned",
    ),
    "verified_users": rows(_OWN, "user_id", ids="user_id", numbers="verified_at"),
    "staff_money": rows(
        _OWN,
        "business_key",
        ids="id user_id approval_id deposit_id author",
        enums="action currency",
        numbers="amount created_at",
        kept={"business_key": _BOOKS, "payload_hash": _BOOKS},
        hidden="author payload_hash",
    ),
    "approvals": rows(
        _OWN,
        "id",
        ids="id user_id asked_by decided_by",
        enums="action currency decision",
        numbers="amount log_number asked_at expires_at decided_at",
        kept={"business_key": _BOOKS, "payload": _BOOKS, "payload_hash": _BOOKS},
        hidden="asked_by decided_by payload payload_hash",
    ),
    "bandwidth_leases": rows(
        _SESSIONS,
        "id",
        ids="id session_id node_id",
        numbers="granted_bytes used_bytes closed_at exit_bytes",
        hidden="node_id",
    ),
    "session_usage": rows(
        _OWN,
        "user_id begins_at session_id span_seconds",
        ids="user_id session_id",
        numbers="begins_at span_seconds used_bytes connections",
    ),
    "session_refusals": rows(
        _OWN,
        "user_id begins_at session_id span_seconds reason",
        ids="user_id session_id",
        enums="reason",
        numbers="begins_at span_seconds refusals",
    ),
    "exit_consents": rows(
        _DEVICES,
        "id",
        ids="id device_id",
        enums="event",
        numbers="created_at",
        kept={
            "terms_hash": "the proof of an agreement",
            "reason": "the proof of an agreement; the service or its staff wrote it",
        },
        hidden="reason",  # that of a claw-back is for the staff
    ),
    "device_origins": rows(
        _DEVICES,
        "device_id began_at address",
        ids="device_id",
        numbers="began_at ended_at",
        kept={"address": "complaints about the past; deleted with the access records of its time"},
    ),
    "exit_days": rows(_DEVICES, "device_id day", ids="device_id", numbers="day used_bytes earned"),
    "exit_earnings": rows(
        _OWN,
        "session_id device_id number",
        ids="session_id device_id user_id",
        numbers="number used_bytes amount posted_at paid_at reversed_at",
        exported=None,  # the entries and the days have these amounts
    ),
    "exit_usage": rows(
        _DEVICES,
        "lease_id device_id",
        ids="lease_id device_id session_id",
        numbers="used_bytes earned",
    ),
    "job_draws": rows(
        _either("job_draws", "job_id", _OWN, _JOBS),
        "job_id attempt",
        ids="job_id device_id user_id",
        numbers="attempt seconds amount earned created_at",
    ),
    "copy_groups": rows(
        "id IN (SELECT id FROM jobs WHERE user_id = :user)",
        "id",
        ids="id canonical_id",
        enums="state",
        numbers="copies review_seconds result_at decided_at",
        kept={"compare": "the rule of a comparison, which names no person"},
    ),
    "job_copies": rows(_JOBS, "job_id", ids="job_id group_id", enums="verdict", numbers="number"),
    "job_samples": rows(
        "owner_id = :user",
        "job_id",
        ids="job_id device_id owner_id shown_buyer",
        enums="outcome",
        numbers="price is_first created_at",
        kept={"answer": "the answer that the service expects to a task of its own"},
        exported=None,
    ),
    "sample_losses": rows(
        "job_id IN (SELECT job_id FROM job_samples WHERE owner_id = :user)",
        "job_id reputation_id",
        ids="job_id reputation_id",
        numbers="correctness streak checks",
        exported=None,
    ),
    "dispute_answers": rows(
        _OWN,
        "job_id user_id",
        ids="job_id user_id",
        numbers="answered_at",
        erased={"answer": "''"},
    ),
    "appeals": rows(
        _OWN,
        "id",
        ids="id job_id user_id",
        numbers="created_at due_at given decided_at",
        erased={"reason": "''"},
    ),
    "case_decisions": rows(
        _OWN,
        "subject_id kind",
        ids="subject_id user_id",
        enums="kind decision",
        numbers="decided_at",
    ),
    "referrals": rows(
        _either("referrals", "user_id", _OWN, "referrer_id = :user"),
        "user_id",
        ids="user_id referrer_id",
        numbers="referrer_bonus referred_bonus created_at paid_at",
        hidden="user_id referrer_id",
    ),
    "closures": rows(
        _OWN, "user_id", ids="user_id", enums="state", numbers="waives closed_at due_at erased_at"
    ),
    "tickets": rows(
        _OWN,
        "number",
        ids="user_id",
        enums="category state outcome",
        numbers="number opened_at due_at closed_at",
        kept={"facts": "the complaint of another person, without a name of the user"},
        exported=None,
    ),
    # With the decisions whose reason the user reads as the other side of a dispute.
    "staff_log": rows(
        _either(
            "staff_log",
            "number",
            _OWN,
            "number IN (SELECT log_number FROM texts WHERE user_id = :user AND kind = 'decision')",
        ),
        "number",
        ids="staff_id subject_id user_id text_id",
        enums="via role action subject_kind",
        numbers="number at",
        kept={
            "unix_user": "a name of the staff",
            "text_hash": "the proof of a text; its salt is erased",
            "changes": "identifiers, amounts and states only",
            "hash": "the chain of the log",
        },
        hidden="staff_id user_id unix_user role via text_hash hash",
        # A complaint, the search for its customer and a case of the authorities change nothing for
        # the user, who must not learn of them from here: like `tickets`, they are in no export.
        exported="subject_kind <> 'ticket' AND action <> 'search.exit'",
    ),
    "halts": rows(
        _OWN,
        "number",
        ids="user_id session_id",
        enums="kind",
        numbers="number created_at",
        exported=None,
    ),
}

_STAFF = "about members of the staff, who are no users"
_SERVICE = "about the service, and no user"

# Tables without rows of users.
_OF_NOBODY: Mapping[str, Rows] = {
    "alerts": nobody("kind detail", _SERVICE),
    "artifact_contents": nobody(
        "id digest reference", "goes with its last file; another user may share it"
    ),
    "barred_emails": nobody("email_hash", "a keyed hash, for two years; it does not reveal it"),
    "halt_acks": nobody("node_id", _SERVICE),
    "invitations": nobody("code_hash id", _SERVICE),
    "job_clock": nobody("", _SERVICE),
    "looks": nobody("id question", "a question of the staff, for ten minutes"),
    "look_findings": nobody("look_id node_id findings", "its answers, for ten minutes"),
    "nodes": nobody("id exits_host exits_certificate link_host", _SERVICE),
    "receipt_numbers": nobody("id", _SERVICE),
    "credit_note_numbers": nobody("id", _SERVICE),
    "restorations": nobody("id", _SERVICE),
    "schema_backups": nobody("place", _SERVICE),
    "schema_versions": nobody("name", _SERVICE),
    "site_texts": nobody("kind locale body hash", _SERVICE),
    "staff": nobody("id email email_key role password_hash sealed_factor", _STAFF),
    "staff_answers": nobody("staff_id idempotency_key request_hash sealed_answer", _STAFF),
    "staff_attempts": nobody("id account staff_id network via unix_user", _STAFF),
    "staff_keys": nobody("id staff_id name key_hash prefix scopes allow_ips", _STAFF),
    "staff_log_head": nobody("id hash", _STAFF),
    "staff_logins": nobody("id staff_id network", _STAFF),
    "staff_recovery": nobody("staff_id code_hash", _STAFF),
    "staff_rescues": nobody("id staff_id acknowledged_by", _STAFF),
    "status_hours": nobody("component", _SERVICE),
    "status_notices": nobody("id severity title body", _SERVICE),
    "status_now": nobody("id components", _SERVICE),
    "upkeep": nobody("name", _SERVICE),
}

TREATMENT: Mapping[str, Rows] = {**_OF_USERS, **_OF_NOBODY}
