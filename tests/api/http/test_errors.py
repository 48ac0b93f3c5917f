"""From failures to HTTP: statuses, codes, headers and the one shape of the body."""

import re
from typing import Any

import msgspec
from support.base.cases import cases

from api.http import errors
from api.http.errors import STATUS_OF_KIND, Failure, Transport, TransportError
from market.base.errors import Code, Kind, MarketError

STATUS_OF_CODE = {
    Code.INVALID_FIELD: 400,
    Code.UNKNOWN_FIELD: 400,
    Code.EMAIL_TAKEN: 400,
    Code.USERNAME_TAKEN: 400,
    Code.INSUFFICIENT_FUNDS: 400,
    Code.AMOUNT_TOO_LARGE: 400,
    Code.PRICE_BELOW_FLOOR: 400,
    Code.PASSWORDLESS_NOT_OFFERED: 400,
    Code.ADDRESSES_TAKEN: 400,
    Code.ADDRESS_NOT_PENDING: 400,
    Code.EMAIL_NOT_CONFIRMED: 400,
    Code.SESSION_TOO_SMALL: 400,
    Code.TOO_MANY_ROWS: 400,
    Code.TOO_MANY_SESSIONS: 400,
    Code.TOO_MANY_ADDRESSES: 400,
    Code.TOO_MANY_DEVICES: 400,
    Code.TOO_MANY_JOBS: 400,
    Code.TOO_MANY_FREE_JOBS: 400,
    Code.PAYLOAD_INVALID: 400,
    Code.TOO_MUCH_JOB_TEXT: 400,
    Code.REFERENCE_REUSED: 400,
    Code.ACCOUNT_NOT_EMPTY: 400,
    Code.ACCOUNT_CLOSED: 400,
    Code.EMAIL_REFUSED: 400,
    Code.EXPORT_NOT_FOUND: 404,
    Code.INVALID_CREDENTIALS: 401,
    Code.UNAUTHORIZED: 401,
    Code.SESSION_NOT_FOUND: 404,
    Code.USER_NOT_FOUND: 404,
    Code.AMBIGUOUS: 400,
    Code.NOT_PERMITTED: 401,
    Code.STAFF_NOT_FOUND: 404,
    Code.TICKET_NOT_FOUND: 404,
    Code.TICKET_STATE: 400,
    Code.TOO_MANY_TICKETS: 400,
    Code.STAFF_UNCHANGED: 400,
    Code.LAST_OPERATOR: 400,
    Code.SECOND_FACTOR_WRONG: 401,
    Code.FACTOR_EXPIRED: 401,
    Code.INVALID_MAIL_TOKEN: 400,
    Code.WEBHOOK_NOT_FOUND: 404,
    Code.DELIVERY_NOT_FOUND: 404,
    Code.TOO_MANY_WEBHOOKS: 400,
    Code.WEBHOOK_DISABLED: 400,
    Code.AUTHORIZATION_PENDING: 400,
    Code.SLOW_DOWN: 400,
    Code.ACCESS_DENIED: 400,
    Code.EXPIRED_TOKEN: 400,
    Code.USER_CODE_NOT_FOUND: 404,
    Code.FRESH_LOGIN_NEEDED: 400,
    Code.SCOPE_MISSING: 401,
    Code.KEY_ADDRESS: 401,
    Code.KEY_NOT_FOUND: 404,
    Code.LOGIN_NOT_FOUND: 404,
    Code.TOO_MANY_KEYS: 400,
    Code.SPEND_LIMIT_REACHED: 400,
    Code.WRONG_PASSWORD: 400,
    Code.TOO_MANY_ATTEMPTS: 429,
    Code.WORKER_UNAUTHORIZED: 401,
    Code.TOKEN_NOT_FOUND: 404,
    Code.EXITS_NOT_OFFERED: 400,
    Code.TUNNELS_NOT_OFFERED: 400,
    Code.CONSENT_NEEDED: 400,
    Code.TERMS_CHANGED: 400,
    Code.EXIT_PAUSED: 400,
    Code.NO_APP: 400,
    Code.APPS_NOT_OFFERED: 400,
    Code.EXIT_BARRED: 400,
    Code.JOB_NOT_FOUND: 404,
    Code.JOB_NOT_WAITING: 400,
    Code.JOB_OVER: 400,
    Code.JOB_FAILED_HERE: 400,
    Code.COPY_TAKEN_HERE: 400,
    Code.DEVICE_FULL: 400,
    Code.DEVICE_UNSUITABLE: 400,
    Code.REPUTATION_TOO_LOW: 400,
    Code.LOG_INCOMPLETE: 400,
    Code.NOT_REVIEWABLE: 400,
    Code.ATTEMPT_NOT_FOUND: 404,
    Code.ALREADY_DISPUTED: 400,
    Code.ALREADY_APPEALED: 400,
    Code.ATTEMPT_NOT_CURRENT: 400,
    Code.ARTIFACT_NOT_FOUND: 404,
    Code.ARTIFACT_TOO_LARGE: 400,
    Code.ARTIFACT_MISMATCH: 400,
    Code.ARTIFACT_NEEDED: 400,
    Code.ARTIFACT_QUOTA_EXCEEDED: 400,
    Code.REFERRAL_CODE_NOT_FOUND: 404,
    Code.OWN_REFERRAL_CODE: 400,
    Code.REFERRAL_ALREADY_APPLIED: 400,
    Code.REFERRAL_TOO_LATE: 400,
    Code.REFERRAL_CIRCLE: 400,
    Code.DEPLOY_NOT_FOUND: 404,
    Code.DEPLOY_HAS_NO_REVISIONS: 400,
    Code.DEPLOY_OVER: 400,
    Code.REVISION_NOT_FOUND: 404,
    Code.IDEMPOTENCY_KEY_REUSED: 400,
    Code.PHOTO_NOT_JPEG_OR_PNG: 400,
    Code.PHOTO_TOO_LARGE: 400,
    Code.PHOTO_TOO_MANY_PIXELS: 400,
    Code.PHOTO_TRUNCATED: 400,
    Code.PHOTO_BROKEN: 400,
    Code.PHOTO_ANIMATED: 400,
    Code.PHOTO_BIT_DEPTH: 400,
    Code.TOO_BUSY: 429,
    Code.EXITS_NOT_OFFERED: 400,
    Code.TUNNELS_NOT_OFFERED: 400,
    Code.CONSENT_NEEDED: 400,
    Code.TERMS_CHANGED: 400,
    Code.EXIT_PAUSED: 400,
    Code.EXIT_BARRED: 400,
    Code.ACCOUNT_SUSPENDED: 400,
    Code.SESSION_NOT_HALTED: 400,
    Code.NOT_SUSPENDED: 400,
    Code.DEPOSIT_NOT_FOUND: 404,
    Code.REFUND_TOO_LARGE: 400,
    Code.PAYMENTS_NOT_OFFERED: 400,
    Code.PAYMENT_NOT_FOUND: 404,
    Code.CREDIT_NOTE_NOT_FOUND: 404,
    Code.PAYMENT_CEILING: 400,
    Code.TOO_MANY_PAYMENTS: 400,
    Code.PAYMENT_NOT_REFUNDABLE: 400,
    Code.PAYMENT_PROVIDER_AWAY: 429,
    Code.PAYMENT_NOT_DOUBTFUL: 400,
    Code.CASE_NOT_FOUND: 404,
    Code.CASE_DECIDED: 400,
    Code.DEBT_TOO_SMALL: 400,
    Code.TOP_UPS_NOT_OFFERED: 400,
    Code.CARD_MISSING: 400,
    Code.TOO_MANY_CARD_PAGES: 400,
    Code.HOOK_INVALID: 400,
    Code.ACCOUNT_RESTRICTED: 400,
    Code.PAYOUTS_NOT_OFFERED: 400,
    Code.PAYOUT_NOT_FOUND: 404,
    Code.PAYOUT_STATE: 400,
    Code.PAYOUT_NOT_PERMITTED: 400,
    Code.PAYOUT_TOO_SMALL: 400,
    Code.PAYOUT_TOO_LARGE: 400,
    Code.PAYOUT_METHOD_NOT_FOUND: 404,
    Code.PAYOUT_METHOD_IN_USE: 400,
    Code.TOO_MANY_PAYOUT_METHODS: 400,
    Code.PAYOUT_FILE_INVALID: 400,
    Code.PAYOUT_BATCH_NOT_FOUND: 404,
    Code.APPROVAL_NOT_FOUND: 404,
    Code.APPROVAL_OVER: 400,
    Code.REGISTRATION_CLOSED: 400,
    Code.INVITATION_REQUIRED: 400,
    Code.INVITATION_INVALID: 400,
    Code.INVITATION_NOT_FOUND: 404,
    Code.TERMS_NOT_ACCEPTED: 401,
    Code.NOTICE_NOT_FOUND: 404,
    Code.TEXT_NOT_FOUND: 404,
}

