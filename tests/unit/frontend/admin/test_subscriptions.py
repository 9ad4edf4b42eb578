"""Subscriptions by the admin API, over a real store, key ring, catalog and policies. The broker
knows how long its logs are, and answers for the home of a subscription."""

import json
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.harness.served import Served

from penstock.frontend.admin.api import Noted, entry_of, subject_of
from penstock.frontend.admin.ports import PushPorts
from penstock.frontend.admin.request import Call
from penstock.metadata.sqlite import SqliteStore
from penstock.metadata.subscriptions import StoredSubscriptions
from penstock.model.acls import Acl, Operation, PatternType, Permission, ResourceType
from penstock.model.calls import (
    Ends,
    FindTime,
    MaxTimestamp,
    PushOne,
    ReadBookmark,
    ReadPushStatus,
    Stats,
)
from penstock.model.errors import Overloaded
from penstock.model.identity import Caller, User
from penstock.model.ports import LATEST, PushReply, PushStatus, StreamEnds
from penstock.model.subscription import (
    REPLAYS_MAX,
    Replay,
    ReplayState,
    Subscription,
    SubscriptionState,
    WebhookPermission,
    home_partition,
    new_id,
    share_group,
)
from penstock.model.topic import Kind, QueueStats, SnsTopic, Topic
from penstock.node.keys.keyring import MasterKeyRing
from penstock.wire.webhooks.settings import Secrets, WebhookSettings

from .conftest import ACME, Office
from .test_api import ACCOUNT, REGION

URL = "https://example.com/hook"
BODIES: dict[str, dict[str, Any]] = {
    "test": {"body": "x"},
    "replay": {"earliest": True},
    "redeliver": {"partition": 0, "offset": 9},
}
START, END = 5, 20  # of every partition


class Logs(Served):
    """Every partition has the offsets from START to END, one a millisecond."""

    def __init__(self) -> None:
        self.pushed: list[PushOne] = []
        self.asked: list[ReadPushStatus] = []
        self.shares: dict[str, Topic] = {}
        self.counts: dict[str, QueueStats] = {}
        self.is_away = False
        self.newest: dict[int, tuple[int, int]] = {}
        self.end = END

    def find_share(self, source: Topic, group: str) -> Topic | None:
        return self.shares.get(group)

    async def ends(self, call: Ends) -> StreamEnds:
        return StreamEnds(min(START, self.end), self.end, self.end)

    async def find_time(self, call: FindTime) -> tuple[int, int]:
        at = max(call.timestamp_ms, START)
        return (at, at) if at < self.end else (-1, -1)

    async def max_timestamp(self, call: MaxTimestamp) -> tuple[int, int]:
        return self.newest.get(call.partition, (-1, -1))

    async def read_bookmark(self, call: ReadBookmark) -> int:
        return END - 2

    async def stats(self, call: Stats) -> QueueStats:
        return self.counts[call.topic.topic_id]

    async def read_push_status(self, call: ReadPushStatus) -> PushStatus:
        self.asked.append(call)
        if self.is_away:
            raise Overloaded("The node is away.")
        return PushStatus(limit=4, failing_since_ms=7, reason="refused")

    async def push_one(self, call: PushOne) -> PushReply:
        self.pushed.append(call)
        return PushReply(status=204, duration_ms=12, body="ok")


class Hub:
    def __init__(self, office: Office, subscriptions: StoredSubscriptions) -> None:
        self.office, self.subscriptions = office, subscriptions
        self.ring = MasterKeyRing(bytes(32))
        self.logs = Logs()
        self.context = office.api._context
        self.context.broker = self.logs
        self.sent: list[Any] = []
        self.context.push = PushPorts(
            subscriptions=subscriptions,
            ring=self.ring,
            entropy=os.urandom,
            find_share=self.logs.find_share,
            deliveries=self._deliveries,
        )
        self.ok, self.no = office.ok, office.no

    async def _deliveries(self, one: Subscription, *, count: int) -> Sequence[Any]:
        return [{"subscription": one.id, "outcome": "delivered"}] * min(count, 2)

    async def topic(self, name: str, kind: Kind, *, account: str = ACCOUNT, **more: Any) -> Topic:
        fields: dict[str, Any] = {"partition_count": 3, **more}
        return await self.office.catalog.create(
            Topic(
                topic_id=f"id-{account}-{name}",
                account=account,
                region=REGION,
                name=name,
                kind=kind,
                created_at_ms=1,
                modified_at_ms=1,
                receipt_key=b"k",
                **fields,
            )
        )

    async def webhook(self, source: str, *, who: str = "root", **more: Any) -> Any:
        body = {"source": source, "endpoint": URL, **more}
        return await self.ok(who, "POST", "subscriptions", body)

    def stored(self, subscription_id: str) -> tuple[Subscription, WebhookSettings, Secrets]:
        one = self.subscriptions.find(subscription_id)
        assert one is not None
        packed = self.ring.unwrap(one.secrets, context=one.secrets_context)
        settings = msgspec.json.decode(one.webhook, type=WebhookSettings)
        return one, settings, Secrets.unpack(packed)

    async def subscribe(self, topic: Topic, protocol: str, endpoint: str, **more: Any) -> str:
        """As an SNS client does."""
        found = new_id(topic.topic_id, protocol, endpoint, random=os.urandom(8))
        one = Subscription(
            id=found,
            topic_id=topic.topic_id,
            source_arn=topic.sns_arn or topic.arn,
            account=topic.account,
            region=REGION,
            protocol=protocol,
            endpoint=endpoint,
            created_at_ms=self.office.clock.now_ms,
            **more,
        )
        await self.subscriptions.create(one)
        return found


