"""Delivery policies of topics and subscriptions: how often and how fast an HTTP endpoint is called.

A topic's policy is ``{"http": {"defaultHealthyRetryPolicy": {…}, …}}``, a subscription's is
``{"healthyRetryPolicy": {…}, …}``. A member that a subscription does not set comes from its topic,
else from the defaults. Error texts and the order of members in replies are those of SNS.

The retries of a message have four phases: without delay, with the minimum delay, with delays that
grow from the minimum to the maximum (backoff), and with the maximum delay. Backoff takes all
retries that the other phases leave."""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from penstock.model.limits import KIB, SECOND_MS
from penstock.wire.aws.sns.faults import cut, fault

CONTENT_TYPE: Final = "text/plain; charset=UTF-8"
JITTER: Final = 0.2  # of the delay, in both directions

_TEXT_BYTES_MAX = 16 * KIB  # a policy with all members has 600 bytes
_RETRIES_MAX = 100
_DELAY_S_MAX = 3_600
_TOTAL_S_MAX = 3_600
_CONTENT_TYPE_CHARS_MAX = 256
# A media type, and parameters in printable ASCII: the text becomes a header.
_MEDIA_TYPE = re.compile(r"[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+(?: *;[ -~]*)?\Z")

Members = dict[str, Any]


class RetryPolicy(msgspec.Struct, frozen=True, rename="camel"):
    """A retry policy with all members. Delays are in seconds, as in the policy."""

    min_delay_target: int = 20
    max_delay_target: int = 20
    num_retries: int = 3
    num_max_delay_retries: int = 0
    num_no_delay_retries: int = 0
    num_min_delay_retries: int = 0
    backoff_function: str = "linear"

    @property
    def backoff_retries(self) -> int:
        others = self.num_no_delay_retries + self.num_min_delay_retries
        return self.num_retries - others - self.num_max_delay_retries


DEFAULT_RETRIES: Final = RetryPolicy()
# Copies to queues: 23 days.
QUEUE_RETRIES: Final = RetryPolicy(
    min_delay_target=1,
    max_delay_target=20,
    num_retries=100_015,
    num_max_delay_retries=100_000,
    num_no_delay_retries=3,
    num_min_delay_retries=2,
    backoff_function="exponential",
)


class DeliveryPolicy(msgspec.Struct, frozen=True, rename="camel"):
    """The policy of a subscription, or the defaults in the policy of a topic. A member that is None
    is not set."""

    healthy_retry_policy: Members | None = None
    sickly_retry_policy: Members | None = None  # shown, but not used, as in SNS
    throttle_policy: Members | None = None
    request_policy: Members | None = None
    guaranteed: bool = False  # shown, but not used, as in SNS

    @property
    def retries(self) -> RetryPolicy:
        return _complete(self.healthy_retry_policy or {})

    @property
    def throttle_per_s(self) -> int | None:
        return (self.throttle_policy or {}).get("maxReceivesPerSecond")

    @property
    def content_type(self) -> str:
        return (self.request_policy or {}).get("headerContentType") or CONTENT_TYPE


class TopicPolicy(msgspec.Struct, frozen=True):
    defaults: DeliveryPolicy = DeliveryPolicy()
    is_final: bool = False  # the policies of subscriptions have no effect


# ── Delays ───────────────────────────────────────────────────────────────────────────────────


def _linear(low: float, high: float, step: int, last: int) -> float:
    return low + (high - low) * step / last


def _arithmetic(low: float, high: float, step: int, last: int) -> float:
    return low + (high - low) * step * (step + 1) / (last * (last + 1))


def _geometric(low: float, high: float, step: int, last: int) -> float:
    return low * math.pow(high / low, step / last)


def _exponential(low: float, high: float, step: int, last: int) -> float:
    return low + (high - low) * ((1 << step) - 1) / ((1 << last) - 1)


# Arguments: the first delay, the last delay, the number of the step from 0, the last step.
_BACKOFF: Mapping[str, Callable[[float, float, int, int], float]] = {
    "linear": _linear,
    "arithmetic": _arithmetic,
    "geometric": _geometric,
    "exponential": _exponential,
}


def delay_s(policy: RetryPolicy, retry: int) -> float | None:
    """Return the delay before a retry, the first of which is 1. None: there is no such retry."""
    if not 1 <= retry <= policy.num_retries:
        return None
    step = retry - 1 - policy.num_no_delay_retries
    if step < 0:
        return 0.0
    step -= policy.num_min_delay_retries
    if step < 0:
        return float(policy.min_delay_target)
    last = policy.backoff_retries - 1
    if step == last == 0:  # the only step of backoff is also its first
        return float(policy.min_delay_target)
    if step >= last:  # the last step of backoff also has the maximum delay
        return float(policy.max_delay_target)
    backoff = _BACKOFF[policy.backoff_function]
    return backoff(policy.min_delay_target, policy.max_delay_target, step, last)


