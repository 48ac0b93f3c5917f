"""Catalogue of the events of users, with the fields of each event.

An event names its subject, and the two or three facts that every receiver needs. A request with the
subject's identifier returns the rest. An event never contains a secret, a message of another user
or a photo. The feed, webhooks and the document of the API all read this table.
"""

from datetime import UTC, datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from market.money.money import MICRO

# As RFC 3339 writes it, in UTC.
Timestamp = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
Currency = Literal["usd", "credit"]


class EventData(Struct, frozen=True):
    """Fields of an event: sizes in bytes, amounts in their currency, times as RFC 3339 in UTC."""


class SessionCreated(EventData, frozen=True):
    """A proxy session was bought; `cost_usd` is held for it."""

    session_id: str
    quota_bytes: int
    cost_usd: float
    expires_at: Timestamp


class SessionLow(EventData, frozen=True):
    """A tenth of a session's bytes is left, or less. The event occurs once per session."""

    session_id: str
    quota_bytes: int
    bytes_left: int


class SessionHalted(EventData, frozen=True):
    """A session is halted, for this `reason`, perhaps until a time; its price and end stay."""

    session_id: str
    reason: str
    ends_at: Timestamp | None


class SessionResumed(EventData, frozen=True):
    """A halted session goes on."""

    session_id: str


class SessionExhausted(EventData, frozen=True):
    """Every byte of a session is used."""

    session_id: str
    bytes_used: int
    cost_usd: float


class SessionEnded(EventData, frozen=True):
    """A session was ended by its buyer or by the service; its unused bytes are not paid."""

    session_id: str
    bytes_used: int
    cost_usd: float


class SessionExpiring(EventData, frozen=True):
    """A session is over within a day. The event occurs once, for sessions of more than two days."""

    session_id: str
    bytes_left: int
    expires_at: Timestamp


class SessionExpired(EventData, frozen=True):
    """The time of a session is over; its unused bytes are not paid."""

    session_id: str
    bytes_used: int
    cost_usd: float


class WalletDeposited(EventData, frozen=True):
    """Money has come into the wallet."""

    amount: float
    currency: Currency
    reference: str


class WalletRefunded(EventData, frozen=True):
    """The operator pays back `amount` of the deposit with the reference `deposit`."""

    amount: float
    currency: Currency
    reference: str
    deposit: str


class WalletCorrected(EventData, frozen=True):
    """The operator has added money to the wallet, or taken some (`amount` below zero).

    `owed` are earnings that were taken back after they had left: later earnings pay them first.
    """

    amount: float
    currency: Currency
    reference: str
    owed: float = 0.0


class PaymentEvent(EventData, frozen=True):
    """Fields that the events of a payment without moved money have."""

    payment_id: str
    amount_usd: float
    provider: str


class PaymentBegun(PaymentEvent, frozen=True):
    """A payment has begun: it is `open` until its provider reports an end."""


class PaymentExpired(PaymentEvent, frozen=True):
    """The page of a payment was not used in time; nothing was paid."""


class PaymentFailed(PaymentEvent, frozen=True):
    """The bank refused a payment, or the operator gave a doubtful one up; nothing was credited."""


class PaymentDoubtful(PaymentEvent, frozen=True):
    """The provider reports other facts than expected; the operator decides about the payment."""


class PaymentPaid(EventData, frozen=True):
    """A payment by a provider has arrived, and its money is in the wallet."""

    payment_id: str
    amount_usd: float
    provider: str


class PaymentRefundBegun(EventData, frozen=True):
    """A refund was requested; its amount has left the wallet until the provider answers."""

    payment_id: str
    amount_usd: float


class PaymentRefunded(EventData, frozen=True):
    """A part of a payment, or all of it, goes back to the payer."""

    payment_id: str
    amount_usd: float


class PaymentRefundFailed(EventData, frozen=True):
    """A refund has failed, and its money is in the wallet again."""

    payment_id: str
    amount_usd: float


class PaymentDisputed(EventData, frozen=True):
    """The bank of the payer disputes a payment; `held_usd` of the wallet waits for the decision."""

    payment_id: str
    amount_usd: float
    held_usd: float