@pytest.fixture
async def hub(office: Office, tmp_path: Path) -> AsyncIterator[Hub]:
    store = await SqliteStore.open(tmp_path / "subscriptions.db")
    subscriptions = StoredSubscriptions(store, office.identities, own_account=ACCOUNT)
    await subscriptions.start()
    yield Hub(office, subscriptions)
    await subscriptions.stop()
    await store.close()


# ── Creation ─────────────────────────────────────────────────────────────────────────────────


async def test_a_webhook_is_confirmed_at_once_and_its_secret_is_shown_once(hub: Hub) -> None:
    topic = await hub.topic("orders", Kind.STREAM)
    made = await hub.webhook("orders", settings={"timeout_ms": 2_000})
    one, settings, secrets = hub.stored(made["id"])
    assert secrets.signing.reveal() == made["secret"]
    assert made["secret"].startswith("whsec_")
    assert (one.state, one.paused) == (SubscriptionState.CONFIRMED, None)
    assert one.start_offsets == (END, END, END)
    assert (one.topic_id, one.source_arn) == (topic.topic_id, topic.arn)
    assert (one.protocol, one.endpoint) == ("webhook", URL)
    assert settings.timeout_ms == 2_000
    shown = await hub.ok("root", "GET", f"subscriptions/{one.id}")
    assert made["secret"] not in json.dumps(shown)
    assert shown["settings"]["secret"] == "****"
    assert shown["source"] == "orders"
    assert shown["status"]["limit"] == 4
    (asked,) = hub.logs.asked
    assert (asked.partition, asked.subscription_id) == (home_partition(one), one.id)


async def test_a_webhook_may_begin_with_the_first_record_and_paused(hub: Hub) -> None:
    await hub.topic("orders", Kind.STREAM)
    given = "whsec_" + "QUFB" * 8
    made = await hub.webhook(
        "orders", start="earliest", paused=True, settings={"secret": given, "format": "standard"}
    )
    assert "secret" not in made, "the caller has it"
    one, _, secrets = hub.stored(made["id"])
    assert one.start_offsets == (START, START, START)
    assert one.paused == "paused by an operator"
    assert secrets.signing.reveal() == given


async def test_an_endpoint_has_one_webhook_of_a_source_however_it_is_written(hub: Hub) -> None:
    await hub.topic("orders", Kind.STREAM)
    made = await hub.webhook("orders")
    same = {"source": "orders", "endpoint": "HTTPS://Example.com:443/hook"}
    text = await hub.no(409, "root", "POST", "subscriptions", same)
    assert made["id"] in text
    other = {"source": "orders", "endpoint": "https://example.com/other"}
    assert (await hub.ok("root", "POST", "subscriptions", other))["id"] != made["id"]


