"""Subscriptions whose endpoints confirm, passwords, replays and other protocols, with everything
around the frontend in memory."""

import json
from urllib.parse import quote, urlencode

import msgspec
import pytest
from tests.unit.frontend.aws.test_pipeline import signed
from tests.unit.frontend.aws.test_sns import ACCOUNT, QUEUE, TOPIC, Client, given
from tests.unit.frontend.signing import locked

from penstock.frontend.aws.context import FrontendConfig
from penstock.model.errors import Throttled
from penstock.model.limits import CONFIRMATION_MS
from penstock.model.subscription import Replay, ReplayState, Subscription, SubscriptionState
from penstock.model.topic import Topic
from penstock.wire.aws.sns.tokens import Token, make_token

URL = "https://example.com/hook"
KEY = b"k" * 32  # of the rig
SIGNED = signed("us-east-1", "sns")


class Site:
    """A client, and what the frontend tells the part that sends confirmations."""

    def __init__(
        self, config: FrontendConfig | None = None, relayed: dict[str, bool] | None = None
    ) -> None:
        self.client = Client(config)
        self.rig = self.client.rig
        self.confirmed: list[Subscription] = []
        self.restorable: list[Subscription] = []
        frontend = self.rig.frontend
        frontend.confirm = self.confirmed.append
        frontend.unsubscribed = self.restorable.append
        frontend.relayed = relayed or {}

    async def pending(self, url: str = URL, **attributes: str) -> Subscription:
        await self.client.topic()
        fields = given(url, **attributes) | {"Protocol": url.partition(":")[0]}
        root = await self.client.call("Subscribe", **fields)
        assert root.findtext("SubscribeResult/SubscriptionArn") == "pending confirmation"
        return self.confirmed[-1]

    def token(self, one: Subscription, region: str = "us-east-1") -> str:
        return make_token(KEY, Token(one.id, region), now_ms=self.rig.clock.now_ms)

    async def link(self, action: str, **fields: str) -> tuple[int, str]:
        """Open a link without Version and signature."""
        text = urlencode({"Action": action, **fields}, quote_via=quote)
        reply = await self.rig.ask("GET", query=text)
        return reply.status, reply.body.decode()

    def stored(self, one: Subscription) -> Subscription | None:
        return self.rig.subscriptions.find(one.id)

    async def confirm(self, one: Subscription, **fields: str) -> Subscription:
        arn = TOPIC.replace("orders", "any-name")
        status, body = await self.link(
            "ConfirmSubscription", TopicArn=arn, Token=self.token(one), **fields
        )
        assert status == 200, body
        assert f"<SubscriptionArn>{one.arn}</SubscriptionArn>" in body
        found = self.stored(one)
        assert found is not None
        return found


@pytest.fixture
def site() -> Site:
    return Site()


async def test_the_key_that_signs_messages_is_created_before_the_first_subscription(
    site: Site,
) -> None:
    """Else the first publisher would wait for it, and find nothing in the queue."""
    keys: list[int] = []

    async def prepare() -> None:
        keys.append(len(site.confirmed))
        raise Throttled("not now")  # the subscription is made anyway

    site.rig.frontend.prepare_key = prepare
    for _ in range(2):
        await site.pending()
    assert keys == [0]


# ── Confirmations ────────────────────────────────────────────────────────────────────────────


async def test_an_endpoint_confirms_by_a_link(site: Site) -> None:
    one = await site.pending()
    assert one.state is SubscriptionState.PENDING
    await site.pending()
    assert len(site.confirmed) == 2, "the confirmation is sent again"
    await site.client.call("Publish", TopicArn=TOPIC, Message="before")
    found = await site.confirm(one)
    assert found.state is SubscriptionState.CONFIRMED
    assert found.start_offsets == (1,), "what was published before is not sent"
    assert not found.was_authenticated
    assert await site.confirm(one) == found, "again is fine"
    arn = await site.client.call("Subscribe", **given(URL) | {"Protocol": "https"})
    assert arn.findtext("SubscribeResult/SubscriptionArn") == one.arn
    assert len(site.confirmed) == 2


@pytest.mark.parametrize(
    ("arn", "region", "text"),
    [
        ("x", "us-east-1", "Invalid parameter: Topic"),
        (QUEUE, "us-east-1", "Invalid parameter: Topic"),
        (TOPIC, "eu-west-1", "Invalid parameter: Topic"),
        (TOPIC.replace("us-east", "eu-west"), "us-east-1", "Invalid parameter: Topic"),
        (TOPIC, None, "Invalid parameter: Token"),
    ],
)
async def test_other_confirmations_are_refused(
    site: Site, arn: str, region: str | None, text: str
) -> None:
    one = await site.pending()
    token = "0" * 288 if region is None else site.token(one, region)
    refusal = await site.client.refused("ConfirmSubscription", TopicArn=arn, Token=token)
    assert refusal == (400, "InvalidParameter", text)


