"""How the messages of one subscription are sent: its settings, read once and ready for use."""

import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from penstock.flow.backoff import WebhookRetry
from penstock.flow.verdicts import Failure, Kind
from penstock.model.errors import InvalidRequest
from penstock.model.identity import Rate
from penstock.model.limits import MESSAGE_BYTES_MAX
from penstock.model.message import Record
from penstock.model.names import uuid_text
from penstock.model.quotas import NO_LIMIT
from penstock.model.sent_message import SentMessage
from penstock.model.subscription import Subscription
from penstock.model.topic import Topic
from penstock.net.http.client_tls import TlsIdentity
from penstock.push.published import Published
from penstock.wire.aws.sns import delivery_policy, notification
from penstock.wire.aws.sns.faults import ON_SET
from penstock.wire.aws.sns.filter_match import matches
from penstock.wire.aws.sns.filter_policy import Policy, Scope, compile_policy
from penstock.wire.webhooks.delivery_requests import DeliveryRequest, Outgoing, RequestMaker
from penstock.wire.webhooks.endpoint_url import EndpointUrl, parse_endpoint_url
from penstock.wire.webhooks.settings import AUTO, Secrets, WebhookSettings
from penstock.wire.webhooks.settings import SNS as SNS_FORMAT

WEBHOOK: Final = "webhook"  # protocol of subscriptions that the admin API creates
HTTP: Final = ("http", "https")
SQS: Final = "sqs"  # queues get copies; everything else is pushed
SNS_TIMEOUT_MS: Final = 15_000
ENVELOPE_BYTES: Final = 4_096  # of an SNS notification, beside the message and its escapes

Wants = Callable[[Record], bool]
NO_IDENTITY: Final = TlsIdentity()

# Returns the delay before the next attempt, or None if there is none, from the number of the failed
# attempt, the age of the message in milliseconds and a random number in [0, 1).
Delay = Callable[[int, int, float], int | None]


Carry = Callable[[Published], Awaitable[int | Failure]]


class Courier(Protocol):
    async def send(self, one: Subscription, message: SentMessage) -> int | Failure:
        """Send a message. Returns an HTTP status, or why there is none."""


class Make(Protocol):
    def __call__(
        self, messages: Sequence[Published], *, now_ms: int, is_test: bool = False
    ) -> DeliveryRequest: ...


@dataclass(frozen=True, slots=True)
class Plan:
    kind: Kind
    make: Make
    delay_ms: Delay
    request_bytes: int  # size of the largest request
    destination: tuple[str, str, int]  # scheme, host and port; of a courier only its protocol
    url: EndpointUrl | None = None  # None: a courier sends the messages
    carry: Carry | None = None
    timeout_ms: int = SNS_TIMEOUT_MS
    limit: int | None = None  # requests in progress; None: adaptive
    rate: Rate | None = None
    batch_max: int = 1
    batch_wait_ms: int = 0
    is_ordered: bool = False
    is_consumed: bool = False  # messages are taken from a queue, as by any other consumer
    is_signed: bool = False  # messages have the envelope of SNS with its signature
    is_counted: bool = False  # attempts count while the circuit breaker is open
    is_at_most_once: bool = False
    policy: Policy | None = None  # which messages are wanted; None: all
    dead_letter: str = ""  # name or ARN of a queue
    identity: TlsIdentity = NO_IDENTITY
    auto_pause_ms: int = 0
    # Headers of the request that asks the endpoint for permission.
    handshake: tuple[tuple[str, str], ...] = ()