async def test_a_source_is_found_by_name_and_by_arn(hub: Hub) -> None:
    queue = await hub.topic("orders", Kind.STANDARD)
    sns = SnsTopic("orders", 1)
    topic = await hub.topic("sns.orders", Kind.STREAM, sns=sns)
    alone = await hub.topic("sns.alone", Kind.STREAM, sns=SnsTopic("alone", 1))
    assert topic.sns_arn is not None
    for source, wanted in (
        ("orders", queue),
        (queue.arn, queue),
        (topic.sns_arn, topic),
        ("sns.orders", topic),
        ("alone", alone),
    ):
        endpoint = f"http://example.com/{len(hub.subscriptions)}"
        made = await hub.webhook(source, endpoint=endpoint)
        assert hub.stored(made["id"])[0].topic_id == wanted.topic_id, source
        assert made["source_arn"] == (wanted.sns_arn or wanted.arn)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("jobs:group", "jobs:group is a share; create the webhook on jobs instead."),
        ("__usage", "__usage is an internal topic; it cannot have webhooks."),
        ("compact", "compact is a compacted topic; it cannot have webhooks."),
        ("wide", "wide has 1,001 partitions; a topic with webhooks can have at most 1,000."),
    ],
)
async def test_a_source_that_cannot_be_sent_is_refused(hub: Hub, source: str, text: str) -> None:
    await hub.topic("jobs:group", Kind.STANDARD, source_id="x")
    await hub.topic("__usage", Kind.STREAM)
    await hub.topic("compact", Kind.STREAM, configs={"cleanup.policy": "compact"})
    await hub.topic("wide", Kind.STREAM, partition_count=1_001)
    body = {"source": source, "endpoint": URL}
    assert await hub.no(400, "root", "POST", "subscriptions", body) == text
    assert len(hub.subscriptions) == 0


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"endpoint": "ftp://x/"}, "The URL must begin with http:// or https://."),
        (
            {"endpoint": "http://a:b@x/"},
            "The URL must not contain a password: set auth instead.",
        ),
        (
            {"settings": {"mode": "consume"}},
            "mode consume is for queues; orders is a topic: use tap.",
        ),
        (
            {"source": "jobs", "settings": {"mode": "consume", "ordered": "group"}},
            "ordered needs mode tap, because jobs is not a FIFO queue.",
        ),
        ({"settings": {"dead_letter": "none"}}, "dead_letter: this tenant has no queue none."),
        (
            {"settings": {"dead_letter": f"arn:aws:sqs:{REGION}:{ACME}:dead"}},
            f"dead_letter: this tenant has no queue arn:aws:sqs:{REGION}:{ACME}:dead.",
        ),
        (
            {"source": "jobs", "settings": {"dead_letter": "jobs"}},
            "dead_letter cannot be the source of the webhook.",
        ),
        (
            {"settings": {"dead_letter": "dead.fifo"}},
            "dead_letter cannot be a FIFO queue, because orders is not FIFO.",
        ),
        (
            {"settings": {"filter": '{"a": []}'}},
            "filter: Empty arrays are not allowed",
        ),
        ({"settings": {"url": 1}}, None),
        ({"settings": []}, "The settings must be a JSON object, not a list."),
        ({"settings": {"ca": "x" * 400_000}}, None),
        ({"start": "tomorrow"}, None),
        ({"colour": "red"}, None),
    ],
)
async def test_invalid_webhooks_are_refused(
    hub: Hub, more: dict[str, Any], text: str | None
) -> None:
    await hub.topic("orders", Kind.STREAM)
    await hub.topic("jobs", Kind.STANDARD)
    await hub.topic("dead.fifo", Kind.FIFO)
    await hub.topic("dead", Kind.STANDARD, account=ACME)
    body = {"source": "orders", "endpoint": URL, **more}
    found = await hub.no(400, "root", "POST", "subscriptions", body)
    assert text is None or found == text
    assert len(hub.subscriptions) == 0


async def test_messages_of_a_fifo_source_are_always_sent_in_order(hub: Hub) -> None:
    await hub.topic("jobs.fifo", Kind.FIFO)
    await hub.topic("dead.fifo", Kind.FIFO)
    settings = {"mode": "consume", "ordered": "none", "dead_letter": "dead.fifo"}
    made = await hub.webhook("jobs.fifo", settings=settings)
    assert hub.stored(made["id"])[1].ordered == "group"
    await hub.ok("root", "PATCH", f"subscriptions/{made['id']}", {"ordered": "none"})
    assert hub.stored(made["id"])[1].ordered == "group"


async def test_a_source_that_does_not_exist_is_404(hub: Hub) -> None:
    for source in ("gone", f"arn:aws:sns:{REGION}:{ACCOUNT}:gone", "arn:", "x" * 5_000):
        body = {"source": source, "endpoint": URL}
        assert "There is no queue or topic" in await hub.no(
            404, "root", "POST", "subscriptions", body
        )
    hub.context.push = None
    assert "does not store" in await hub.no(404, "root", "GET", "subscriptions")


# ── Changes ──────────────────────────────────────────────────────────────────────────────────


async def test_settings_that_were_read_can_be_edited_and_sent_back(hub: Hub) -> None:
    await hub.topic("orders", Kind.STREAM)
    auth = {"type": "bearer", "token": "t0ken"}
    made = await hub.webhook("orders", settings={"auth": auth})
    path = f"subscriptions/{made['id']}"
    settings = (await hub.ok("root", "GET", path))["settings"]
    assert settings["auth"] == {"type": "bearer", "token": "****"}
    settings["timeout_ms"] = 1_000
    changed = await hub.ok("root", "PATCH", path, settings)
    assert changed["settings"] == settings
    _, stored, secrets = hub.stored(made["id"])
    assert stored.timeout_ms == 1_000
    assert secrets.signing.reveal() == made["secret"]
    assert secrets.auth is not None
    assert secrets.auth.reveal() == "t0ken"
    assert "at most 384" not in await hub.no(400, "root", "PATCH", path, {"timeout_ms": 1})
    assert "mode cannot be changed" in await hub.no(400, "root", "PATCH", path, {"ordered": "key"})
    assert "not JSON" in await hub.no(400, "root", "PATCH", path, b"{")


async def test_mode_cannot_be_changed(hub: Hub) -> None:
    await hub.topic("jobs", Kind.STANDARD)
    made = await hub.webhook("jobs")
    path = f"subscriptions/{made['id']}"
    assert "mode cannot" in await hub.no(400, "root", "PATCH", path, {"mode": "consume"})
    assert hub.stored(made["id"])[1].mode == "tap"