async def test_a_token_ends_with_its_time_and_its_subscription(site: Site) -> None:
    one = await site.pending()
    token, fields = site.token(one), {"TopicArn": TOPIC}
    site.rig.clock.now_ms += CONFIRMATION_MS
    refusal = await site.client.refused("ConfirmSubscription", Token=token, **fields)
    assert refusal[2] == "Invalid parameter: Token"
    token = site.token(one)
    await site.client.call("Unsubscribe", SubscriptionArn=one.arn)
    assert not site.restorable, "it was never confirmed"
    refusal = await site.client.refused("ConfirmSubscription", Token=token, **fields)
    assert refusal[2] == "Invalid parameter: Token"


async def test_an_endpoint_restores_its_subscription(site: Site) -> None:
    one = await site.confirm(await site.pending())
    site.rig.clock.now_ms += 5
    await site.client.call("Unsubscribe", SubscriptionArn=one.arn)
    [told] = site.restorable
    assert (told.state, told.deleted_at_ms) == (SubscriptionState.DELETED, site.rig.clock.now_ms)
    assert site.stored(one) is None
    shown = await site.client.attributes("GetTopicAttributes", TopicArn=TOPIC)
    assert (shown["SubscriptionsDeleted"], shown["SubscriptionsConfirmed"]) == ("1", "0")
    await site.client.call("Unsubscribe", SubscriptionArn=one.arn)
    assert len(site.restorable) == 1
    await site.client.call("Publish", TopicArn=TOPIC, Message="missed")
    restored = await site.confirm(one)
    assert (restored.state, restored.deleted_at_ms) == (SubscriptionState.CONFIRMED, 0)
    assert restored.start_offsets == (1,), "it continues with new messages"


async def test_only_owners_unsubscribe_if_the_endpoint_wants_that(site: Site) -> None:
    one = await site.confirm(await site.pending(), AuthenticateOnUnsubscribe="TRUE")
    assert one.needs_owner
    status, body = await site.link("Unsubscribe", SubscriptionArn=one.arn)
    assert status == 403
    assert "<Code>AuthorizationError</Code>" in body
    assert site.stored(one) is not None
    form = {"Action": "Unsubscribe", "Version": "2010-03-31", "SubscriptionArn": one.arn}
    reply = await site.rig.ask(body=urlencode(form).encode(), headers=SIGNED)
    assert reply.status == 200
    assert site.stored(one) is None


async def test_links_work_with_authentication_on() -> None:
    rig, _ = locked()
    for link, status in (
        ("Action=Unsubscribe&SubscriptionArn=" + quote(f"{TOPIC}:x"), 200),
        (f"Action=ConfirmSubscription&Token=0&TopicArn={TOPIC}", 400),
        (f"Action=DeleteTopic&TopicArn={TOPIC}", 403),
    ):
        reply = await rig.ask("GET", query=link, headers={"host": "h"})
        assert reply.status == status, reply.body
        assert status == 403 or b"http://sns.amazonaws.com/doc/2010-03-31/" in reply.body
    body = f"Action=DeleteTopic&TopicArn={TOPIC}".encode()
    forged = await rig.ask(query="Action=Unsubscribe", body=body)
    assert forged.status == 403
    assert b"MissingAuthenticationToken" in forged.body


# ── Endpoints ────────────────────────────────────────────────────────────────────────────────


async def test_a_password_is_stored_encrypted_and_can_be_replaced(site: Site) -> None:
    one = await site.pending("https://user:pa%20ss@example.com/hook")
    assert one.endpoint == "https://user:****@example.com/hook"
    ring = site.rig.frontend.ring
    assert ring is not None
    assert ring.unwrap(one.secrets, context=one.secrets_context) == b"pa%20ss"
    await site.pending("https://user:****@example.com/hook")
    assert site.stored(one) == one, "the shown URL changes nothing"
    await site.pending("https://user:new@example.com/hook")
    changed = site.stored(one)
    assert changed is not None
    assert ring.unwrap(changed.secrets, context=one.secrets_context) == b"new"
    assert msgspec.structs.replace(changed, secrets=one.secrets) == one

    def give_away(current: Subscription) -> Subscription:
        return msgspec.structs.replace(current, account="999999999999")

    theirs = await site.rig.subscriptions.change(one.id, give_away)
    await site.pending("https://user:guessed@example.com/hook")
    assert site.stored(one) == theirs, "another tenant changes nothing"
    site.rig.frontend.ring = None
    fields = given("https://a:b@example.com/") | {"Protocol": "https"}
    refusal = await site.client.refused("Subscribe", **fields)
    text = "Invalid parameter: Endpoint Reason: this server cannot encrypt a password"
    assert refusal == (400, "InvalidParameter", text)


