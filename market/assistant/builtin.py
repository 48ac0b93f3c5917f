"""The built-in responder: answers from help texts and the caller's own account, without a model.

Why it is here: the endpoint must answer where no model is configured, or when it fails, and a
demonstration needs none. It is frozen: a topic that it does not know is the model's business, and
neither patterns nor languages are to be added.
"""

import re

from msgspec import Struct

from market.accounts.accounts import Caller
from market.accounts.referrals import Referrals
from market.assistant.languages import Language
from market.assistant.phrases import phrase
from market.bandwidth.sessions import Bandwidth
from market.base.states import JobStatus, SessionStatus
from market.devices.devices import Devices
from market.exits.consents import Exits
from market.jobs.jobs import Jobs
from market.money.money import GB, MICRO, as_decimal

NAME = "builtin"
ROWS_MAX = 1_000  # read to count them: the default bound of one user
TOPICS_MAX = 3  # per answer

# Special topics come first: the words of a topic are removed before the next one is looked for.
_TOPICS = (
    (
        "passwordless",
        (
            r"(?:without|no)\s+(?:an?\s+|any\s+)?password|password-?less|allow[_ -]?ips?\b"
            r"|allow-?list|whitelist|(?:parola|şifre)(?:sız|siz|\s+olmadan)|без\s+парол\w*"
            r"|бел\w{1,8}\s+спис\w*|(?:비밀번호|암호)\s*없|허용\s*목록"
        ),
    ),
    (
        "http",
        (
            r"\bhttps?[ -]?(?:connect|prox\w*|vekil\w*|прокси|프록시)"
            r"|browser|tarayıcı|браузер|브라우저"
        ),
    ),
    ("udp", r"(?<![a-z])(?:udp|quic)(?![a-z])|datagram|датаграм|데이터그램"),
    (
        "balance",
        (
            r"balance|\bcredits?\b|wallet|\bmoney\b|\bearn|bakiye|kredi\b|\bparam?\b"
            r"|баланс|кредит|деньг|денег|заработ|잔액|크레딧|돈"
        ),
    ),
    (
        "sessions",
        r"prox|socks|sessions?\b|bandwidth|traffic|oturum|прокси|сесси|трафик|프록시|세션|트래픽",
    ),
    ("jobs", r"\bjobs?\b|\btasks?\b|\bişler|\bişim|görev|задани|задач|작업"),
    (
        "devices",
        r"device|worker|machine|heartbeat|cihaz|makine|устройств|воркер|장치|기기|워커",
    ),
    ("referral", r"referr|invit|davet|referans|реферал|приглаш|추천|초대"),
    ("deploys", r"deploy|replica|dağıt|kopya|развёр|развер|деплой|배포|복제"),
    (
        "rewards",
        r"reward|good(ness| deed)|photo|ödül|iyilik|fotoğraf|наград|добр|фото|보상|선행|사진",
    ),
    ("training", r"train|eğit|обуч|학습"),
    ("account", r"password|log ?in|e-?mail|account|parola|şifre|hesab|парол|аккаунт|비밀번호|계정"),
)
_PATTERNS = [(topic, re.compile(pattern, re.IGNORECASE)) for topic, pattern in _TOPICS]
_TOPIC_OF_MODE = {"goodness": "rewards", "training": "training"}


class Offer(Struct, frozen=True):
    """The default price per GB, in micro-USD, for the help texts."""

    price_per_gb: int


class Responder:
    """Answers by topic."""

    def __init__(
        self,
        bandwidth: Bandwidth,
        jobs: Jobs,
        devices: Devices,
        exits: Exits,
        referrals: Referrals,
        offer: Offer,
    ) -> None:
        self._bandwidth = bandwidth
        self._jobs = jobs
        self._devices = devices
        self._exits = exits
        self._referrals = referrals
        self._offer = offer
        self._facts = {
            "balance": self._balance,
            "sessions": self._sessions,
            "jobs": self._own_jobs,
            "devices": self._own_devices,
            "referral": self._referral,
        }

    async def answer(
        self, message: str, *, mode: str, language: Language, caller: Caller | None
    ) -> str:
        """Answer a message; with facts of the account only when there is a caller."""
        topics = _topics(message)
        if not topics and mode in _TOPIC_OF_MODE:
            topics = [_TOPIC_OF_MODE[mode]]
        lines = [phrase(language, "program")]
        if not topics:
            lines.append(phrase(language, "help"))
        for topic in topics[:TOPICS_MAX]:
            fact = self._facts.get(topic)
            if fact is not None and caller is not None:
                lines.append(await fact(language, caller))
            lines.append(self._help(language, topic))
        if caller is None and any(topic in self._facts for topic in topics[:TOPICS_MAX]):
            lines.append(phrase(language, "log_in"))
        return "\n".join(lines)

    def _help(self, language: Language, topic: str) -> str:
        rewards = self._referrals.rewards
        return phrase(
            language,
            f"{topic}_help",
            price=as_decimal(self._offer.price_per_gb),
            referrer=rewards.referrer // MICRO,
            referred=rewards.referred // MICRO,
        )

    async def _balance(self, language: Language, caller: Caller) -> str:
        profile = caller.profile
        return phrase(
            language,
            "balance",
            credit=as_decimal(profile.credit_available),
            usd=as_decimal(profile.usd_available),
        )

    async def _sessions(self, language: Language, caller: Caller) -> str:
        sessions = await self._bandwidth.page(
            caller.profile.user_id, status=SessionStatus.ACTIVE, before="", limit=ROWS_MAX
        )
        left = sum(session.quota_bytes - session.bytes_used for session in sessions)
        return phrase(language, "sessions", count=len(sessions), left=f"{left / GB:.3f}")

    async def _own_jobs(self, language: Language, caller: Caller) -> str:
        jobs = await self._jobs.page_of_user(
            caller.profile.user_id, status=None, before="", limit=ROWS_MAX
        )
        counts = {
            status: sum(job.status == status for job in jobs)
            for status in (JobStatus.WAITING, JobStatus.RUNNING)
        }
        return phrase(
            language,
            "jobs",
            waiting=counts[JobStatus.WAITING],
            running=counts[JobStatus.RUNNING],
        )

    async def _own_devices(self, language: Language, caller: Caller) -> str:
        devices = [
            device
            for device in await self._devices.page(
                caller.profile.user_id, before="", limit=ROWS_MAX
            )
            if device.revoked_at is None
        ]
        states = await self._exits.states([device.id for device in devices])
        online = sum(self._exits.is_online(device, states.get(device.id)) for device in devices)
        return phrase(language, "devices", count=len(devices), online=online)

    async def _referral(self, language: Language, caller: Caller) -> str:
        standing = await self._referrals.standing(caller.profile.user_id)
        return phrase(language, "referral", code=standing.code, count=standing.totals.referrals)


def _topics(message: str) -> list[str]:
    topics = []
    for topic, pattern in _PATTERNS:
        message, times = pattern.subn(" ", message)
        if times:
            topics.append(topic)
    return topics