async def test_settings_can_be_changed_after_the_dead_letter_queue_was_deleted(hub: Hub) -> None:
    await hub.topic("orders", Kind.STREAM)
    await hub.topic("dead", Kind.STANDARD)
    made = await hub.webhook("orders", settings={"dead_letter": "dead"})
    path = f"subscriptions/{made['id']}"
    await hub.office.catalog.delete(ACCOUNT, REGION, "dead", now_ms=1)
    changed = await hub.ok("root", "PATCH", path, {"dead_letter": "dead", "timeout_ms": 1_000})
    assert changed["settings"]["timeout_ms"] == 1_000
    assert "no queue other" in await hub.no(400, "root", "PATCH", path, {"dead_letter": "other"})


async def test_a_rotated_secret_signs_beside_the_old_one(hub: Hub) -> None:
    await hub.topic("orders", Kind.STREAM)
    made = await hub.webhook("orders")
    rotated = await hub.ok("root", "POST", f"subscriptions/{made['id']}/rotate", {})
    now_ms = hub.office.clock.now_ms
    assert rotated["old_secret_ends_at_ms"] == now_ms + 24 * 3_600_000
    _, _, secrets = hub.stored(made["id"])
    assert secrets.signing_at(now_ms) == (rotated["secret"], made["secret"])
    assert secrets.signing_at(rotated["old_secret_ends_at_ms"]) == (rotated["secret"],)


async def test_pause_resume_and_delete(hub: Hub) -> None:
    await hub.topic("orders", Kind.STREAM)
    one = (await hub.webhook("orders"))["id"]
    path = f"subscriptions/{one}"
    assert (await hub.ok("root", "POST", f"{path}/pause", {}))["paused"] == "paused by an operator"
    paused = await hub.ok("root", "POST", f"{path}/pause", {"reason": "upgrade"})
    assert paused["paused"] == hub.stored(one)[0].paused == "upgrade"
    assert (await hub.ok("root", "POST", f"{path}/pause", {"reason": ""}))["paused"]
    assert (await hub.ok("root", "POST", f"{path}/resume", {}))["paused"] is None
    assert hub.stored(one)[0].paused is None
    await hub.no(400, "root", "POST", f"{path}/pause", {"reason": "x" * 10_000})
    assert (await hub.ok("root", "DELETE", path))["deleted"]
    assert hub.subscriptions.find(one) is None
    for method, rest in (("GET", ""), ("DELETE", ""), ("POST", "/pause"), ("POST", "/rotate")):
        assert f"no subscription {one}" in await hub.no(404, "root", method, path + rest, {})


# ── Permission ───────────────────────────────────────────────────────────────────────────────


async def refuse(hub: Hub, one: str, reason: str) -> None:
    """As the home does."""
    said = WebhookPermission(False, reason=reason)
    await hub.subscriptions.change(one, lambda now: replace(now, permission=said))


async def test_a_webhook_that_must_ask_is_pending_and_can_ask_again(hub: Hub) -> None:
    await hub.topic("jobs", Kind.STANDARD)
    made = await hub.webhook("jobs", start="earliest", settings={"verify": "cloudevents"})
    assert (made["state"], made["refusal"], made["confirmed_at_ms"]) == ("pending", None, 0)
    found, path = hub.stored(made["id"])[0], f"subscriptions/{made['id']}"
    assert found.needs_permission
    assert found.start_offsets == (START,) * 3, "it gets these after the permission"
    await refuse(hub, made["id"], "status 405")
    shown = await hub.ok("root", "GET", path)
    assert (shown["state"], shown["refusal"], shown["lag"]) == ("pending", "status 405", None)
    assert "not confirmed" in await hub.no(409, "root", "POST", f"{path}/test", {"body": "x"})
    again = await hub.ok("root", "POST", f"{path}/confirm", {})
    assert (again["state"], again["refusal"]) == ("pending", None), "only its endpoint permits it"
    assert hub.stored(made["id"])[0] == found
    await refuse(hub, made["id"], "status 401")
    auth = {"type": "bearer", "token": "right"}
    changed = await hub.ok("root", "PATCH", path, {"auth": auth})
    assert (changed["state"], changed["refusal"]) == ("pending", None)
    assert hub.stored(made["id"])[0].needs_permission


async def test_a_change_of_verify_asks_and_ends_asking(hub: Hub) -> None:
    await hub.topic("jobs", Kind.STANDARD)
    made = await hub.webhook("jobs")
    before, path = hub.stored(made["id"])[0], f"subscriptions/{made['id']}"
    assert (await hub.ok("root", "PATCH", path, {"timeout_ms": 2_000}))["state"] == "confirmed"
    changed = await hub.ok("root", "PATCH", path, {"verify": "cloudevents"})
    assert changed["state"] == "pending"
    assert hub.stored(made["id"])[0].start_offsets == before.start_offsets
    said = WebhookPermission(True, 120, origin="here.example")
    given = {"permission": said, "state": SubscriptionState.CONFIRMED}
    await hub.subscriptions.change(made["id"], lambda now: replace(now, **given))
    shown = await hub.ok("root", "PATCH", path, {"timeout_ms": 3_000, "verify": "cloudevents"})
    assert (shown["state"], shown["allowed_per_minute"]) == ("confirmed", 120)
    assert (await hub.ok("root", "POST", f"{path}/confirm", {}))["state"] == "confirmed"
    shown = await hub.ok("root", "PATCH", path, {"verify": "none"})
    assert (shown["state"], shown["allowed_per_minute"]) == ("confirmed", None)
    assert hub.stored(made["id"])[0].permission is None


