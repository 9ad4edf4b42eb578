"""What becomes of a message after an attempt to push it, and what the attempt says about the
endpoint. Redirects are never followed, so they count as failures."""

from collections.abc import Callable
from enum import Enum, StrEnum
from typing import Final

import msgspec


class Kind(Enum):
    SNS = 0  # a subscription of an SNS topic
    WEBHOOK = 1


class Failure(StrEnum):
    """Why an attempt got no HTTP status."""

    NOT_RESOLVED = "the name of the host was not resolved"  # of a gateway or mail server
    # The name of a tenant's endpoint was not resolved, or its address is not allowed. One text for
    # both: a tenant must not learn which names exist inside the network.
    UNUSABLE = "The endpoint cannot be used."
    NOT_CONNECTED = "the connection was refused"
    TLS = "the TLS handshake failed"
    TIMEOUT = "no reply in time"
    CONNECTION_LOST = "the connection was lost before the reply"
    BAD_REPLY = "the reply is not valid HTTP"
    ITEM_FAILED = "the reply names this message of the batch as failed"
    BREAKER_OPEN = "the circuit breaker was open"  # the attempt counts although it was not made
    QUEUE_NOT_FOUND = "the queue does not exist"
    QUEUE_DENIED = "the queue's policy denies the message"
    QUEUE_MESSAGE_TOO_LARGE = "the message is larger than the queue allows"
    QUEUE_FAILED = "the queue did not accept the message"
    NO_COURIER = "no gateway, mail server or outbox is configured for the protocol"
    ENDPOINT_DISABLED = "the platform endpoint is disabled or deleted"
    ADDRESS_INVALID = "the mail address is not valid"
    MAIL_REJECTED = "the mail server rejected the message"
    MAIL_FAILED = "the mail server did not accept the message"
    OUTBOX_FAILED = "the outbox did not accept the message"


class Health(Enum):
    """What a finished request says about its endpoint."""

    GOOD = 0
    FAILING = 1  # it replies, but messages have to be sent again
    OVERLOADED = 2  # it refused, failed or did not reply: send fewer requests at once
    UNREACHABLE = 3  # no connection: overloaded, and the destination may be down for everyone
    UNKNOWN = 4  # there was no request, or it was cancelled


class Action(Enum):
    DELIVERED = 0
    RETRY = 1
    PERMANENT = 2  # no retry: to the dead-letter queue, if there is one
    PAUSE = 3  # permanent, and the subscription pauses


class Verdict(msgspec.Struct, frozen=True):
    action: Action
    health: Health
    delay_ms: int = 0  # before the retry
    is_exhausted: bool = False  # permanent because the policy allows no further attempt


# Returns the delay before the next attempt, or None if there is none, from the number of the failed
# attempt (from 1) and the age of the message in milliseconds.
Schedule = Callable[[int, int], int | None]
_Rule = tuple[Action, Action, Health]  # for SNS, for webhooks, for both

_DELIVERED: Final[_Rule] = (Action.DELIVERED, Action.DELIVERED, Health.GOOD)
_PERMANENT: Final[_Rule] = (Action.PERMANENT, Action.PERMANENT, Health.GOOD)
_GONE: Final[_Rule] = (Action.PERMANENT, Action.PAUSE, Health.GOOD)
_RETRY: Final[_Rule] = (Action.RETRY, Action.RETRY, Health.FAILING)
_LESS: Final[_Rule] = (Action.RETRY, Action.RETRY, Health.OVERLOADED)
_UNREACHABLE: Final[_Rule] = (Action.RETRY, Action.RETRY, Health.UNREACHABLE)
# Credentials and routes are repaired, so webhooks try again. SNS does not.
_OTHER_4XX: Final[_Rule] = (Action.PERMANENT, Action.RETRY, Health.FAILING)

_RULES: Final[dict[int | Failure, _Rule]] = {
    400: _PERMANENT,
    405: _PERMANENT,
    408: _RETRY,
    410: _GONE,
    413: _PERMANENT,
    414: _PERMANENT,
    415: _PERMANENT,
    422: _PERMANENT,
    425: _RETRY,
    429: _LESS,
    431: _PERMANENT,
    Failure.NOT_RESOLVED: _UNREACHABLE,
    Failure.UNUSABLE: _UNREACHABLE,  # the name may have another address later
    Failure.NOT_CONNECTED: _UNREACHABLE,
    # A subscription may have its own certificate authority or client certificate, so a failed
    # handshake says nothing about other subscriptions of the destination.
    Failure.TLS: _LESS,
    Failure.TIMEOUT: _LESS,
    Failure.CONNECTION_LOST: _LESS,
    Failure.BAD_REPLY: _RETRY,
    Failure.ITEM_FAILED: (Action.RETRY, Action.RETRY, Health.GOOD),
    Failure.BREAKER_OPEN: (Action.RETRY, Action.RETRY, Health.UNKNOWN),
    Failure.QUEUE_NOT_FOUND: _PERMANENT,
    Failure.QUEUE_DENIED: _PERMANENT,
    Failure.QUEUE_MESSAGE_TOO_LARGE: _PERMANENT,
    Failure.QUEUE_FAILED: _LESS,
    Failure.NO_COURIER: _RETRY,  # settings are repaired
    Failure.ENDPOINT_DISABLED: _PERMANENT,
    Failure.ADDRESS_INVALID: _PERMANENT,
    Failure.MAIL_REJECTED: _PERMANENT,
    Failure.MAIL_FAILED: _LESS,
    Failure.OUTBOX_FAILED: _LESS,
}
_CLASSES: Final = {2: _DELIVERED, 4: _OTHER_4XX, 5: _LESS}  # by the first digit of the status
_HAVE_RETRY_AFTER: Final = frozenset((429, 503))


def judge(
    kind: Kind,
    reply: int | Failure,
    *,
    attempt: int,
    age_ms: int,
    schedule: Schedule,
    retry_after_ms: int | None = None,
) -> Verdict:
    """Return what becomes of a message. ``reply`` is the HTTP status of the attempt, or the reason
    why there is none; ``retry_after_ms`` comes from the reply's Retry-After header."""
    rule = _RULES.get(reply)
    if rule is None:
        assert isinstance(reply, int), "every Failure has a rule"
        rule = _CLASSES.get(reply // 100, _RETRY)
    for_sns, for_webhook, health = rule
    action = for_sns if kind is Kind.SNS else for_webhook
    if action is not Action.RETRY:
        # A final reply shows that the endpoint works, whatever it thinks of this message.
        return Verdict(action, Health.GOOD)
    delay_ms = schedule(attempt, age_ms)
    if delay_ms is None:
        return Verdict(Action.PERMANENT, health, is_exhausted=True)
    if retry_after_ms is not None and reply in _HAVE_RETRY_AFTER:
        delay_ms = max(delay_ms, retry_after_ms)
    return Verdict(action, health, delay_ms)