def make_plan(
    one: Subscription, topic: Topic, secrets: bytes, *, origin: str, courier: Courier | None
) -> Plan:
    """Return the plan of a subscription. ``secrets`` are decrypted; ``origin`` is the DNS name of
    this cluster. Raises InvalidRequest or UrlInvalid if the stored settings cannot be used."""
    if one.protocol == WEBHOOK:
        return _webhook_plan(one, topic, secrets, origin)
    if one.protocol in HTTP:
        url = parse_endpoint_url(with_password(one.endpoint, secrets))
        plan = _sns_plan(one, topic, (url.scheme, url.host, url.port))
        return dataclasses.replace(plan, url=url)
    if courier is None:
        raise InvalidRequest(f"There is no gateway, mail server or outbox for {one.protocol}.")
    plan = _sns_plan(one, topic, (one.protocol, "", 0))
    unsubscribe_url = notification.unsubscribe_url(one.base_url, one.arn)

    async def carry(message: Published) -> int | Failure:
        record = message.record
        return await courier.send(
            one,
            SentMessage(
                message_id=uuid_text(record.message.message_id),
                endpoint=one.endpoint,
                body=message.body,
                sent_at_ms=record.sent_at_ms,
                subject=message.subject,
                topic_arn=topic.sns_arn or "",
                attributes=message.attributes,
                notification=message.envelope.body(unsubscribe_url),
            ),
        )

    return dataclasses.replace(plan, carry=carry, is_signed=not topic.is_fifo)


def filter_of(one: Subscription) -> Policy | None:
    if one.protocol == WEBHOOK:
        settings = webhook_settings(one)
        text, scope = settings.filter, settings.filter_scope
    else:
        text = one.attributes.get("FilterPolicy", "")
        scope = one.attributes.get("FilterPolicyScope", Scope.ATTRIBUTES.value)
    return compile_policy(text, scope=Scope(scope)) if text else None


def wants_of(one: Subscription, topic: Topic, partition: int, is_replay: bool) -> Wants | None:
    """Return a function that tells whether a subscription gets a record of a partition; None if it
    gets all."""
    starts, policy = one.start_offsets, filter_of(one)
    start = starts[partition] if partition < len(starts) and not is_replay else 0
    if policy is None and not start:
        return None

    def wants(record: Record) -> bool:
        if record.offset < start:
            return False
        if policy is None:
            return True
        message = Published(
            record, topic, partition, None, protocol=one.protocol, endpoint=one.endpoint
        )
        return matches(policy, message.prepared)

    return wants


def webhook_settings(one: Subscription) -> WebhookSettings:
    return msgspec.json.decode(one.webhook or b"{}", type=WebhookSettings)


# ── Subscriptions of SNS topics ──────────────────────────────────────────────────────────────


def _sns_plan(one: Subscription, topic: Topic, destination: tuple[str, str, int]) -> Plan:
    attributes = one.attributes
    above = topic.sns.attributes.get("DeliveryPolicy") if topic.sns is not None else None
    own = attributes.get("DeliveryPolicy")
    policy = delivery_policy.effective(
        delivery_policy.read_topic_policy(above, prefix=ON_SET) if above else None,
        delivery_policy.read_subscription_policy(own, prefix=ON_SET) if own else None,
    )
    retries, per_s = policy.retries, policy.throttle_per_s
    is_raw = attributes.get("RawMessageDelivery") == "true"
    topic_arn = topic.sns_arn or ""
    unsubscribe_url = notification.unsubscribe_url(one.base_url, one.arn)
    content_type = policy.content_type

    def make(
        messages: Sequence[Published],
        *,
        now_ms: int,  # noqa: ARG001 - webhooks sign it
        is_test: bool = False,
    ) -> DeliveryRequest:
        [message] = messages
        body = message.body if is_raw else message.envelope.body(unsubscribe_url)
        headers = notification.headers(
            notification.NOTIFICATION,
            message_id=uuid_text(message.record.message.message_id),
            topic_arn=topic_arn,
            subscription_arn=one.arn,
            content_type=content_type,
            is_raw=is_raw,
        )
        if is_test:
            headers += (("x-penstock-test", "1"),)
        return DeliveryRequest("POST", headers, body, 1)

    def delay_ms(attempt: int, _age_ms: int, chance: float) -> int | None:
        return delivery_policy.retry_delay_ms(retries, attempt, chance=chance)

    redrive = attributes.get("RedrivePolicy")
    return Plan(
        kind=Kind.SNS,
        destination=destination,
        make=make,
        delay_ms=delay_ms,
        request_bytes=_message_bytes_max(topic) + ENVELOPE_BYTES,
        rate=None if per_s is None else Rate(per_s, per_s),
        is_ordered=topic.is_fifo,
        is_signed=not is_raw and not topic.is_fifo,
        is_counted=True,
        policy=filter_of(one),
        dead_letter=msgspec.json.decode(redrive)["deadLetterTargetArn"] if redrive else "",
    )