# ── SNS subscriptions ────────────────────────────────────────────────────────────────────────


async def test_an_operator_confirms_a_pending_subscription(hub: Hub) -> None:
    topic = await hub.topic("sns.news", Kind.STREAM, sns=SnsTopic("news", 1))
    one = await hub.subscribe(topic, "https", URL)
    path = f"subscriptions/{one}"
    shown = await hub.ok("root", "GET", path)
    assert (shown["state"], shown["status"], shown["lag"]) == ("pending", None, None)
    assert "not confirmed" in await hub.no(409, "root", "POST", f"{path}/test", {"body": "x"})
    assert (await hub.ok("root", "POST", f"{path}/confirm", {}))["state"] == "confirmed"
    found = hub.subscriptions.find(one)
    assert found is not None
    assert (found.start_offsets, found.was_authenticated) == ((END,) * 3, True)
    hub.logs.end += 5
    await hub.ok("root", "POST", f"{path}/confirm", {})
    assert hub.subscriptions.find(one) == found
    shown = await hub.ok("root", "GET", path)
    assert (shown["attributes"], shown["source"], shown["lag"]) == ({}, "news", 15)


async def test_a_queue_of_a_topic_is_shown_and_sends_no_requests(hub: Hub) -> None:
    topic = await hub.topic("sns.news", Kind.STREAM, sns=SnsTopic("news", 1))
    arn = f"arn:aws:sqs:{REGION}:{ACCOUNT}:jobs"
    more = {"state": SubscriptionState.CONFIRMED, "start_offsets": (0, 0, END)}
    path = f"subscriptions/{await hub.subscribe(topic, 'sqs', arn, **more)}"
    shown = await hub.ok("root", "GET", path)
    assert (shown["status"], shown["lag"]) == (None, 4), "two partitions are two records behind"
    for call in BODIES:
        text = await hub.no(400, "root", "POST", f"{path}/{call}", BODIES[call])
        assert text == "A subscription of the protocol sqs sends no HTTP requests."
    assert "SetSubscriptionAttributes" in await hub.no(400, "root", "PATCH", path, {})
    await hub.no(400, "root", "POST", f"{path}/rotate", {})


# ── Lists, lag and status ────────────────────────────────────────────────────────────────────


async def test_lists_come_in_pages_by_tenant_and_by_source(hub: Hub) -> None:
    await hub.topic("orders", Kind.STREAM)
    await hub.topic("jobs", Kind.STANDARD)
    made = set()
    for number in range(5):
        endpoint = f"https://example.com/{number}"
        made.add((await hub.webhook("orders", endpoint=endpoint))["id"])
    other = (await hub.webhook("jobs"))["id"]
    found: list[str] = []
    after = ""
    for _ in range(3):
        page = await hub.ok("root", "GET", f"subscriptions?source=orders&limit=2&after={after}")
        found += [row["id"] for row in page["subscriptions"]]
        after = page["next"]
    assert after is None
    assert found == sorted(made)
    everything = await hub.ok("root", "GET", "subscriptions")
    assert {row["id"] for row in everything["subscriptions"]} == {*made, other}
    assert "status" not in everything["subscriptions"][0]
    page = await hub.ok("root", "GET", "subscriptions?status=true&limit=2")
    assert [row["status"]["reason"] for row in page["subscriptions"]] == ["refused"] * 2
    await hub.no(400, "root", "GET", "subscriptions?status=yes")
    await hub.no(400, "root", "GET", "subscriptions?status=true&limit=101")
    assert "secret" not in json.dumps(everything)


async def test_the_lag_is_that_of_the_share_or_of_the_consumed_queue(hub: Hub) -> None:
    topic = await hub.topic("orders", Kind.STREAM)
    await hub.topic("jobs", Kind.STANDARD)
    tap = (await hub.webhook("orders"))["id"]
    consumer = (await hub.webhook("jobs", settings={"mode": "consume"}))["id"]
    hub.logs.end += 2
    assert (await hub.ok("root", "GET", f"subscriptions/{tap}"))["lag"] == 6, "not opened yet"
    one = hub.subscriptions.find(tap)
    assert one is not None
    hub.logs.shares[share_group(one)] = msgspec.structs.replace(topic, topic_id="share")
    oldest = hub.office.clock.now_ms - 1_500
    hub.logs.counts["share"] = QueueStats(2, 1, 1, oldest_sent_at_ms=oldest)
    hub.logs.counts[f"id-{ACCOUNT}-jobs"] = QueueStats(9)
    shown = await hub.ok("root", "GET", f"subscriptions/{tap}")
    assert (shown["lag"], shown["oldest_age_ms"]) == (4, 1_500)
    shown = await hub.ok("root", "GET", f"subscriptions/{consumer}")
    assert (shown["lag"], shown["oldest_age_ms"]) == (9, None)


