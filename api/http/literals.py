"""Fields with a fixed set of values: their types, and the one place where stored text becomes one.

The store and the market's enumerations hold these as text. A reply indexes the table of its type
with it, so that a value which the document of the API does not list fails here, as an internal
error, and never reaches a client. `tests/api/http/test_literals.py` compares the tables with the
market.
"""

from collections.abc import Mapping
from typing import Literal, get_args

Currency = Literal["usd", "credit"]
SessionStatus = Literal["active", "ended", "exhausted", "expired"]
JobStatus = Literal["waiting", "running", "completed", "failed", "cancelled"]
JobType = Literal["docker", "training", "inference", "script"]
AttemptOutcome = Literal["completed", "failed", "lost", "cancelled"]
FailureKind = Literal["job", "host", "image", "input", "timeout", "oom", "refused"]
ReviewStatus = Literal["held", "confirmed", "expired", "disputed", "upheld", "reversed"]
CopiesStatus = Literal["open", "agreed", "undecided"]
DeployStatus = Literal["queued", "running", "completed", "failed", "cancelled"]
DeployType = Literal["Docker", "Jupyter", "Inference", "Training", "Script"]
RolloutState = Literal["progressing", "available", "stuck", "paused", "over"]
RevisionState = Literal["progressing", "available", "stuck"]
Network = Literal["none", "egress"]
DeviceType = Literal["desktop", "mini_pc", "server", "phone"]
KeyScope = Literal[
    "account:read",
    "sessions:read",
    "sessions:write",
    "usage:read",
    "jobs:read",
    "jobs:write",
    "devices:read",
    "devices:write",
    "wallet:read",
    "webhooks:write",
    "events:read",
    "assistant:use",
]
KeyStatus = Literal["active", "expired", "revoked"]
KeyPeriod = Literal["day", "month", "lifetime"]
KeySource = Literal["login", "device"]
TransactionKind = Literal[
    "deposit",
    "hold",
    "release",
    "earning",
    "referral",
    "reward",
    "refund",
    "deposit_refund",
    "correction",
    "debt",
    "other",
]

# The lines of earnings are transactions, holds and payouts.
EarningLineKind = Literal[TransactionKind, "payout"]
EarningTerm = Literal["earned", "available", "held", "in_payout", "paid", "fees", "spent"]
PayoutState = Literal["requested", "cancelled", "approved", "rejected", "sent", "paid", "failed"]
PayoutMethodKind = Literal["bank", "paypal", "manual", "stripe"]
PayoutRule = Literal[
    "email_confirmed",
    "method_ready",
    "minimum_earned",
    "first_earning_age",
    "below_daily_limit",
    "no_payment_case",
    "not_suspended",
    "identity_checked",
]
ExitState = Literal["online", "resting", "offline", "paused", "terms_changed", "revoked", "barred"]

WorkState = Literal[
    "revoked", "never_seen", "offline", "working", "not_asking", "wants_none", "waiting"
]
Hindrance = Literal[
    "job_type",
    "network",
    "executor",
    "ports",
    "archives",
    "slots",
    "cores",
    "memory",
    "disk",
    "architecture",
    "gpu",
    "reputation",
    "owner",
    "price",
]

CURRENCIES: Mapping[str, Currency] = {each: each for each in get_args(Currency)}
SESSION_STATUSES: Mapping[str, SessionStatus] = {each: each for each in get_args(SessionStatus)}
JOB_STATUSES: Mapping[str, JobStatus] = {each: each for each in get_args(JobStatus)}
JOB_TYPES: Mapping[str, JobType] = {each: each for each in get_args(JobType)}
ATTEMPT_OUTCOMES: Mapping[str, AttemptOutcome] = {each: each for each in get_args(AttemptOutcome)}
FAILURE_KINDS: Mapping[str, FailureKind] = {each: each for each in get_args(FailureKind)}
REVIEW_STATUSES: Mapping[str, ReviewStatus] = {each: each for each in get_args(ReviewStatus)}
COPIES_STATUSES: Mapping[str, CopiesStatus] = {each: each for each in get_args(CopiesStatus)}
DEPLOY_STATUSES: Mapping[str, DeployStatus] = {each: each for each in get_args(DeployStatus)}
DEPLOY_TYPES: Mapping[str, DeployType] = {each: each for each in get_args(DeployType)}
ROLLOUT_STATES: Mapping[str, RolloutState] = {each: each for each in get_args(RolloutState)}
REVISION_STATES: Mapping[str, RevisionState] = {each: each for each in get_args(RevisionState)}
NETWORKS: Mapping[str, Network] = {each: each for each in get_args(Network)}
DEVICE_TYPES: Mapping[str, DeviceType] = {each: each for each in get_args(DeviceType)}
PAYOUT_STATES: Mapping[str, PayoutState] = {each: each for each in get_args(PayoutState)}
PAYOUT_METHODS: Mapping[str, PayoutMethodKind] = {each: each for each in get_args(PayoutMethodKind)}
PAYOUT_RULES: Mapping[str, PayoutRule] = {each: each for each in get_args(PayoutRule)}
EXIT_STATES: Mapping[str, ExitState] = {each: each for each in get_args(ExitState)}
WORK_STATES: Mapping[str, WorkState] = {each: each for each in get_args(WorkState)}
HINDRANCES: Mapping[str, Hindrance] = {each: each for each in get_args(Hindrance)}
KEY_SCOPES: Mapping[str, KeyScope] = {each: each for each in get_args(KeyScope)}
KEY_STATUSES: Mapping[str, KeyStatus] = {each: each for each in get_args(KeyStatus)}
KEY_PERIODS: Mapping[str, KeyPeriod] = {each: each for each in get_args(KeyPeriod)}
KEY_SOURCES: Mapping[str, KeySource] = {each: each for each in get_args(KeySource)}
EARNING_TERMS: Mapping[str, EarningTerm] = {each: each for each in get_args(EarningTerm)}
EARNING_LINE_KINDS: Mapping[str, EarningLineKind] = {
    each: each for each in get_args(EarningLineKind)
}
TRANSACTION_KINDS: Mapping[str, TransactionKind] = {
    each: each for each in get_args(TransactionKind)
}