def with_password(endpoint: str, password: bytes) -> str:
    """Return the URL of an endpoint with its password, which is stored separately."""
    if not password:
        return endpoint
    return endpoint.replace(":****@", f":{password.decode()}@", 1)


def _message_bytes_max(topic: Topic) -> int:
    if topic.sns is None:
        return MESSAGE_BYTES_MAX
    return int(topic.sns.attributes.get("MaximumMessageSize", topic.settings.message_bytes_max))


# ── Webhooks ─────────────────────────────────────────────────────────────────────────────────


def _webhook_plan(one: Subscription, topic: Topic, packed: bytes, origin: str) -> Plan:
    settings = webhook_settings(one)
    secrets = Secrets.unpack(packed)
    url = parse_endpoint_url(one.endpoint)
    rate_per_s = settings.rate_per_s
    if one.permission is not None:
        # Another name or a higher rate would not be what the endpoint has allowed.
        origin = one.permission.origin or origin
        if (allowed := one.permission.rate_per_minute) is not None:
            rate_per_s = min(rate_per_s or NO_LIMIT, allowed / 60)
    maker = RequestMaker(
        settings,
        secrets,
        topic_arn=topic.sns_arn or topic.arn,
        subscription_arn=one.arn,
        origin=origin,
    )
    retry = msgspec.convert(msgspec.to_builtins(settings.retry), WebhookRetry)
    has_notification = settings.format == SNS_FORMAT
    unsubscribe_url = notification.unsubscribe_url(one.base_url, one.arn)

    def make(
        messages: Sequence[Published], *, now_ms: int, is_test: bool = False
    ) -> DeliveryRequest:
        outgoing = [
            Outgoing(
                _with_content(each),
                each.partition,
                each.subject,
                each.envelope.body(unsubscribe_url) if has_notification else b"",
            )
            for each in messages
        ]
        return maker.make(outgoing, now_ms=now_ms, is_test=is_test)

    is_certificate = settings.auth.type == "certificate"
    identity = TlsIdentity(
        ca=settings.ca,
        certificate=settings.auth.certificate,
        key=secrets.auth.reveal() if is_certificate and secrets.auth is not None else "",
    )
    is_at_most_once = settings.guarantee == "at_most_once"
    size_max = settings.batch_bytes_max if settings.batch_max > 1 else _message_bytes_max(topic)
    return Plan(
        kind=Kind.WEBHOOK,
        url=url,
        destination=(url.scheme, url.host, url.port),
        make=make,
        delay_ms=retry.delay_ms,
        request_bytes=size_max + ENVELOPE_BYTES,
        timeout_ms=settings.timeout_ms,
        limit=None if settings.concurrency == AUTO else settings.concurrency,
        rate=None if rate_per_s is None else Rate(rate_per_s, max(1.0, rate_per_s)),
        batch_max=settings.batch_max,
        batch_wait_ms=settings.batch_wait_ms,
        is_ordered=settings.ordered != "none" or topic.is_fifo,
        is_consumed=topic.is_queue and settings.mode == "consume",
        is_signed=has_notification and not topic.is_fifo,
        # A message that is sent at most once has only one attempt: it waits for the endpoint.
        is_counted=settings.on_outage == "count" and not is_at_most_once,
        is_at_most_once=is_at_most_once,
        policy=filter_of(one),
        dead_letter=settings.dead_letter,
        identity=identity,
        auto_pause_ms=settings.auto_pause_ms,
        handshake=maker.handshake,
    )


def _with_content(message: Published) -> Record:
    """Return a record with the body and attributes that the subscription gets."""
    record, stored = message.record, message.record.message
    if stored.attributes is None or len(stored.attributes) == len(message.attributes):
        return record
    content = msgspec.structs.replace(stored, body=message.body, attributes=message.attributes)
    return msgspec.structs.replace(record, message=content)