async def test_a_subscription_is_shown_while_its_home_is_away(hub: Hub) -> None:
    await hub.topic("orders", Kind.STREAM)
    one = (await hub.webhook("orders"))["id"]
    hub.logs.is_away = True
    shown = await hub.ok("root", "GET", f"subscriptions/{one}")
    assert (shown["status"], shown["unreachable"]) == (None, "The node is away.")
    assert shown["settings"]["format"] == "raw"


# ── Test, redelivery, replay, deliveries ─────────────────────────────────────────────────────


async def test_a_test_sends_a_body_or_the_newest_record(hub: Hub) -> None:
    await hub.topic("orders", Kind.STREAM)
    path = f"subscriptions/{(await hub.webhook('orders'))['id']}/test"
    reply = await hub.ok("root", "POST", path, {"body": "grüezi"})
    assert reply["is_delivered"] is True
    assert (reply["status"], reply["duration_ms"], reply["body"]) == (204, 12, "ok")
    (sent,) = hub.logs.pushed
    assert sent.message is not None
    assert (sent.message.body, sent.is_test) == ("grüezi".encode(), True)
    hub.logs.newest = {0: (9, 100), 1: (7, 300), 2: (8, 200)}
    await hub.ok("root", "POST", path, {})
    sent = hub.logs.pushed[-1]
    assert (sent.message, sent.record_partition, sent.offset) == (None, 1, LATEST)
    hub.logs.newest = {}
    await hub.ok("root", "POST", path, {})
    assert hub.logs.pushed[-1].record_partition == 0
    hub.logs.end = 0
    text = await hub.no(400, "root", "POST", path, {})
    assert text == "orders has no messages: give the body of a test message."


async def test_one_record_is_sent_again(hub: Hub) -> None:
    await hub.topic("orders", Kind.STREAM)
    path = f"subscriptions/{(await hub.webhook('orders'))['id']}/redeliver"
    await hub.ok("root", "POST", path, {"partition": 2, "offset": START})
    (sent,) = hub.logs.pushed
    assert (sent.record_partition, sent.offset, sent.is_test) == (2, START, False)
    for offset in (START - 1, END):
        text = await hub.no(400, "root", "POST", path, {"partition": 2, "offset": offset})
        assert text == f"Partition 2 has the offsets from 5 to 19, not {offset}."
    text = await hub.no(400, "root", "POST", path, {"partition": 3, "offset": 9})
    assert text == "orders has the partitions 0 to 2, not 3."
    await hub.no(400, "root", "POST", path, {"partition": -1, "offset": 9})
    assert len(hub.logs.pushed) == 1


@pytest.mark.parametrize(
    ("body", "starts", "until"),
    [
        ({"earliest": True}, [5, 5, 5], [20, 20, 20]),
        ({"start_ms": 12}, [12, 12, 12], [20, 20, 20]),
        ({"start_ms": 1, "until_ms": 9}, [5, 5, 5], [9, 9, 9]),
        ({"start_offsets": {"1": 0}}, [20, 5, 20], [20, 20, 20]),
        (
            {"start_offsets": {"0": 7, "2": 9}, "until_offsets": {"0": 8, "2": 1_000}},
            [7, 20, 9],
            [8, 20, 20],
        ),
    ],
)
async def test_a_replay_is_a_range_within_what_is_there(
    hub: Hub, body: dict[str, Any], starts: list[int], until: list[int]
) -> None:
    await hub.topic("orders", Kind.STREAM)
    one = (await hub.webhook("orders"))["id"]
    made = await hub.ok("root", "POST", f"subscriptions/{one}/replay", body)
    assert (made["replay"]["starts"], made["replay"]["until"]) == (starts, until)
    (stored,) = hub.stored(one)[0].replays
    assert (list(stored.starts), list(stored.until), stored.number) == (starts, until, 1)
    shown = await hub.ok("root", "GET", f"subscriptions/{one}")
    assert shown["replays"] == [made["replay"]]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({}, "Give one of earliest, start_ms and start_offsets."),
        ({"earliest": True, "start_ms": 0}, "Give one of earliest, start_ms and start_offsets."),
        (
            {"earliest": True, "until_ms": 9, "until_offsets": {}},
            "Give until_ms or until_offsets, not both.",
        ),
        ({"start_ms": 99}, "The range has no messages."),
        ({"start_ms": 10, "until_ms": 9}, "The range has no messages."),
        ({"start_offsets": {"3": 1}}, "orders has the partitions 0 to 2, not 3."),
        ({"start_offsets": {"one": 1}}, "A partition must be a number."),
        ({"start_ms": -1}, None),
        ({"start_offsets": {"0": 2**70}}, None),
    ],
)
async def test_an_invalid_replay_is_refused(
    hub: Hub, body: dict[str, Any], text: str | None
) -> None:
    await hub.topic("orders", Kind.STREAM)
    one = (await hub.webhook("orders"))["id"]
    found = await hub.no(400, "root", "POST", f"subscriptions/{one}/replay", body)
    assert text is None or found == text
    assert hub.stored(one)[0].replays == ()