STATUS_OF_REASON = {
    Transport.BAD_REQUEST: 400,
    Transport.NO_SUCH_PATH: 404,
    Transport.METHOD_NOT_ALLOWED: 405,
    Transport.REQUEST_TIMEOUT: 408,
    Transport.BODY_TOO_LARGE: 413,
    Transport.UNSUPPORTED_MEDIA_TYPE: 415,
    Transport.RANGE_NOT_SATISFIABLE: 416,
    Transport.FILES_FULL: 503,
    Transport.FILES_UNAVAILABLE: 503,
    Transport.MISDIRECTED: 421,
    Transport.TOO_MANY_REQUESTS: 429,
    Transport.INTERNAL_ERROR: 500,
    Transport.STORE_UNAVAILABLE: 500,
    Transport.OUTCOME_UNKNOWN: 500,
    Transport.UNKNOWN_CODING: 501,
    Transport.NOT_READY: 503,
    Transport.DRAINING: 503,
}


def shown(failure: Failure) -> Any:
    """Return the body of a response as a client reads it."""
    return msgspec.json.decode(msgspec.json.encode(failure.body))


def test_the_body_has_the_shape_that_is_promised() -> None:
    failure = errors.of_market(
        MarketError(Code.INSUFFICIENT_FUNDS, "There is not enough.", field="gb")
    )
    assert shown(failure) == {
        "ok": False,
        "error": {
            "code": "insufficient_funds",
            "message": "There is not enough.",
            "field": "gb",
        },
    }
    assert failure.status == 400


