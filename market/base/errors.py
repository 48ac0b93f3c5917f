"""Every refusal of the marketplace: one stable code each, in one table."""

from enum import Enum, auto


class Kind(Enum):
    """Meaning of a refusal for the caller, in any protocol."""

    INVALID = auto()
    UNAUTHENTICATED = auto()
    NOT_FOUND = auto()
    OVERLOADED = auto()


class Code(Enum):
    """Stable code, its kind, and its meaning; the codes never change, messages may."""

    INVALID_FIELD = "invalid_field", Kind.INVALID, "A field is missing, mistyped or out of range."
    UNKNOWN_FIELD = "unknown_field", Kind.INVALID, "This path has no field of this name."
    EMAIL_TAKEN = "email_taken", Kind.INVALID, "An account with this e-mail address exists."
    USERNAME_TAKEN = "username_taken", Kind.INVALID, "An account with this user name exists."
    INSUFFICIENT_FUNDS = (
        "insufficient_funds",
        Kind.INVALID,
        "The available balance is less than the price.",
    )
    AMOUNT_TOO_LARGE = (
        "amount_too_large",
        Kind.INVALID,
        "The amount is too large: an account holds 1000000000000 USD or credits at most.",
    )
    PRICE_BELOW_FLOOR = (
        "price_below_floor",
        Kind.INVALID,
        "The price per GB is below this service's minimum.",
    )
    PASSWORDLESS_NOT_OFFERED = (
        "passwordless_not_offered",
        Kind.INVALID,
        "This service does not sell sessions without passwords.",
    )
    ADDRESSES_TAKEN = (
        "addresses_taken",
        Kind.INVALID,
        "On every port without passwords, another active session has one of these addresses.",
    )
    ADDRESS_NOT_PENDING = (
        "address_not_pending",
        Kind.INVALID,
        "The session was not bought for the address that this request comes from.",
    )
    TOO_MANY_SESSIONS = (
        "too_many_sessions",
        Kind.INVALID,
        "The caller has reached the limit on active sessions.",
    )
    TOO_MANY_ADDRESSES = (
        "too_many_addresses",
        Kind.INVALID,
        "The caller has reached the limit on client addresses of active sessions.",
    )
    TOO_MANY_DEVICES = (
        "too_many_devices",
        Kind.INVALID,
        "The caller has reached the limit on worker tokens; revoke one.",
    )
    TOO_MANY_JOBS = (
        "too_many_jobs",
        Kind.INVALID,
        "The caller has reached the limit on waiting and running jobs.",
    )
    TOO_MANY_FREE_JOBS = (
        "too_many_free_jobs",
        Kind.INVALID,
        "The caller has reached the limit on open jobs that pay next to nothing.",
    )
    PAYLOAD_INVALID = (
        "payload_invalid",
        Kind.INVALID,
        "The payload or the needs of the job are invalid.",
    )
    TOO_MUCH_JOB_TEXT = (
        "too_much_job_text",
        Kind.INVALID,
        "The caller's jobs, open or posted within a day, have reached the limit on their size.",
    )
    EMAIL_NOT_CONFIRMED = (
        "email_not_confirmed",
        Kind.INVALID,
        "A new account buys traffic once its e-mail address is confirmed.",
    )
    SESSION_TOO_SMALL = (
        "session_too_small",
        Kind.INVALID,
        "The session costs less than the minimum that this service sells.",
    )
    INVALID_CREDENTIALS = (
        "invalid_credentials",
        Kind.UNAUTHENTICATED,
        "The e-mail address or the password is wrong.",
    )
    UNAUTHORIZED = (
        "unauthorized",
        Kind.UNAUTHENTICATED,
        "The session token is missing or invalid; send it as Authorization: Bearer.",
    )
    TOO_MANY_ROWS = (
        "too_many_rows",
        Kind.INVALID,
        "The answer would have more rows than an answer may have; request a shorter time, or days.",
    )
    SESSION_NOT_FOUND = "session_not_found", Kind.NOT_FOUND, "The caller has no such proxy session."
    WORKER_UNAUTHORIZED = (
        "worker_unauthorized",
        Kind.UNAUTHENTICATED,
        "The worker token is missing, invalid or revoked; send it in the header X-Worker-Token.",
    )
    TOKEN_NOT_FOUND = "token_not_found", Kind.NOT_FOUND, "The caller has no such worker token."
    EXITS_NOT_OFFERED = (
        "exits_not_offered",
        Kind.INVALID,
        "This service has no exits: sessions leave from the service itself.",
    )
    TUNNELS_NOT_OFFERED = (
        "tunnels_not_offered",
        Kind.INVALID,
        "This service has no port where devices attach, so ports of jobs cannot be reached.",
    )
    CONSENT_NEEDED = (
        "consent_needed",
        Kind.INVALID,
        "The owner of the device has not agreed that it is an exit, or has withdrawn the consent.",
    )
    TERMS_CHANGED = (
        "terms_changed",
        Kind.INVALID,
        "The terms for exits have changed; read them, and agree again.",
    )
    EXIT_PAUSED = "exit_paused", Kind.INVALID, "The owner of the device has paused it as an exit."
    EXIT_BARRED = (
        "exit_barred",
        Kind.INVALID,
        "The operator has barred the device: it cannot be an exit any more.",
    )
    JOB_NOT_FOUND = "job_not_found", Kind.NOT_FOUND, "There is no such job for the caller."
    JOB_NOT_WAITING = "job_not_waiting", Kind.INVALID, "The job is not waiting for a worker."
    JOB_FAILED_HERE = (
        "job_failed_here",
        Kind.INVALID,
        "A device of the same owner has failed at the job, or lost it twice; others may take it.",
    )
    COPY_TAKEN_HERE = (
        "copy_taken_here",
        Kind.INVALID,
        "The device's owner posted this job, or its owner or network has another copy of it.",
    )
    DEVICE_FULL = (
        "device_full",
        Kind.INVALID,
        "The device has reached its limit of simultaneous jobs; finish one.",
    )
    DEVICE_UNSUITABLE = (
        "device_unsuitable",
        Kind.INVALID,
        "The job needs more than the device has reported.",
    )
    REPUTATION_TOO_LOW = (
        "reputation_too_low",
        Kind.INVALID,
        "The buyer asks for a device with more reputation than this one has.",
    )
    JOB_OVER = "job_over", Kind.INVALID, "The job is over."
    ATTEMPT_NOT_CURRENT = (
        "attempt_not_current",
        Kind.INVALID,
        "The job was taken back from this device, is over, or is in another attempt.",
    )
    LOG_INCOMPLETE = (
        "log_incomplete",
        Kind.INVALID,
        "Less of the log has arrived than the report announces; send the rest first.",
    )
    NOT_REVIEWABLE = (
        "not_reviewable",
        Kind.INVALID,
        "The caller cannot, or can no longer, decide about the payment of this job.",
    )
    ATTEMPT_NOT_FOUND = (
        "attempt_not_found",
        Kind.NOT_FOUND,
        "There was no such attempt at this job.",
    )
    ALREADY_DISPUTED = (
        "already_disputed",
        Kind.INVALID,
        "The payment of this job is disputed with another reason, which stays.",
    )
    ALREADY_APPEALED = (
        "already_appealed",
        Kind.INVALID,
        "The caller has appealed with another reason, which stays.",
    )
    ARTIFACT_NOT_FOUND = (
        "artifact_not_found",
        Kind.NOT_FOUND,
        "There is no such artifact for the caller.",
    )
    ARTIFACT_TOO_LARGE = (
        "artifact_too_large",
        Kind.INVALID,
        "The file has more bytes than a file may have.",
    )
    ARTIFACT_MISMATCH = (
        "artifact_mismatch",
        Kind.INVALID,
        "The sent bytes differ from the announcement.",
    )
    ARTIFACT_NEEDED = (
        "artifact_needed",
        Kind.INVALID,
        "An open job or a dispute needs this artifact; delete it later.",
    )
    ARTIFACT_QUOTA_EXCEEDED = (
        "artifact_quota_exceeded",
        Kind.INVALID,
        "There is no room for this artifact.",
    )
    REFERRAL_CODE_NOT_FOUND = (
        "referral_code_not_found",
        Kind.NOT_FOUND,
        "No user has this referral code.",
    )
    OWN_REFERRAL_CODE = "own_referral_code", Kind.INVALID, "This is the caller's own referral code."
    REFERRAL_ALREADY_APPLIED = (
        "referral_already_applied",
        Kind.INVALID,
        "The caller has applied a referral code before.",
    )
    REFERRAL_TOO_LATE = (
        "referral_too_late",
        Kind.INVALID,
        "A referral code is applied within 30 days of registering.",
    )
    REFERRAL_CIRCLE = (
        "referral_circle",
        Kind.INVALID,
        "The owner of this code was referred by the caller, directly or through others.",
    )
    DEPLOY_NOT_FOUND = "deploy_not_found", Kind.NOT_FOUND, "The caller has no such deploy."
    DEPLOY_HAS_NO_REVISIONS = (
        "deploy_has_no_revisions",
        Kind.INVALID,
        "This deploy has no image, command or script, so it has no revisions.",
    )
    NO_APP = (
        "no_app",
        Kind.INVALID,
        "There is no port of the protocol http, so there is nothing to open in a browser.",
    )
    APPS_NOT_OFFERED = (
        "apps_not_offered",
        Kind.INVALID,
        "This service offers no apps, so ports of jobs cannot be opened in a browser.",
    )
    DEPLOY_OVER = "deploy_over", Kind.INVALID, "The deploy is over."
    REVISION_NOT_FOUND = (
        "revision_not_found",
        Kind.NOT_FOUND,
        "The deploy has no such earlier revision; only the last few are kept.",
    )
    WEBHOOK_NOT_FOUND = (
        "webhook_not_found",
        Kind.NOT_FOUND,
        "The caller has no such endpoint of webhooks.",
    )
    DELIVERY_NOT_FOUND = (
        "delivery_not_found",
        Kind.NOT_FOUND,
        "The caller has no such delivery, or it is too old to be kept.",
    )
    TOO_MANY_WEBHOOKS = (
        "too_many_webhooks",
        Kind.INVALID,
        "The caller has reached the limit of webhook endpoints; delete one.",
    )
    WEBHOOK_DISABLED = (
        "webhook_disabled",
        Kind.INVALID,
        "The endpoint is disabled and receives nothing; enable it first.",
    )
    SCOPE_MISSING = (
        "scope_missing",
        Kind.UNAUTHENTICATED,
        "The API key lacks the scope for this; use a key with the scope, or log in.",
    )
    KEY_ADDRESS = (
        "key_address",
        Kind.UNAUTHENTICATED,
        "The API key may not be used from this address; its owner can change the addresses.",
    )
    KEY_NOT_FOUND = (
        "key_not_found",
        Kind.NOT_FOUND,
        "The caller has no such API key, or it has ended.",
    )
    TOO_MANY_KEYS = (
        "too_many_keys",
        Kind.INVALID,
        "The caller has reached the limit of valid API keys; revoke one.",
    )
    SPEND_LIMIT_REACHED = (
        "spend_limit_reached",
        Kind.INVALID,
        "This would exceed the spending limit of the API key; its owner can raise the limit.",
    )
    LOGIN_NOT_FOUND = (
        "login_not_found",
        Kind.NOT_FOUND,
        "The caller has no such login, or it has ended.",
    )
    ACCOUNT_SUSPENDED = (
        "account_suspended",
        Kind.INVALID,
        "The service has suspended this part of the account.",
    )
    ACCOUNT_NOT_EMPTY = (
        "account_not_empty",
        Kind.INVALID,
        "The account has money or open work, so it cannot be closed or erased.",
    )
    ACCOUNT_CLOSED = "account_closed", Kind.INVALID, "The account is closed or erased."
    EMAIL_REFUSED = (
        "email_refused",
        Kind.INVALID,
        "No account can be opened with this e-mail address.",
    )
    EXPORT_NOT_FOUND = (
        "export_not_found",
        Kind.NOT_FOUND,
        "The caller has no such export, its time is over, or it was downloaded too often.",
    )
    SESSION_NOT_HALTED = "session_not_halted", Kind.INVALID, "The session is not halted."
    NOT_SUSPENDED = "not_suspended", Kind.INVALID, "No such part of the user is suspended."
    USER_NOT_FOUND = "user_not_found", Kind.NOT_FOUND, "There is no such user."
    AMBIGUOUS = (
        "ambiguous",
        Kind.INVALID,
        "Several things have this name; use an identifier.",
    )
    NOT_PERMITTED = (
        "not_permitted",
        Kind.UNAUTHENTICATED,
        "The role of this member of the staff does not permit it.",
    )
    STAFF_NOT_FOUND = "staff_not_found", Kind.NOT_FOUND, "There is no such member of the staff."
    TICKET_NOT_FOUND = "ticket_not_found", Kind.NOT_FOUND, "There is no such ticket."
    TICKET_STATE = (
        "ticket_state",
        Kind.INVALID,
        "The state of the ticket does not permit this.",
    )
    TOO_MANY_TICKETS = (
        "too_many_tickets",
        Kind.INVALID,
        "Too many tickets are open; close some first.",
    )
    STAFF_UNCHANGED = (
        "staff_unchanged",
        Kind.INVALID,
        "The member of the staff is in this state already.",
    )
    LAST_OPERATOR = (
        "last_operator",
        Kind.INVALID,
        "This is the last operator that is not locked; first make another operator.",
    )
    SECOND_FACTOR_WRONG = (
        "second_factor_wrong",
        Kind.UNAUTHENTICATED,
        "The code of the second factor is wrong, or was used before.",
    )
    FACTOR_EXPIRED = (
        "factor_expired",
        Kind.UNAUTHENTICATED,
        "This needs a code of the second factor within the last five minutes; prove it again.",
    )
    REFERENCE_REUSED = (
        "reference_reused",
        Kind.INVALID,
        "This reference was used before, for another transfer.",
    )
    DEPOSIT_NOT_FOUND = "deposit_not_found", Kind.NOT_FOUND, "The user has no such deposit."
    REFUND_TOO_LARGE = (
        "refund_too_large",
        Kind.INVALID,
        "The amount is more than the unspent rest of the deposit.",
    )
    PAYMENTS_NOT_OFFERED = (
        "payments_not_offered",
        Kind.INVALID,
        "This service takes no payments, or none by this provider.",
    )
    PAYMENT_NOT_FOUND = "payment_not_found", Kind.NOT_FOUND, "The caller has no such payment."
    CREDIT_NOTE_NOT_FOUND = (
        "credit_note_not_found",
        Kind.NOT_FOUND,
        "The payment has no such credit note.",
    )
    PAYMENT_CEILING = (
        "payment_ceiling",
        Kind.INVALID,
        "This is more than a new account may pay in a day.",
    )
    TOO_MANY_PAYMENTS = (
        "too_many_payments",
        Kind.INVALID,
        "The caller has begun too many payments in a day; wait a while before the next.",
    )
    PAYMENT_NOT_REFUNDABLE = (
        "payment_not_refundable",
        Kind.INVALID,
        "This payment cannot be refunded.",
    )
    PAYMENT_PROVIDER_AWAY = (
        "payment_provider_away",
        Kind.OVERLOADED,
        "The payment provider does not answer; nothing was paid. Try again later.",
    )
    PAYMENT_NOT_DOUBTFUL = (
        "payment_not_doubtful",
        Kind.INVALID,
        "The payment is not doubtful, or was decided before.",
    )
    CASE_NOT_FOUND = "case_not_found", Kind.NOT_FOUND, "There is no such case."
    CASE_DECIDED = "case_decided", Kind.INVALID, "The case was decided before; a decision is final."
    DEBT_TOO_SMALL = "debt_too_small", Kind.INVALID, "The user owes less than this amount."
    TOP_UPS_NOT_OFFERED = (
        "top_ups_not_offered",
        Kind.INVALID,
        "This service takes no automatic payments.",
    )
    CARD_MISSING = "card_missing", Kind.INVALID, "Save a card first."
    TOO_MANY_CARD_PAGES = (
        "too_many_card_pages",
        Kind.INVALID,
        "The caller has begun to save a card too often in a day; wait a while.",
    )
    HOOK_INVALID = (
        "hook_invalid",
        Kind.INVALID,
        "The notice is not one that this provider has signed now.",
    )
    ACCOUNT_RESTRICTED = (
        "account_restricted",
        Kind.INVALID,
        "A payment of this account is disputed or was taken back.",
    )
    PAYOUTS_NOT_OFFERED = (
        "payouts_not_offered",
        Kind.INVALID,
        "This service pays no earnings out.",
    )
    PAYOUT_NOT_FOUND = "payout_not_found", Kind.NOT_FOUND, "There is no such payout for the caller."
    PAYOUT_STATE = (
        "payout_state",
        Kind.INVALID,
        "The state of the payout does not permit this.",
    )
    PAYOUT_NOT_PERMITTED = (
        "payout_not_permitted",
        Kind.INVALID,
        "A rule for payouts is not met; the terms of payouts list each rule.",
    )
    PAYOUT_TOO_SMALL = (
        "payout_too_small",
        Kind.INVALID,
        "The amount is less than the smallest payout, or not more than its fee.",
    )
    PAYOUT_TOO_LARGE = (
        "payout_too_large",
        Kind.INVALID,
        "The amount is more than the available earnings; other money cannot be paid out.",
    )
    PAYOUT_METHOD_NOT_FOUND = (
        "payout_method_not_found",
        Kind.NOT_FOUND,
        "The caller has no such payout method.",
    )
    PAYOUT_METHOD_IN_USE = (
        "payout_method_in_use",
        Kind.INVALID,
        "An open payout goes to this payout method; remove the method later.",
    )
    TOO_MANY_PAYOUT_METHODS = (
        "too_many_payout_methods",
        Kind.INVALID,
        "The caller has reached the limit of payout methods; remove one.",
    )
    PAYOUT_FILE_INVALID = (
        "payout_file_invalid",
        Kind.INVALID,
        "The file is not a list of outcomes of payouts.",
    )
    PAYOUT_BATCH_NOT_FOUND = (
        "payout_batch_not_found",
        Kind.NOT_FOUND,
        "There is no such batch of payouts, or it has no file.",
    )
    APPROVAL_NOT_FOUND = (
        "approval_not_found",
        Kind.NOT_FOUND,
        "No act with this identifier waits for a second person.",
    )
    APPROVAL_OVER = (
        "approval_over",
        Kind.INVALID,
        "The request was decided before, or its time is over.",
    )
    INVALID_MAIL_TOKEN = (
        "invalid_mail_token",
        Kind.INVALID,
        "The link is not valid, was used before, or is too old.",
    )
    AUTHORIZATION_PENDING = (
        "authorization_pending",
        Kind.INVALID,
        "The user has not answered yet; ask again after the interval.",
    )
    SLOW_DOWN = (
        "slow_down",
        Kind.INVALID,
        "This request came too soon; wait 5 s longer between requests from now on.",
    )
    ACCESS_DENIED = "access_denied", Kind.INVALID, "The user has refused the request."
    EXPIRED_TOKEN = (
        "expired_token",
        Kind.INVALID,
        "The code has expired, was used, or was not issued by this service; begin again.",
    )
    USER_CODE_NOT_FOUND = (
        "user_code_not_found",
        Kind.NOT_FOUND,
        "No program waits with this code: it has expired, was answered, or is mistyped.",
    )
    FRESH_LOGIN_NEEDED = (
        "fresh_login_needed",
        Kind.INVALID,
        "Log in again first: this needs a login of the last ten minutes.",
    )
    REGISTRATION_CLOSED = (
        "registration_closed",
        Kind.INVALID,
        "This service opens no new accounts.",
    )
    INVITATION_REQUIRED = (
        "invitation_required",
        Kind.INVALID,
        "This service opens accounts by invitation only; send the code of one.",
    )
    INVITATION_INVALID = (
        "invitation_invalid",
        Kind.INVALID,
        "The code of the invitation is wrong, used up, or too old.",
    )
    INVITATION_NOT_FOUND = (
        "invitation_not_found",
        Kind.NOT_FOUND,
        "There is no such invitation.",
    )
    TERMS_NOT_ACCEPTED = (
        "terms_not_accepted",
        Kind.UNAUTHENTICATED,
        "Read the terms of use and the privacy policy that are valid now, and accept them.",
    )
    NOTICE_NOT_FOUND = (
        "notice_not_found",
        Kind.NOT_FOUND,
        "There is no such notice, or it has ended.",
    )
    TEXT_NOT_FOUND = "text_not_found", Kind.NOT_FOUND, "There is no such text, or no such version."
    WRONG_PASSWORD = "wrong_password", Kind.INVALID, "The password is wrong."
    IDEMPOTENCY_KEY_REUSED = (
        "idempotency_key_reused",
        Kind.INVALID,
        "This Idempotency-Key was used before, for another request.",
    )
    PHOTO_NOT_JPEG_OR_PNG = (
        "photo_not_jpeg_or_png",
        Kind.INVALID,
        "The file is not a JPEG or PNG photo; its name does not count.",
    )
    PHOTO_TOO_LARGE = "photo_too_large", Kind.INVALID, "The photo's file has too many bytes."
    PHOTO_TOO_MANY_PIXELS = (
        "photo_too_many_pixels",
        Kind.INVALID,
        "The photo has too many pixels; send it smaller.",
    )
    PHOTO_TRUNCATED = (
        "photo_truncated",
        Kind.INVALID,
        "The photo is cut off; its end did not arrive.",
    )
    PHOTO_BROKEN = "photo_broken", Kind.INVALID, "The photo is damaged and cannot be decoded."
    PHOTO_ANIMATED = "photo_animated", Kind.INVALID, "An animated PNG is no photo; send a still."
    PHOTO_BIT_DEPTH = (
        "photo_bit_depth",
        Kind.INVALID,
        "The photo has more than eight bits a channel; send it with eight.",
    )
    TOO_MANY_ATTEMPTS = (
        "too_many_attempts",
        Kind.OVERLOADED,
        "Too many attempts; wait a while before the next.",
    )
    TOO_BUSY = "too_busy", Kind.OVERLOADED, "Too many requests of this kind are waiting."

    def __init__(self, word: str, kind: Kind, meaning: str) -> None:
        self.word = word
        self.kind = kind
        self.meaning = meaning


class MarketError(Exception):
    """A refusal: the call cannot be carried out, and nothing was changed.

    Args:
        message: one sentence for the caller; the code's own meaning by default.
        field: the field of the request that is wrong, if it is one.
        retry_after_seconds: how long to wait before another attempt, where one makes sense.
    """

    def __init__(
        self,
        code: Code,
        message: str | None = None,
        *,
        field: str | None = None,
        retry_after_seconds: int = 1,
    ) -> None:
        super().__init__(message or code.meaning)
        self.code = code
        self.message = message or code.meaning
        self.field = field
        self.retry_after_seconds = retry_after_seconds