async def test_completed_replays_make_room_for_new_ones(hub: Hub) -> None:
    await hub.topic("orders", Kind.STREAM)
    one = (await hub.webhook("orders"))["id"]
    path = f"subscriptions/{one}/replay"
    for _ in range(REPLAYS_MAX):
        await hub.ok("root", "POST", path, {"earliest": True})
    assert "10 replays" in await hub.no(409, "root", "POST", path, {"earliest": True})

    def complete(current: Subscription) -> Subscription:
        def ended(each: Replay) -> Replay:
            state = ReplayState.COMPLETED if each.number == 2 else each.state
            return msgspec.structs.replace(each, state=state)

        return msgspec.structs.replace(current, replays=tuple(map(ended, current.replays)))

    await hub.subscriptions.change(one, complete)
    made = await hub.ok("root", "POST", path, {"earliest": True})
    assert made["replay"]["number"] == 11
    assert [each.number for each in hub.stored(one)[0].replays] == [1, *range(3, 12)]


async def test_the_newest_deliveries_come_from_their_port(hub: Hub) -> None:
    await hub.topic("orders", Kind.STREAM)
    one = (await hub.webhook("orders"))["id"]
    path = f"subscriptions/{one}/deliveries"
    row = {"subscription": one, "outcome": "delivered"}
    assert await hub.ok("root", "GET", path) == {"deliveries": [row, row]}
    assert await hub.ok("root", "GET", f"{path}?limit=1") == {"deliveries": [row]}
    await hub.no(400, "root", "GET", f"{path}?limit=1001")
    assert hub.context.push is not None
    hub.context.push = PushPorts(
        subscriptions=hub.subscriptions,
        ring=hub.ring,
        entropy=os.urandom,
        find_share=hub.logs.find_share,
    )
    assert "does not record" in await hub.no(404, "root", "GET", path)


# ── Rights ───────────────────────────────────────────────────────────────────────────────────


def policy(*rows: tuple[str, str]) -> str:
    statements = [{"Effect": "Allow", "Action": each, "Resource": on} for each, on in rows]
    return json.dumps({"Version": "2012-10-17", "Statement": statements})


async def hire(hub: Hub, name: str, *rows: tuple[str, str]) -> None:
    identities = hub.office.identities
    await identities.create_user(User(ACME, name, 1, policies={"p": policy(*rows)}))
    made = await identities.create_key(ACME, name, now_ms=1)
    hub.office.secrets[name] = (made.key.key_id, made.secret)


async def test_tenants_have_their_own_subscriptions_and_see_no_others(hub: Hub) -> None:
    await hub.topic("orders", Kind.STREAM)
    await hub.topic("orders", Kind.STREAM, account=ACME)
    own = (await hub.webhook("orders", who="ann"))["id"]
    other = await hub.webhook("orders")
    assert hub.stored(own)[0].account == ACME
    listed = (await hub.ok("ann", "GET", "subscriptions"))["subscriptions"]
    assert [row["id"] for row in listed] == [own]
    assert "own tenant" in await hub.no(403, "ann", "GET", f"subscriptions?account={ACCOUNT}")
    body = {"source": other["source_arn"], "endpoint": URL}
    assert "There is no queue" in await hub.no(404, "ann", "POST", "subscriptions", body)
    path = f"subscriptions/{other['id']}"
    for method, rest in (("GET", ""), ("DELETE", ""), ("POST", "/pause"), ("POST", "/rotate")):
        text = await hub.no(404, "ann", method, path + rest, {})
        assert text == f"There is no subscription {other['id']}."
    assert hub.subscriptions.find(other["id"]) is not None
    assert (await hub.ok("root", "GET", f"subscriptions/{own}"))["account"] == ACME


ON_ALL = f"arn:penstock:admin:{REGION}:{ACME}:subscription/*"


async def test_each_action_needs_its_right(hub: Hub) -> None:
    await hub.topic("orders", Kind.STREAM, account=ACME)
    one = (await hub.webhook("orders", who="ann"))["id"]
    path = f"subscriptions/{one}"
    every = {
        "push:GetSubscription": [("GET", "subscriptions"), ("GET", path)],
        "push:SetSubscription": [
            ("PATCH", path),
            ("POST", f"{path}/pause"),
            ("POST", f"{path}/resume"),
            ("POST", f"{path}/rotate"),
            ("POST", f"{path}/confirm"),
        ],
        "push:Test": [("POST", f"{path}/test")],
        "push:Replay": [("POST", f"{path}/replay"), ("POST", f"{path}/redeliver")],
        "push:CreateSubscription": [("POST", "subscriptions")],
        "push:DeleteSubscription": [("DELETE", path)],
    }
    new = {"source": "orders", "endpoint": "http://example.com/2"}
    bodies = {**BODIES, "subscriptions": new}
    for number, action in enumerate(every):
        reader = f"user{number}"
        await hire(hub, reader, (action, ON_ALL), ("kafka:Read", "*"))
        for wanted, rows in every.items():
            for method, target in rows:
                body = bodies.get(target.rpartition("/")[2], {})
                if wanted == action:
                    await hub.ok(reader, method, target, body)
                else:
                    text = await hub.no(403, reader, method, target, body)
                    assert wanted in text