def test_a_field_is_only_there_when_it_is_to_blame() -> None:
    assert shown(errors.of_market(MarketError(Code.TOO_BUSY))) == {
        "ok": False,
        "error": {"code": "too_busy", "message": Code.TOO_BUSY.meaning},
    }
    for reason in Transport:
        assert set(shown(errors.of_transport(reason))["error"]) == {"code", "message"}


@cases("code", Code)
def test_each_code_of_the_market_has_its_status(code: Code) -> None:
    failure = errors.of_market(MarketError(code))
    assert failure.status == STATUS_OF_CODE[code]
    body = shown(failure)
    assert body["ok"] is False
    assert body["error"] == {"code": code.word, "message": code.meaning}


@cases("reason", Transport)
def test_each_refusal_of_the_transport_has_its_status(reason: Transport) -> None:
    failure = errors.of_transport(reason)
    assert failure.status == STATUS_OF_REASON[reason]
    body = shown(failure)
    assert body["ok"] is False
    assert body["error"] == {"code": reason.word, "message": reason.meaning}


def test_every_kind_of_refusal_has_a_status() -> None:
    assert set(STATUS_OF_KIND) == set(Kind)
    assert set(STATUS_OF_KIND.values()) <= {400, 401, 404, 429}


def test_codes_are_words_that_never_mean_two_things() -> None:
    words = [each.word for each in (*Code, *Transport)]
    assert len(set(words)) == len(words)
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", word) for word in words)
    assert len(Code.__members__) == len(list(Code))
    assert len(Transport.__members__) == len(list(Transport))


@cases("each", [*Code, *Transport])
def test_a_meaning_is_one_sentence_for_a_person(each: Code | Transport) -> None:
    assert re.fullmatch(r"[A-Z][^\n]*[a-z]\.", each.meaning)


@cases("code", Code)
def test_headers_say_how_to_log_in_and_when_to_come_back(code: Code) -> None:
    headers = errors.of_market(MarketError(code)).headers
    match STATUS_OF_CODE[code]:
        case 401:
            assert headers == {"WWW-Authenticate": "Bearer"}
        case 429:
            assert set(headers) == {"Retry-After"}
            assert int(headers["Retry-After"]) >= 1
        case _:
            assert headers == {}


@cases("reason", Transport)
def test_a_refusal_that_passes_has_a_time_to_wait(reason: Transport) -> None:
    headers = errors.of_transport(reason).headers
    passes = reason.status in (429, 503) or reason in errors.WORTH_REPEATING
    assert ("Retry-After" in headers) == passes


def test_headers_of_a_refusal_are_sent() -> None:
    error = TransportError(Transport.METHOD_NOT_ALLOWED, {"Allow": "GET"})
    failure = errors.of_transport(error.reason, error.headers)
    assert failure.headers == {"Allow": "GET"}
    assert (failure.status, str(error)) == (405, Transport.METHOD_NOT_ALLOWED.meaning)


def test_headers_that_are_given_are_not_written_to() -> None:
    given = {"X": "y"}
    failure = errors.of_transport(Transport.DRAINING, given)
    assert given == {"X": "y"}
    assert set(failure.headers) == {"X", "Retry-After"}


def test_a_refusal_without_headers_has_none() -> None:
    assert TransportError(Transport.DRAINING).headers == {}


def test_a_message_of_its_own_replaces_the_meaning() -> None:
    error = MarketError(Code.UNAUTHORIZED, "The session token has expired.")
    assert str(error) == error.message == "The session token has expired."
    assert shown(errors.of_market(error))["error"]["message"] == "The session token has expired."
    assert MarketError(Code.UNAUTHORIZED).message == Code.UNAUTHORIZED.meaning