class PaymentDisputeDecided(EventData, frozen=True):
    """A dispute is decided: `won`, and the money stays, or `lost`, and the bank took it back."""

    payment_id: str
    amount_usd: float
    outcome: Literal["won", "lost"]


class CardSaved(EventData, frozen=True):
    """A card was saved for automatic payments; `shown` has its brand and last digits."""

    shown: str


class CardRemoved(EventData, frozen=True):
    """The saved card was removed."""

    shown: str


class TopUpChanged(EventData, frozen=True):
    """The automatic top-up has another state, or other amounts.

    It is `paused` when the bank requires the owner of the card (`authentication`), and when the
    operator has to look at a payment (`doubtful`); `disabled` after too many `refusals`.
    """

    state: Literal["on", "off", "paused", "disabled"]
    reason: Literal["user", "card_removed", "authentication", "doubtful", "refusals"]


class TopUpRefused(EventData, frozen=True):
    """An automatic payment was refused; nothing was paid."""

    payment_id: str
    amount_usd: float


class PayoutEvent(EventData, frozen=True):
    """Fields that all events of a payout have.

    `amount` of the wallet's `currency` is worth `usd`; the service keeps `fee_usd` of it.
    """

    payout_id: str
    amount: float
    currency: Currency
    usd: float
    fee_usd: float


class PayoutRequested(PayoutEvent, frozen=True):
    """A payout was requested, and its amount is held; it is decided before `decide_by`."""

    decide_by: Timestamp


class PayoutCancelled(PayoutEvent, frozen=True):
    """A payout was cancelled by its user; its amount is back."""


class PayoutApproved(PayoutEvent, frozen=True):
    """A payout was approved, and waits to be sent."""


class PayoutRejected(PayoutEvent, frozen=True):
    """A payout was rejected for this `reason`, a code; its amount is back."""

    reason: str


class PayoutSent(PayoutEvent, frozen=True):
    """A payout was sent to its bank or provider."""


class PayoutPaid(PayoutEvent, frozen=True):
    """A payout has arrived."""


class PayoutFailed(PayoutEvent, frozen=True):
    """A payout could not be paid, or came back, for this `reason`; its amount is back."""

    reason: str


class PayoutMethodAdded(EventData, frozen=True):
    """A payout method was added; payouts can go there from `usable_at` on."""

    method_id: str
    kind: str
    shown: str
    usable_at: Timestamp


class PayoutMethodRemoved(EventData, frozen=True):
    """A payout method was removed."""

    method_id: str
    kind: str
    shown: str


class LimitsChanged(EventData, frozen=True):
    """The operator has changed the user's limits or price; without a value, the service's holds.

    `price_percent` is the part of the service's prices per GB. 0 removes a limit.
    """

    sessions: int | None
    jobs: int | None
    devices: int | None
    price_percent: int | None
    until: Timestamp | None


class JobCreated(EventData, frozen=True):
    """A job was posted, and its price is held; jobs of replicas name their deploy."""

    job_id: str
    title: str
    price_credit: float
    deploy_id: str | None = None


class JobAccepted(EventData, frozen=True):
    """A device runs the job now, in this attempt."""

    job_id: str
    title: str
    attempt: int
    deploy_id: str | None = None


class JobRequeued(EventData, frozen=True):
    """An attempt failed or was lost, for this `reason`, and the job waits for another device."""

    job_id: str
    title: str
    attempt: int
    reason: str
    deploy_id: str | None = None


class JobCompleted(EventData, frozen=True):
    """A job is done, in this attempt; a request with its identifier returns the result."""

    job_id: str
    title: str
    attempt: int
    deploy_id: str | None = None


class JobDisputed(EventData, frozen=True):
    """The buyer disputes the pay for a job: its workers get the event, and can answer."""

    job_id: str


class JobDecided(EventData, frozen=True):
    """A dispute was decided, for this `reason`: buyer and workers get it.

    The buyer gets `buyer_percent` of the price back: none, all, or a part.
    """

    job_id: str
    decision: Literal["upheld", "reversed", "split"]
    buyer_percent: int
    reason: str