@pytest.mark.parametrize(
    ("source", "needed"),
    [
        ("queue", "sqs:ReceiveMessage"),
        ("stream", "kafka:Read"),
        ("news", "sns:Subscribe"),
    ],
)
async def test_who_may_not_read_the_source_gets_no_webhook(
    hub: Hub, source: str, needed: str
) -> None:
    await hub.topic("queue", Kind.STANDARD, account=ACME)
    await hub.topic("stream", Kind.STREAM, account=ACME)
    await hub.topic("sns.news", Kind.STREAM, account=ACME, sns=SnsTopic("news", 1))
    await hire(hub, "dan", ("push:*", ON_ALL))
    body = {"source": source, "endpoint": URL}
    assert needed in await hub.no(403, "dan", "POST", "subscriptions", body)
    one = (await hub.webhook(source, who="ann"))["id"]
    for method, rest, sent in (
        ("PATCH", "", {"timeout_ms": 1_000}),
        ("POST", "/replay", {"earliest": True}),
        ("POST", "/test", {}),
        ("POST", "/redeliver", {"partition": 0, "offset": 9}),
    ):
        assert needed in await hub.no(403, "dan", method, f"subscriptions/{one}{rest}", sent)
    await hire(hub, "eli", ("push:*", ON_ALL), (needed, "*"))
    endpoint = "https://example.com/eli"
    await hub.webhook(source, who="eli", endpoint=endpoint)


async def test_who_consumes_a_queue_needs_the_right_to_delete_from_it(hub: Hub) -> None:
    await hub.topic("queue", Kind.STANDARD, account=ACME)
    await hub.topic("dead", Kind.STANDARD, account=ACME)
    await hire(hub, "dan", ("push:*", ON_ALL), ("sqs:ReceiveMessage", "*"))
    settings: dict[str, Any] = {"mode": "consume"}
    body = {"source": "queue", "endpoint": URL, "settings": settings}
    assert "sqs:DeleteMessage" in await hub.no(403, "dan", "POST", "subscriptions", body)
    body["settings"] = {"dead_letter": "dead"}
    assert "sqs:SendMessage" in await hub.no(403, "dan", "POST", "subscriptions", body)
    await hire(hub, "eli", ("push:*", ON_ALL), ("sqs:*", "*"))
    await hub.webhook("queue", who="eli", settings={"mode": "consume", "dead_letter": "dead"})


async def test_access_rules_of_kafka_count_for_its_topics(hub: Hub) -> None:
    await hub.topic("stream", Kind.STREAM, account=ACME)
    await hire(hub, "dan", ("push:*", ON_ALL))

    def rule(permission: Permission) -> Acl:
        return Acl(
            ResourceType.TOPIC,
            "stream",
            PatternType.LITERAL,
            "User:dan",
            "*",
            Operation.READ,
            permission,
        )

    identities = hub.office.identities
    await identities.add_acls(ACME, [rule(Permission.ALLOW)])
    await hub.webhook("stream", who="dan")
    await identities.add_acls(ACME, [rule(Permission.DENY)])
    body = {"source": "stream", "endpoint": "http://example.com/2"}
    assert "kafka:Read" in await hub.no(403, "dan", "POST", "subscriptions", body)


# ── Audit ────────────────────────────────────────────────────────────────────────────────────


def test_the_audit_trail_has_names_of_settings_and_no_secrets(office: Office) -> None:
    secret = "s3cret-value"
    auth = {"type": "header", "name": "x-key", "value": secret}
    settings = {"auth": auth, "secret": secret, "timeout_ms": 5}
    caller = Caller(ACME, "ann")
    api = ("api", "v1", "subscriptions")
    noted = Noted("push:CreateSubscription", "subscription")
    for path, body in (
        (api, {"source": "orders", "endpoint": URL, "settings": settings}),
        ((*api, "some-id"), settings),
        ((*api, "some-id", "test"), {"body": secret}),
        (api, {"source": "orders", "endpoint": f"http://a:{secret}@example.com/"}),
        (api, {"source": "orders", "endpoint": secret, "settings": [secret]}),
    ):
        call = Call(office.api._context, path, {}, json.dumps(body).encode(), caller=caller)
        subject = subject_of(call, noted)
        entry = entry_of(call, noted, subject, code="")
        assert secret not in str(entry), path
        if body is settings:
            assert entry.params["settings"] == ["auth", "secret", "timeout_ms"]
        failed = entry_of(call, noted, subject, code="invalid_request")
        assert not failed.params
        assert "some-id" not in failed.resource
