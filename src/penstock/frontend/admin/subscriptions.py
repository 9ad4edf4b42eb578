"""Handlers of ``/api/v1/subscriptions``: webhooks on queues and topics, and SNS subscriptions.

A webhook is created here and sends from the moment of its creation, or as soon as its endpoint has
permitted it (setting ``verify``). SNS subscriptions are created by SNS clients; here they are
listed, shown, confirmed, paused and deleted. Settings are shown with ``****`` for secrets, so that
a client can read, edit and send them. The signing secret is only in the reply that creates it.

A caller needs a right such as ``push:CreateSubscription`` on
``arn:penstock:admin:<region>:<account>:subscription/<id>``. To create or change a webhook, a caller
also needs the right to read its source: ``sqs:ReceiveMessage``, ``kafka:Read`` or
``sns:Subscribe``."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, Literal

import msgspec
from msgspec.structs import replace

from penstock.flow.verdicts import Failure
from penstock.frontend.admin.ports import PushPorts
from penstock.frontend.admin.request import Body, Call, json_reply, picked
from penstock.frontend.admin.webhook_rules import (
    UNORDERED,
    check_readable,
    check_source,
    checked_settings,
    endpoint_of,
    find_source,
)
from penstock.model.calls import (
    BrokerCall,
    Ends,
    R,
    ReadBookmark,
    ReadPushStatus,
    Stats,
)
from penstock.model.errors import (
    Conflict,
    InvalidRequest,
    NotFound,
    PenstockError,
    client_text,
)
from penstock.model.limits import SUBSCRIPTION_BYTES_MAX
from penstock.model.ports import PushStatus
from penstock.model.subscription import (
    RANDOM_BYTES,
    Subscription,
    SubscriptionState,
    home_partition,
    new_id,
    share_group,
)
from penstock.model.topic import Topic
from penstock.net.http.exchange import HttpReply
from penstock.wire.webhooks import settings as webhooks
from penstock.wire.webhooks.endpoint_url import UrlInvalid, parse_endpoint_url
from penstock.wire.webhooks.settings import CONSUME, InvalidSettings, Secrets, WebhookSettings
from penstock.wire.webhooks.standard import SECRET_BYTES, secret_text

WEBHOOK: Final = "webhook"  # protocol of subscriptions that are created here
PUSHED: Final = (WEBHOOK, "http", "https")  # protocols whose requests a home sends
SUBSCRIPTIONS_MAX: Final = 1_000  # in one reply; the parameter ``after`` requests the next page
STATUSES_MAX: Final = 100  # in one reply with ``status``, which asks the home of each subscription
CALLS_AT_ONCE: Final = 32  # to partitions or homes
PAUSED_BY_REQUEST: Final = "paused by an operator"
_IN_STEP: Final = "sns"  # name of the bookmark of queues that get copies at once
# Members of bodies that the audit trail records. Settings are recorded by their names only.
_AUDITED: Final = (
    *("source", "start", "paused", "reason", "partition", "offset", "earliest", "start_ms"),
    *("start_offsets", "until_ms", "until_offsets"),
)

Shown = dict[str, Any]


class NewWebhook(Body, frozen=True):
    source: str  # name or ARN of a queue, Kafka topic or SNS topic
    endpoint: str  # URL
    start: Literal["latest", "earliest"] = "latest"
    paused: bool = False
    settings: msgspec.Raw = msgspec.Raw(b"{}")


class PauseRequest(Body, frozen=True):
    reason: str = PAUSED_BY_REQUEST


# ── Finding ──────────────────────────────────────────────────────────────────────────────────


def ports_of(call: Call) -> PushPorts:
    if call.context.push is None:
        raise NotFound("This node does not store subscriptions.")
    return call.context.push


async def find(call: Call) -> Subscription:
    """Return the subscription in the path. Users cannot see those of other tenants."""
    one = await ports_of(call).subscriptions.learn(call.path[3])
    caller = call.caller
    if one is None or not (caller.is_operator or one.account == caller.account):
        raise NotFound(f"There is no subscription {call.path[3][:80]}.")
    return one


def source_of(call: Call, one: Subscription) -> Topic:
    topic = call.context.everything.find_id(one.topic_id)
    if topic is None:
        raise NotFound(f"The source of the subscription, {one.source_arn}, was deleted.")
    return topic


async def find_pushed(call: Call) -> tuple[Subscription, Topic]:
    """Return a confirmed subscription whose endpoint gets requests, and its source."""
    one = await find(call)
    if one.protocol not in PUSHED:
        raise InvalidRequest(
            f"A subscription of the protocol {one.protocol} sends no HTTP requests."
        )
    if one.state is not SubscriptionState.CONFIRMED:
        raise Conflict("The subscription is not confirmed yet.")
    topic = source_of(call, one)
    check_readable(call, topic)
    return one, topic


async def _find_webhook(call: Call) -> tuple[Subscription, Topic]:
    one = await find(call)
    if one.protocol != WEBHOOK:
        raise InvalidRequest(
            "This is an SNS subscription: change it with SetSubscriptionAttributes."
        )
    return one, source_of(call, one)


# ── Settings and secrets ─────────────────────────────────────────────────────────────────────


def _read(ports: PushPorts, one: Subscription) -> tuple[WebhookSettings, Secrets]:
    settings = msgspec.json.decode(one.webhook, type=WebhookSettings)
    return settings, Secrets.unpack(ports.ring.unwrap(one.secrets, context=one.secrets_context))


def _with(
    ports: PushPorts, one: Subscription, settings: WebhookSettings, secrets: Secrets
) -> Subscription:
    wrapped = ports.ring.wrap(secrets.pack(), context=one.secrets_context)
    return replace(one, webhook=msgspec.json.encode(settings).decode(), secrets=wrapped)


# ── Offsets ───────────────────────────────────────────────────────────────────────────────


async def ask_partitions(call: Call, topic: Topic, make: Callable[[int], BrokerCall[R]]) -> list[R]:
    """Make a call for each partition, and return the replies in their order."""
    found: list[R] = []
    for start in range(0, topic.partition_count, CALLS_AT_ONCE):
        some = range(start, min(start + CALLS_AT_ONCE, topic.partition_count))
        found += await asyncio.gather(*(call.context.broker.call(make(each)) for each in some))
    return found


async def _confirmed(
    call: Call, topic: Topic, one: Subscription, start: str = "latest"
) -> Subscription:
    """Return the subscription as confirmed now. It gets the messages from now on, or all."""
    ends = await ask_partitions(call, topic, lambda each: Ends(topic, each))
    is_all = start == "earliest"
    return replace(
        one,
        state=SubscriptionState.CONFIRMED,
        confirmed_at_ms=call.now_ms,
        was_authenticated=True,
        start_offsets=tuple(each.start_offset if is_all else each.high_watermark for each in ends),
    )


def _asked_first(one: Subscription, settings: WebhookSettings, *, now_ms: int) -> Subscription:
    """Return a webhook that sends nothing before its home has asked the endpoint for permission, if
    its settings require this."""
    if settings.verify == "cloudevents":
        state, confirmed_at_ms = SubscriptionState.PENDING, 0
    else:
        state, confirmed_at_ms = SubscriptionState.CONFIRMED, now_ms
    return replace(one, state=state, confirmed_at_ms=confirmed_at_ms, permission=None)


# ── Create, change, delete ───────────────────────────────────────────────────────────────────


async def create(call: Call) -> HttpReply:
    ports, request = ports_of(call), call.json(NewWebhook)
    topic, endpoint = find_source(call, request.source), endpoint_of(request.endpoint)
    random = ports.entropy(SECRET_BYTES)
    settings, secrets = webhooks.create(_document(request.settings), random=random)
    check_readable(call, topic, settings.mode)
    check_source(topic)
    settings = checked_settings(call, topic, settings)
    if not ports.is_usable(request.endpoint, topic.account):
        raise InvalidRequest(Failure.UNUSABLE)
    known = ports.subscriptions.find_endpoint(topic.topic_id, WEBHOOK, endpoint)
    if known is None:
        one = Subscription(
            id=new_id(topic.topic_id, WEBHOOK, endpoint, random=ports.entropy(RANDOM_BYTES)),
            topic_id=topic.topic_id,
            source_arn=topic.sns_arn or topic.arn,
            account=topic.account,
            region=topic.region,
            protocol=WEBHOOK,
            endpoint=endpoint,
            created_at_ms=call.now_ms,
            principal=call.caller.arn,
            paused=PAUSED_BY_REQUEST if request.paused else None,
        )
        one = await _confirmed(call, topic, one, request.start)
        one = _asked_first(one, settings, now_ms=call.now_ms)
        known = await ports.subscriptions.create(_with(ports, one, settings, secrets))
        if known.id == one.id:
            made = secret_text(random)
            secret = {"secret": made} if secrets.signing.reveal() == made else {}
            return json_reply(201, {**_row(call, known), **_settings(ports, known), **secret})
    raise Conflict(
        f"{topic.name} has a webhook to this endpoint already: change {known.id}, or delete it."
    )


def _document(given: bytes | msgspec.Raw) -> bytes:
    document = bytes(given)
    if len(document) > SUBSCRIPTION_BYTES_MAX:
        raise InvalidSettings(
            f"The settings can have at most {SUBSCRIPTION_BYTES_MAX:,} bytes as JSON, not"
            f" {len(document):,}."
        )
    return document


async def change(call: Call) -> Shown:
    """Change the settings that the body has. Others, and secrets given as ``****``, stay."""
    ports, document = ports_of(call), _document(call.body)
    one, topic = await _find_webhook(call)
    mode = msgspec.json.decode(one.webhook, type=WebhookSettings).mode
    check_readable(call, topic, mode)

    def changed(current: Subscription) -> Subscription:
        before, secrets = _read(ports, current)
        after, kept = webhooks.change(before, secrets, document)
        after = checked_settings(call, topic, after, dead_letter_before=before.dead_letter)
        is_order_changed = (after.ordered == UNORDERED) != (before.ordered == UNORDERED)
        if after.mode != before.mode or is_order_changed:
            raise InvalidSettings(
                "mode cannot be changed, and ordered cannot be changed to or from none: create"
                " another webhook."
            )
        # An endpoint may have refused because of the old settings, such as a wrong token.
        if after.verify != before.verify or current.state is SubscriptionState.PENDING:
            current = _asked_first(current, after, now_ms=call.now_ms)
        return _with(ports, current, after, kept)

    changed(one)  # raises errors of the caller before the metadata store is called
    one = await change_one(call, one, changed)
    return {**_row(call, one), **_settings(ports, one)}


async def change_one(
    call: Call, one: Subscription, change: Callable[[Subscription], Subscription]
) -> Subscription:
    try:
        return await ports_of(call).subscriptions.change(one.id, change)
    except NotFound:
        raise NotFound(f"There is no subscription {one.id}.") from None


async def delete(call: Call) -> Shown:
    one = await find(call)
    await ports_of(call).subscriptions.delete(one.id)
    return {"id": one.id, "deleted": True}


async def pause(call: Call) -> Shown:
    one, reason = await find(call), call.json(PauseRequest).reason or PAUSED_BY_REQUEST
    return _row(call, await change_one(call, one, lambda now: replace(now, paused=reason)))


async def resume(call: Call) -> Shown:
    one = await find(call)
    return _row(call, await change_one(call, one, lambda now: replace(now, paused=None)))


async def rotate(call: Call) -> Shown:
    """Replace the signing secret. Requests are signed with the old one too for a day."""
    ports = ports_of(call)
    one, _ = await _find_webhook(call)
    random, now_ms = ports.entropy(SECRET_BYTES), call.now_ms

    def rotated(current: Subscription) -> Subscription:
        settings, secrets = _read(ports, current)
        return _with(ports, current, settings, secrets.rotated(random=random, now_ms=now_ms))

    await change_one(call, one, rotated)
    until_ms = now_ms + webhooks.ROTATION_MS
    return {"id": one.id, "secret": secret_text(random), "old_secret_ends_at_ms": until_ms}


async def confirm(call: Call) -> Shown:
    """Confirm a pending SNS subscription, as its endpoint would with the token it was sent. The
    endpoint of a pending webhook is asked again instead: only the endpoint can permit requests."""
    one = await find(call)
    if one.state is not SubscriptionState.PENDING:
        return _row(call, one)
    if one.webhook:

        def unasked(current: Subscription) -> Subscription:
            is_pending = current.state is SubscriptionState.PENDING
            return replace(current, permission=None) if is_pending else current

        return _row(call, await change_one(call, one, unasked))
    ready = await _confirmed(call, source_of(call, one), one)
    fields = picked(ready, "state", "confirmed_at_ms", "was_authenticated", "start_offsets")

    def confirmed(current: Subscription) -> Subscription:
        is_pending = current.state is SubscriptionState.PENDING
        return replace(current, **fields) if is_pending else current

    return _row(call, await change_one(call, one, confirmed))


# ── List and show ────────────────────────────────────────────────────────────────────────────


async def many(call: Call) -> Shown:
    """List the subscriptions of a tenant, or of one source. With ``status=true``, ask for what the
    home of each knows."""
    subscriptions, info = ports_of(call).subscriptions, call.context.info
    if call.text("status", "false") not in ("true", "false"):
        raise InvalidRequest("Parameter status must be true or false.")
    is_asked = call.text("status") == "true"
    most = STATUSES_MAX if is_asked else SUBSCRIPTIONS_MAX
    count = call.number("limit", default=most, least=1, most=most)
    after, name = call.text("after"), call.text("source")
    if name:
        topic_id = find_source(call, name).topic_id
        found = subscriptions.page_of_topic(topic_id, after=after, count=count + 1)
    else:
        account = call.text("account") or info.account
        found = subscriptions.page(account, call.region, after=after, count=count + 1)
    page = found[:count]
    rows = [_row(call, one) for one in page]
    if is_asked:
        for start in range(0, len(page), CALLS_AT_ONCE):
            some = slice(start, start + CALLS_AT_ONCE)
            statuses = await asyncio.gather(*(_status(call, one) for one in page[some]))
            for row, status in zip(rows[some], statuses, strict=True):
                row |= status
    return {"subscriptions": rows, "next": page[-1].id if len(found) > len(page) else None}


async def one(call: Call) -> Shown:
    found, ports = await find(call), ports_of(call)
    lag, status = await asyncio.gather(_lag(call, found), _status(call, found))
    return {
        **_row(call, found),
        **(_settings(ports, found) if found.webhook else {"attributes": found.attributes}),
        **picked(found, "replays", "start_offsets"),
        **status,
        **lag,
    }


def _row(call: Call, one: Subscription) -> Shown:
    topic = call.context.everything.find_id(one.topic_id)
    source = None if topic is None else topic.name if topic.sns is None else topic.sns.name
    said = one.permission
    return {
        **picked(one, "id", "arn", "protocol", "endpoint", "state", "paused"),
        "refusal": None if said is None or said.is_given else said.reason,
        "allowed_per_minute": None if said is None else said.rate_per_minute,
        "source": source,
        **picked(one, "source_arn", "account", "region", "principal"),
        **picked(one, "created_at_ms", "confirmed_at_ms"),
    }


def _settings(ports: PushPorts, one: Subscription) -> Shown:
    return {"settings": webhooks.shown(*_read(ports, one))}


async def _status(call: Call, one: Subscription) -> Shown:
    """Return what the home of a subscription knows, or why it cannot be asked."""
    topic = call.context.everything.find_id(one.topic_id)
    is_sending = one.protocol in PUSHED and one.state is SubscriptionState.CONFIRMED
    if topic is None or not is_sending:
        return {"status": None}
    try:
        asked = ReadPushStatus(topic, home_partition(one), one.id)
        status: PushStatus = await call.context.broker.call(asked)
    except PenstockError as error:
        return {"status": None, "unreachable": client_text(error)}
    return {"status": status}


async def _lag(call: Call, one: Subscription) -> Shown:
    """Return how many messages are neither delivered nor given up, the age of the oldest, and how
    many retention deleted first since the leaders of the source started."""
    nothing: Shown = {"lag": None, "oldest_age_ms": None, "lost": None}
    topic = call.context.everything.find_id(one.topic_id)
    if topic is None or one.state is not SubscriptionState.CONFIRMED:
        return nothing
    broker = call.context.broker
    settings = msgspec.json.decode(one.webhook, type=WebhookSettings) if one.webhook else None
    is_consuming = settings is not None and settings.mode == CONSUME
    counted = topic if is_consuming else ports_of(call).find_share(topic, share_group(one))
    try:
        if counted is None:
            return {**nothing, "lag": await _distance(call, topic, one)}
        stats = await broker.call(Stats(counted))
    except PenstockError:
        return nothing
    oldest_at_ms = stats.oldest_sent_at_ms
    age_ms = None if oldest_at_ms is None else max(0, call.now_ms - oldest_at_ms)
    lag = stats.visible + stats.in_flight + stats.delayed
    return {"lag": lag, "oldest_age_ms": age_ms, "lost": stats.expired}


async def _distance(call: Call, topic: Topic, one: Subscription) -> int:
    """Return the records after the position of a subscription that has no share: its queue gets
    copies at once, or nothing was sent yet."""
    ends = await ask_partitions(call, topic, lambda each: Ends(topic, each))
    positions = [each.start_offset for each in ends]
    for at, start in enumerate(one.start_offsets[: len(ends)]):
        positions[at] = max(positions[at], start)
    if one.protocol not in PUSHED:
        marks = await ask_partitions(call, topic, lambda at: ReadBookmark(topic, at, _IN_STEP))
        positions = [max(pair) for pair in zip(positions, marks, strict=True)]
    pairs = zip(ends, positions, strict=True)
    return sum(max(0, each.high_watermark - position) for each, position in pairs)


# ── Audit ────────────────────────────────────────────────────────────────────────────────────


def audited(call: Call, body: Mapping[str, Any]) -> dict[str, object]:
    """Return the parameters to record. Settings may have secrets, so only their names are."""
    if call.path[3:] and not call.path[4:]:  # the body is the settings
        return {"settings": sorted(body)}
    params: dict[str, object] = {name: body[name] for name in _AUDITED if name in body}
    if isinstance(body.get("settings"), dict):
        params["settings"] = sorted(body["settings"])
    if isinstance(body.get("endpoint"), str):
        with suppress(UrlInvalid):  # then the request fails
            params["endpoint"] = parse_endpoint_url(body["endpoint"]).shown
    return params