class JobPaid(EventData, frozen=True):
    """The pay for the work at a job, in this attempt, is available: the device's owner gets it."""

    job_id: str
    attempt: int
    amount_credit: float


class JobFailed(EventData, frozen=True):
    """A job has failed for good, for this `reason`."""

    job_id: str
    title: str
    attempt: int
    reason: str
    deploy_id: str | None = None


class JobCancelled(EventData, frozen=True):
    """A job was cancelled, by its buyer if there is no `reason`."""

    job_id: str
    title: str
    reason: str | None = None
    deploy_id: str | None = None


class DeployReady(EventData, frozen=True):
    """All replicas of a revision of a deploy with a template can be used."""

    deploy_id: str
    revision: int
    replicas: int


class DeployFinished(EventData, frozen=True):
    """A deploy is over: none of its replicas runs or waits."""

    deploy_id: str


class DeployCancelled(EventData, frozen=True):
    """The rest of a deploy was cancelled by its buyer."""

    deploy_id: str


class DeviceOnline(EventData, frozen=True):
    """A worker device reports again, or for the first time."""

    device_id: str
    name: str


class DeviceOffline(EventData, frozen=True):
    """A worker device has left, or has not reported for a while."""

    device_id: str
    name: str


class DeviceRevoked(EventData, frozen=True):
    """The token of a worker device was revoked."""

    device_id: str
    name: str


class ReferralEarned(EventData, frozen=True):
    """A referral was paid, to the referrer or to the referred user."""

    amount_credit: float
    role: Literal["referrer", "referred"]


class GoodnessRewarded(EventData, frozen=True):
    """A photo of a good deed was rewarded."""

    amount_credit: float


class CaseDecided(EventData, frozen=True):
    """The staff has decided about a failed check of a device, or a reward, for this `reason`.

    An `upheld` failure or reward stays. Of a `voided` failure the loss is given back; the amount of
    a `voided` reward is taken back. A `voided` appeal has replaced the decision about a dispute.
    """

    case_id: str
    kind: Literal["canary", "sample", "reward", "appeal"]
    decision: Literal["upheld", "voided"]
    reason: str


class KeyCreated(EventData, frozen=True):
    """An API key was made; a key without `expires_at` never expires."""

    key_id: str
    name: str
    scopes: list[str]
    expires_at: Timestamp | None = None


class KeyRevoked(EventData, frozen=True):
    """An API key was revoked, or replaced by a new one."""

    key_id: str
    name: str


class KeyExpiring(EventData, frozen=True):
    """An API key expires within a week. The event occurs once per key."""

    key_id: str
    name: str
    expires_at: Timestamp


class KeyLimitReached(EventData, frozen=True):
    """A purchase with an API key was refused: its spending limit for this time is reached."""

    key_id: str
    name: str
    limit_usd: float | None = None
    limit_credit: float | None = None


class LoginNewNetwork(EventData, frozen=True):
    """A login came from a network that this account was not used from before."""

    network: str


class PasswordChanged(EventData, frozen=True):
    """The password was changed with the old one, or replaced `by_email`."""

    by_email: bool


class AccountSuspended(EventData, frozen=True):
    """The service has suspended parts of the account, for this `reason`, perhaps until a time."""

    parts: list[str]
    reason: str
    ends_at: Timestamp | None


class AccountResumed(EventData, frozen=True):
    """Parts of the account are not suspended any more."""

    parts: list[str]


class AccountClosed(EventData, frozen=True):
    """The account is closed; a login opens it again, until it is erased after a time."""

    erased_after: Timestamp


class AccountReopened(EventData, frozen=True):
    """A login has opened the account again, which was closed at a time."""

    closed_at: Timestamp


class DeviceCreated(EventData, frozen=True):
    """A worker token was made, by a login or by an API key."""

    device_id: str
    name: str
    key_id: str | None


class WebhookCreated(EventData, frozen=True):
    """An endpoint of webhooks was made, by a login or by an API key."""

    webhook_id: str
    url: str
    key_id: str | None