def total_s(policy: RetryPolicy) -> float:
    return sum(delay_s(policy, retry) or 0.0 for retry in range(1, policy.num_retries + 1))


def retry_delay_ms(policy: RetryPolicy, attempts: int, *, chance: float) -> int | None:
    """Return the delay before the next attempt to deliver a message, or None if no attempt is left.
    ``attempts`` is the number of attempts so far, and ``chance`` is a random number from 0 to 1."""
    delay = delay_s(policy, attempts)
    if delay is None:
        return None
    return round(delay * SECOND_MS * (1 - JITTER + 2 * JITTER * chance))


# ── Reading ──────────────────────────────────────────────────────────────────────────────────

_RATE = "maxReceivesPerSecond"
_HEADER = "headerContentType"
_TYPES: Mapping[type, str] = {
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    str: "a string",
    list: "an array",
    dict: "an object",
}
_RETRY_TYPES: Mapping[str, type] = {
    field.encode_name: field.type for field in msgspec.structs.fields(RetryPolicy)
}
# The smallest allowed value, and the largest.
_RANGES: Mapping[str, tuple[int, int | None]] = {
    "minDelayTarget": (1, None),
    "maxDelayTarget": (1, _DELAY_S_MAX),
    "numRetries": (0, _RETRIES_MAX),
    "numMaxDelayRetries": (0, None),
    "numNoDelayRetries": (0, None),
    "numMinDelayRetries": (0, None),
}


class _Reader:
    """Reads one policy. ``prefix`` precedes every error text."""

    def __init__(self, prefix: str) -> None:
        self._prefix = f"{prefix}DeliveryPolicy: "

    def bad(self, text: str) -> Exception:
        return fault("InvalidParameter", self._prefix + text)

    def document(self, text: str) -> Members:
        raw = text.encode(errors="replace")
        if len(raw) > _TEXT_BYTES_MAX:
            raise self.bad(f"must have at most {_TEXT_BYTES_MAX} bytes")
        try:
            document = msgspec.json.decode(raw)
        except (msgspec.DecodeError, RecursionError) as error:
            raise self.bad(f"failed to parse JSON. {error}") from None
        if not isinstance(document, dict):
            raise self.bad("failed to parse JSON. The policy must be an object")
        return document

    def members(self, value: Members, path: str, types: Mapping[str, type]) -> None:
        """Check that an object has only known members, each null or of its type."""
        for name, member in value.items():
            wanted = types.get(name)
            if wanted is None:
                raise self.bad(f"Unexpected JSON member: {cut(name)}")
            if member is not None and type(member) is not wanted:
                where = f"{path}.{name}" if path else name
                expected, found = _TYPES[wanted].split()[-1], _TYPES[type(member)]
                raise self.bad(f"{where} type mismatch, expecting {expected}, received {found}")

    def retries(self, value: Members, path: str) -> Members:
        self.members(value, path, _RETRY_TYPES)
        given = {name: value.get(name) for name in _RETRY_TYPES}
        for name, (low, high) in _RANGES.items():
            number = given[name]
            if number is not None and number < low:
                raise self.bad(f"{path}.{name} must be greater than or equal to {low}")
            if number is not None and high is not None and number > high:
                raise self.bad(f"{path}.{name} must be less than or equal to {high}")
        policy = _complete(given)
        if policy.max_delay_target < policy.min_delay_target:
            text = "maxDelayTarget must be greater than or equal to minDelayTarget"
            raise self.bad(f"{path}.{text}")
        if policy.backoff_retries < 0:
            raise self.bad(
                f"{path}.numRetries must be greater than or equal to total of "
                "numMinDelayRetries, numNoDelayRetries and numMaxDelayRetries"
            )
        if policy.backoff_function not in _BACKOFF:
            value_text = cut(policy.backoff_function)
            text = f"the value [{value_text}] is not a valid backoff function"
            raise self.bad(f"{path}.backoffFunction: {text}")
        if total_s(policy) > _TOTAL_S_MAX:
            text = f"Total policy retry time cannot be greater than {_TOTAL_S_MAX} seconds"
            raise self.bad(f"{path}: {text}")
        return given

    def throttle(self, value: Members, path: str) -> Members | None:
        self.members(value, path, {_RATE: int})
        rate = value.get(_RATE)
        if rate is not None and rate < 1:
            raise self.bad(f"{path}.{_RATE} must be >= 1")
        return None if rate is None else {_RATE: rate}

    def request(self, value: Members, path: str) -> Members | None:
        self.members(value, path, {_HEADER: str})
        text = value.get(_HEADER)
        if text is None:
            return None
        if len(text) > _CONTENT_TYPE_CHARS_MAX or _MEDIA_TYPE.match(text) is None:
            raise self.bad(f"{path}.{_HEADER}: the value [{cut(text)}] is not a valid content type")
        return {_HEADER: text}

    def policy(self, value: Members, path: str, names: Mapping[str, str]) -> DeliveryPolicy:
        """Read the four parts of a policy, which topics and subscriptions spell differently."""
        parts: dict[str, Members | None] = {}
        for field, read in (
            ("healthy_retry_policy", self.retries),
            ("sickly_retry_policy", self.retries),
            ("throttle_policy", self.throttle),
            ("request_policy", self.request),
        ):
            part = value.get(names[field])
            parts[field] = None if part is None else read(part, path + names[field])
        return DeliveryPolicy(**parts, guaranteed=bool(value.get("guaranteed")))