@pytest.mark.parametrize(
    "url",
    ["https://user@example.com/", "https://user:@example.com/", "https://example.com/a:b@c"],
)
async def test_a_url_without_password_is_stored_as_it_is(site: Site, url: str) -> None:
    one = await site.pending(url)
    assert (one.endpoint, one.secrets) == (url, b"")


@pytest.mark.parametrize(
    ("account", "is_dev", "is_pending"),
    [(ACCOUNT, False, False), ("123456789012", False, True), ("123456789012", True, False)],
)
async def test_a_queue_of_another_account_must_confirm(
    account: str, is_dev: bool, is_pending: bool
) -> None:
    site = Site(FrontendConfig(is_dev=is_dev))
    await site.client.topic()
    arn = await site.client.subscribe(f"arn:aws:sqs:us-east-1:{account}:q")
    assert (arn == "pending confirmation") == is_pending
    assert len(site.confirmed) == is_pending
    learned = site.rig.backend.learned
    assert len(learned) == (not is_pending), "leaders know a confirmed subscription of a queue"
    if is_pending:
        one = await site.confirm(site.confirmed[0])
        assert learned == [one.id]


async def test_a_repeated_subscribe_tells_the_leaders_again(site: Site) -> None:
    """The request before may have failed when the subscription was stored."""
    await site.client.topic()
    arn = await site.client.subscribe()
    assert await site.client.subscribe() == arn
    first, second = site.rig.backend.learned
    assert first == second
    assert arn.endswith(first)


async def test_leaders_need_not_know_a_webhook_before_the_reply(site: Site) -> None:
    await site.confirm(await site.pending())
    assert site.rig.backend.learned == []


MAIL = "Invalid parameter: Email address"
PROTOCOL = "Invalid parameter: Amazon SNS does not support this protocol string: {}"


@pytest.mark.parametrize(
    ("protocol", "endpoint", "text"),
    [
        ("email", "a@example.com", ""),
        ("email-json", "first.last+tag@example.com", ""),
        ("email", "example.com", MAIL),
        ("email", "a@b@c", MAIL),
        ("email", "a b@example.com", MAIL),
        ("email", "a@example.com\r\nBcc: b@example.com", MAIL),
        ("email", "<a@example.com>", MAIL),
        ("email", "a" * 250 + "@b.de", MAIL),
        ("sms", "+15551234567", ""),
        ("sms", "+1-555/123.4567", ""),
        ("sms", "+1--5551234567", "Invalid SMS endpoint: +1--5551234567"),
        ("sms", "-15551234567", "Invalid SMS endpoint: -15551234567"),
        ("sms", "+1555123456-", "Invalid SMS endpoint: +1555123456-"),
        ("sms", "+1234567890123456", "Invalid SMS endpoint: +1234567890123456"),
        ("sms", "NAA+15551234567", "Invalid SMS endpoint: NAA+15551234567"),
        ("lambda", f"arn:aws:lambda:us-east-1:{ACCOUNT}:function:f", ""),
        ("lambda", "f", "Invalid parameter: Lambda endpoint ARN"),
        ("firehose", f"arn:aws:firehose:us-east-1:{ACCOUNT}:deliverystream/s", ""),
        ("firehose", "s", "Invalid parameter: Firehose endpoint ARN"),
        ("application", "there", ""),
        (
            "application",
            "gone",
            "Invalid parameter: Endpoint Reason: Endpoint does not exist for endpoint arngone",
        ),
    ],
)
async def test_protocols_that_are_served_have_a_form(
    protocol: str, endpoint: str, text: str
) -> None:
    site = Site(relayed={protocol: False})
    site.rig.frontend.has_application = "there".__eq__
    await site.client.topic()
    fields = given(endpoint) | {"Protocol": protocol}
    if text:
        assert (await site.client.refused("Subscribe", **fields))[1:] == ("InvalidParameter", text)
        return
    root = await site.client.call("Subscribe", **fields)
    arn = root.findtext("SubscribeResult/SubscriptionArn", "")
    assert arn.startswith(f"{TOPIC}:"), "no confirmation is needed"
    site.rig.frontend.relayed = {}
    assert (await site.client.refused("Subscribe", **fields))[2] == PROTOCOL.format(protocol)


async def test_a_mail_address_confirms_where_mail_is_sent() -> None:
    site = Site(relayed={"email": True})
    await site.client.topic()
    fields = given("a@example.com") | {"Protocol": "email"}
    root = await site.client.call("Subscribe", **fields)
    assert root.findtext("SubscribeResult/SubscriptionArn") == "pending confirmation"
    [one] = site.confirmed
    await site.confirm(one)