class WebhookChanged(EventData, frozen=True):
    """An endpoint has another URL, other types of events or another secret, or is enabled again."""

    webhook_id: str
    url: str
    key_id: str | None


class WebhookDisabled(EventData, frozen=True):
    """An endpoint of webhooks was disabled, for this `reason`."""

    webhook_id: str
    url: str
    reason: str


class Ping(EventData, frozen=True):
    """Test of an endpoint of webhooks; nothing else happened."""

    webhook_id: str


CATALOGUE: dict[str, type[EventData]] = {
    "session.created": SessionCreated,
    "session.low": SessionLow,
    "session.halted": SessionHalted,
    "session.resumed": SessionResumed,
    "session.exhausted": SessionExhausted,
    "session.ended": SessionEnded,
    "session.expiring": SessionExpiring,
    "session.expired": SessionExpired,
    "wallet.deposited": WalletDeposited,
    "wallet.refunded": WalletRefunded,
    "wallet.corrected": WalletCorrected,
    "payment.begun": PaymentBegun,
    "payment.expired": PaymentExpired,
    "payment.failed": PaymentFailed,
    "payment.doubtful": PaymentDoubtful,
    "payment.paid": PaymentPaid,
    "payment.refund_begun": PaymentRefundBegun,
    "payment.refunded": PaymentRefunded,
    "payment.refund_failed": PaymentRefundFailed,
    "payment.disputed": PaymentDisputed,
    "payment.dispute_decided": PaymentDisputeDecided,
    "card.saved": CardSaved,
    "card.removed": CardRemoved,
    "top_up.changed": TopUpChanged,
    "top_up.refused": TopUpRefused,
    "payout.requested": PayoutRequested,
    "payout.cancelled": PayoutCancelled,
    "payout.approved": PayoutApproved,
    "payout.rejected": PayoutRejected,
    "payout.sent": PayoutSent,
    "payout.paid": PayoutPaid,
    "payout.failed": PayoutFailed,
    "payout_method.added": PayoutMethodAdded,
    "payout_method.removed": PayoutMethodRemoved,
    "account.limits_changed": LimitsChanged,
    "job.created": JobCreated,
    "job.accepted": JobAccepted,
    "job.requeued": JobRequeued,
    "job.completed": JobCompleted,
    "job.paid": JobPaid,
    "job.failed": JobFailed,
    "job.cancelled": JobCancelled,
    "job.disputed": JobDisputed,
    "job.decided": JobDecided,
    "deploy.ready": DeployReady,
    "deploy.finished": DeployFinished,
    "deploy.cancelled": DeployCancelled,
    "device.created": DeviceCreated,
    "device.online": DeviceOnline,
    "device.offline": DeviceOffline,
    "device.revoked": DeviceRevoked,
    "referral.earned": ReferralEarned,
    "goodness.rewarded": GoodnessRewarded,
    "case.decided": CaseDecided,
    "key.created": KeyCreated,
    "key.revoked": KeyRevoked,
    "key.expiring": KeyExpiring,
    "key.limit_reached": KeyLimitReached,
    "login.new_network": LoginNewNetwork,
    "password.changed": PasswordChanged,
    "account.suspended": AccountSuspended,
    "account.resumed": AccountResumed,
    "account.closed": AccountClosed,
    "account.reopened": AccountReopened,
    "webhook.created": WebhookCreated,
    "webhook.changed": WebhookChanged,
    "webhook.disabled": WebhookDisabled,
    "test.ping": Ping,
}
TYPE_OF = {kind: name for name, kind in CATALOGUE.items()}


def _plain(value: object) -> int:
    """Return a number of the API's own, an amount or a size in its smallest unit, as a number."""
    if isinstance(value, int):
        return int(value)
    raise NotImplementedError(f"an event cannot contain {type(value)}")


# Makes the JSON of an event.
ENCODER = msgspec.json.Encoder(enc_hook=_plain)


def amount(micro_units: int) -> float:
    """Return an amount in its currency, as JSON shows it."""
    return micro_units / MICRO


def timestamp(seconds: int) -> str:
    """Return UTC seconds as events show them."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