_SUBSCRIPTION_NAMES: Mapping[str, str] = {
    field.name: field.encode_name
    for field in msgspec.structs.fields(DeliveryPolicy)
    if field.name != "guaranteed"
}
_TOPIC_NAMES: Mapping[str, str] = {
    field: f"default{name[0].upper()}{name[1:]}" for field, name in _SUBSCRIPTION_NAMES.items()
}
_FINAL = "disableSubscriptionOverrides"


def read_topic_policy(text: str, *, prefix: str) -> TopicPolicy:
    """Read the DeliveryPolicy of a topic. ``prefix`` is ON_SET or ON_CREATE of ``faults.py``."""
    reader = _Reader(prefix)
    document = reader.document(text)
    reader.members(document, "", {"http": dict})
    http = document.get("http") or {}
    reader.members(http, "http", dict.fromkeys(_TOPIC_NAMES.values(), dict) | {_FINAL: bool})
    return TopicPolicy(reader.policy(http, "http.", _TOPIC_NAMES), bool(http.get(_FINAL)))


def read_subscription_policy(text: str, *, prefix: str) -> DeliveryPolicy:
    reader = _Reader(prefix)
    document = reader.document(text)
    types = dict.fromkeys(_SUBSCRIPTION_NAMES.values(), dict) | {"guaranteed": bool}
    reader.members(document, "", types)
    return reader.policy(document, "", _SUBSCRIPTION_NAMES)


def _complete(given: Members) -> RetryPolicy:
    """Return a retry policy in which members that are not given have their defaults."""
    present = {name: value for name, value in given.items() if value is not None}
    return msgspec.convert(present, RetryPolicy)


# ── Effective policies, and policies in replies ──────────────────────────────────────────────


def effective(
    topic: TopicPolicy | None = None, subscription: DeliveryPolicy | None = None
) -> DeliveryPolicy:
    """Return the policy that applies to a subscription: its own, else its topic's, else the
    defaults. Retries and content type are always set."""
    topic = topic or TopicPolicy()
    above = topic.defaults
    own = above if subscription is None or topic.is_final else subscription
    healthy = DeliveryPolicy(
        healthy_retry_policy=own.healthy_retry_policy or above.healthy_retry_policy
    ).retries
    request = own.request_policy or above.request_policy or {_HEADER: CONTENT_TYPE}
    return DeliveryPolicy(
        healthy_retry_policy=msgspec.to_builtins(healthy),
        sickly_retry_policy=own.sickly_retry_policy or above.sickly_retry_policy,
        throttle_policy=own.throttle_policy or above.throttle_policy,
        request_policy=request,
        guaranteed=own.guaranteed,
    )


def subscription_text(policy: DeliveryPolicy) -> str:
    """Return a policy as a subscription's attributes show it, with null for what is not set."""
    return msgspec.json.encode(policy).decode()


def topic_text(policy: TopicPolicy) -> str:
    """Return a policy as a topic's attributes show it, without what is not set."""
    parts = policy.defaults
    healthy, sickly, throttle, request = _TOPIC_NAMES.values()
    http = {
        healthy: _without_none(parts.healthy_retry_policy),
        sickly: _without_none(parts.sickly_retry_policy),
        _FINAL: policy.is_final,
        throttle: parts.throttle_policy,
        request: parts.request_policy,
    }
    return msgspec.json.encode({"http": _without_none(http)}).decode()


def effective_topic_text(policy: TopicPolicy | None) -> str:
    is_final = policy is not None and policy.is_final
    return topic_text(TopicPolicy(effective(policy), is_final))


def _without_none(members: Members | None) -> Members | None:
    if members is None:
        return None
    return {name: member for name, member in members.items() if member is not None}