# ── Replays ──────────────────────────────────────────────────────────────────────────────────

FIRST_MS = 1_700_000_000_000  # of the first record of each partition; each next one is 1 ms later


def policy(start_ms: int, end_ms: int | None = None) -> str:
    def at(ms: int) -> str:
        return f"2023-11-14T22:13:20.{ms:03d}Z"  # FIRST_MS and some milliseconds

    points = {"PointType": "Timestamp", "StartingPoint": at(start_ms)}
    return json.dumps(points if end_ms is None else points | {"EndingPoint": at(end_ms)})


async def published(site: Site, count: int) -> None:
    await site.client.topic()
    for number in range(count):
        await site.client.call("Publish", TopicArn=TOPIC, Message=str(number))
    site.rig.clock.now_ms += 1_000


@pytest.mark.parametrize(
    ("text", "starts", "until"),
    [
        (policy(0), (0,), (5,)),
        (policy(2), (2,), (5,)),
        (policy(2, 3), (2,), (4,)),
        (policy(100), (5,), (5,)),
        (policy(0, 100), (0,), (5,)),
        (policy(3, 999), (3,), (5,)),
    ],
)
async def test_a_replay_has_the_offsets_of_its_times(
    site: Site, text: str, starts: tuple[int, ...], until: tuple[int, ...]
) -> None:
    await published(site, 5)
    arn = await site.client.subscribe()
    change = {"SubscriptionArn": arn, "AttributeName": "ReplayPolicy", "AttributeValue": text}
    await site.client.call("SetSubscriptionAttributes", **change)
    [one] = site.rig.subscriptions.of_topic(topic(site).topic_id)
    assert one.replays == (Replay(1, starts, until, site.rig.clock.now_ms),)
    shown = await site.client.attributes("GetSubscriptionAttributes", SubscriptionArn=arn)
    assert (shown["ReplayPolicy"], shown["ReplayStatus"]) == (text, "Pending")
    given_at_once = await site.client.subscribe(f"{QUEUE}2", ReplayPolicy=text)
    other = site.rig.subscriptions.find(given_at_once.rpartition(":")[2])
    assert other is not None
    assert (other.replays, other.start_offsets) == (one.replays, (5,))


def topic(site: Site) -> Topic:
    found = site.rig.catalog.find_sns(ACCOUNT, "us-east-1", "orders")
    assert found is not None
    return found


async def test_replays_wait_in_line_and_completed_ones_make_room(site: Site) -> None:
    await published(site, 1)
    arn = await site.client.subscribe()
    change = {"SubscriptionArn": arn, "AttributeName": "ReplayPolicy", "AttributeValue": policy(0)}
    for _ in range(10):
        await site.client.call("SetSubscriptionAttributes", **change)
    refusal = await site.client.refused("SetSubscriptionAttributes", **change)
    assert refusal[:2] == (403, "ReplayLimitExceeded")
    [one] = site.rig.subscriptions.of_topic(topic(site).topic_id)

    def complete(current: Subscription) -> Subscription:
        done = msgspec.structs.replace(current.replays[0], state=ReplayState.COMPLETED)
        return msgspec.structs.replace(current, replays=(done, *current.replays[1:]))

    await site.rig.subscriptions.change(one.id, complete)
    await site.client.call("SetSubscriptionAttributes", **change)
    [one] = site.rig.subscriptions.of_topic(topic(site).topic_id)
    assert [each.number for each in one.replays] == list(range(2, 12))
    await site.client.call("SetSubscriptionAttributes", **{**change, "AttributeValue": ""})
    [one] = site.rig.subscriptions.of_topic(topic(site).topic_id)
    assert {each.state for each in one.replays} == {ReplayState.FAILED}


async def test_a_pending_subscription_is_replayed_when_it_is_confirmed(site: Site) -> None:
    one = await site.pending(ReplayPolicy=policy(0))
    assert one.replays == ()
    await site.client.call("Publish", TopicArn=TOPIC, Message="m")
    found = await site.confirm(one)
    assert [(each.starts, each.until) for each in found.replays] == [((0,), (1,))]


async def test_webhooks_of_queues_are_not_listed(site: Site) -> None:
    one = await site.pending()
    other = msgspec.structs.replace(one, id=f"f{one.id[1:]}", source_arn=QUEUE, webhook="{}")
    await site.rig.subscriptions.create(msgspec.structs.replace(other, endpoint="https://h/"))
    root = await site.client.call("ListSubscriptions")
    assert [each.findtext("Endpoint") for each in root.iter("member")] == [URL]
