"""The admin API over a real catalog and a backend that keeps its records in lists."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.harness.served import Served

from penstock.frontend.admin import messages, queues
from penstock.frontend.admin.api import AdminApi
from penstock.frontend.admin.ports import Health
from penstock.frontend.admin.request import ConfigRow, Context, Info
from penstock.metadata.sqlite import SqliteStore
from penstock.metadata.topics.catalog import StoredCatalog
from penstock.model.calls import Peek, Stats
from penstock.model.errors import Damaged, DiskFull, PenstockError, Throttled, TopicNotFound
from penstock.model.message import Attribute, Message, Record
from penstock.model.ports import Peeked
from penstock.model.topic import Kind, PeekState, QueueStats, Redrive, Topic
from penstock.model.troubles import ROW_UNREADABLE
from penstock.net.http.exchange import HttpReply, HttpRequest
from penstock.telemetry.metrics import Meter

ACCOUNT = "000000000000"
REGION = "us-east-1"
SECRET = b"receipt-signing-key"


class ListBackend(Served):
    """The reading half of a backend over plain lists; the rest is not the admin API's to call."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, int], list[Peeked | None]] = {}  # None: acknowledged
        self.counts: dict[str, QueueStats] = {}
        self.failure: Exception | None = None

    def add(self, topic: Topic, message: Message, *, partition: int = 0, attempts: int = 0) -> None:
        records = self.records.setdefault((topic.topic_id, partition), [])
        state = PeekState.IN_FLIGHT if attempts else PeekState.VISIBLE
        record = Record(len(records), 2_000 + len(records), message)
        records.append(Peeked(partition, record, state, attempts))

    async def stats(self, call: Stats) -> QueueStats:
        topic = call.topic
        if self.failure is not None:
            raise self.failure
        if topic.topic_id not in self.counts:
            raise TopicNotFound(topic.name)
        return self.counts[topic.topic_id]

    async def peek(self, call: Peek) -> tuple[Sequence[Peeked], int]:
        start, count = call.start, call.count
        records = self.records.get((call.topic.topic_id, call.partition), [])
        if start == -1 or start >= len(records):
            return [], len(records)
        # A short look each time, as a log that is read in pieces gives it.
        window = records[start : start + count]
        return [one for one in window if one is not None], start + len(window)


class HandClock:
    """Moves only when a wait is slept through; runs a deed at each sleep, such as an append."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.deeds: list[Any] = []

    def wall_ms(self) -> int:
        return self.now_ms

    def mono_ms(self) -> int:
        return self.now_ms

    async def sleep(self, seconds: float) -> None:
        self.now_ms += int(seconds * 1_000)
        if self.deeds:
            self.deeds.pop(0)()
        await asyncio.sleep(0)


class World:
    def __init__(self, catalog: StoredCatalog) -> None:
        self.catalog = catalog
        self.backend = ListBackend()
        self.meter = Meter()
        self.health = Health()
        self.clock = HandClock()
        self.api = self.build()

    def build(self, token: str = "") -> AdminApi:
        return AdminApi(
            Context(
                broker=self.backend,
                catalog=self.catalog,
                meter=self.meter,
                health=self.health,
                clock=self.clock,
                sleep=self.clock.sleep,
                info=Info(
                    version="1.2.3",
                    node="n1",
                    mode="dev",
                    account=ACCOUNT,
                    region=REGION,
                    data="/var/lib/penstock",
                    started_at_ms=900_000,
                    endpoints={"sqs": "http://127.0.0.1:9324"},
                ),
                config=[ConfigRow("admin.token", "********", "env PENSTOCK_ADMIN__TOKEN")],
                everything=self.catalog,
            ),
            token=token,
        )

    async def topic(
        self, name: str, *, partitions: int = 1, target: Topic | None = None, **counts: int
    ) -> Topic:
        topic = Topic(
            topic_id=f"id-{name}",
            account=ACCOUNT,
            region=REGION,
            name=name,
            kind=Kind.FIFO if name.endswith(".fifo") else Kind.STANDARD,
            partition_count=partitions,
            created_at_ms=1_000,
            modified_at_ms=1_000,
            receipt_key=SECRET,
            tags={"team": "a"},
        )
        if target is not None:
            topic = topic.with_settings(now_ms=2_000, redrive=Redrive(target.arn, 3))
        self.backend.counts[topic.topic_id] = msgspec.convert(counts, QueueStats)
        return await self.catalog.create(topic)

    async def send(self, target: str, method: str = "GET", **headers: str) -> HttpReply:
        path, _, query = target.partition("?")
        request = HttpRequest(method, path, query, headers, b"", "127.0.0.1", "r1")
        return await self.api.handle(request)

    async def get(self, target: str, status: int = 200) -> Any:
        reply = await self.send(target)
        assert reply.status == status, reply.body
        assert reply.content_type == "application/json"
        return json.loads(reply.body)

    async def error(self, target: str, status: int) -> tuple[str, str]:
        error = (await self.get(target, status))["error"]
        return error["code"], error["message"]

    async def scrape(self, target: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        reply = await self.send(target)
        assert reply.status == 200
        assert reply.content_type.startswith("text/plain; version=0.0.4")
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(reply.body.decode())
            for sample in family.samples
        }


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    store = await SqliteStore.open(tmp_path / "metadata.db")
    catalog = StoredCatalog(store)
    await catalog.start()
    yield World(catalog)
    await catalog.stop()
    await store.close()


def text_message(body: str = "hello", **fields: Any) -> Message:
    return Message(message_id=bytes(range(16)), body=body.encode(), **fields)


# ── Probes ───────────────────────────────────────────────────────────────────────────────────


async def test_the_life_of_a_node_as_its_probes_tell_it(world: World) -> None:
    world.health.progress = lambda: (1, 4)
    assert await world.get("/healthz") == {"status": "alive"}
    assert (await world.get("/readyz", 503))["status"] == "starting"
    assert await world.get("/startupz", 503) == {"status": "starting", "percent": 25}
    world.health.ready()
    assert (await world.get("/readyz"))["status"] == "ready"
    assert (await world.get("/startupz"))["percent"] == 100
    row = "the row is unreadable"
    trouble = ROW_UNREADABLE.filled(topic="__groups", partition=3, offset=17, row=row)
    world.health.show([trouble])
    told = await world.get("/readyz", 503)
    assert told["status"] == "not_ready"
    (reason,) = told["reasons"]
    assert (reason["kind"], reason["is_blocking"]) == ("row_unreadable", True)
    assert "the row is unreadable" in reason["text"]
    assert "penstock coordinator skip __groups 3 17" in reason["do"]
    scraped = (await world.send("/metrics")).body.decode()
    assert 'penstock_trouble{kind="row_unreadable"} 1' in scraped
    assert 'penstock_trouble{kind="disk_full"} 0' in scraped
    assert (await world.send("/healthz")).status == 200
    world.health.drain()
    assert (await world.get("/readyz", 404))["status"] == "draining"
    assert (await world.send("/healthz")).status == 200


async def test_probes_ignore_what_load_balancers_append(world: World) -> None:
    assert (await world.send("/healthz?x=1&y")).status == 200
    assert (await world.send("/healthz/")).status == 200
    reply = await world.send("/healthz", "HEAD")
    assert (reply.status, reply.body) == (200, b"")


# ── The gate and errors ──────────────────────────────────────────────────────────────────────


async def test_what_is_not_there_is_404_and_what_is_only_read_is_405(world: World) -> None:
    for path in ("/", "/api", "/api/v1", "/api/v1/queues/", "/api/v1/queues/a/b", "/metrics/x"):
        reply = await world.send(path)
        expected = 200 if path == "/api/v1/queues/" else 404
        assert reply.status == expected, path
    reply = await world.send("/metrics", "POST")
    assert reply.status == 405
    assert ("allow", "GET, HEAD") in reply.headers


async def test_with_a_token_only_the_probes_stay_open(world: World) -> None:
    world.api = world.build(token="s3cret")
    assert (await world.send("/healthz")).status == 200
    for path in ("/metrics", "/api/v1/info", "/api/v1/queues"):
        assert (await world.send(path)).status == 401
        assert (await world.send(path, authorization="Bearer wrong")).status == 401
        assert (await world.send(path, authorization="Basic s3cret")).status == 401
        assert (await world.send(path, authorization="Bearer s3cret")).status == 200
        assert (await world.send(path, authorization="bearer s3cret")).status == 200
    assert (await world.send("/metrics", authorization="Bearer \udcff")).status == 401


@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [
        (DiskFull("full"), 507, "disk_full"),
        (Damaged("/data/x", 7, "bad checksum"), 500, "damaged"),
        (Throttled("later", retry_after_ms=1_500), 429, "throttled"),
        (PenstockError("odd"), 500, "failed"),
        (ZeroDivisionError("secret detail"), 500, "failed"),
    ],
)
async def test_failures_become_one_shape(
    world: World, failure: Exception, status: int, code: str
) -> None:
    await world.topic("a")
    world.backend.failure = failure
    reply = await world.send("/api/v1/queues/a")
    error = json.loads(reply.body)["error"]
    assert (reply.status, error["code"]) == (status, code)
    assert "secret detail" not in error["message"]
    if status == 429:
        assert ("retry-after", "2") in reply.headers


@pytest.mark.parametrize(
    "target",
    [
        "/api/v1/queues?prefx=a",
        "/api/v1/queues?limit=0",
        "/api/v1/queues?limit=x",
        "/api/v1/queues?limit=1&limit=2",
        "/api/v1/queues?after=abc",
        "/api/v1/queues?prefix=%ff",
        "/api/v1/info?x=1",
        "/metrics/objects?kind=galaxy",
        "/api/v1/queues?" + "&".join(f"p{n}=1" for n in range(50)),
    ],
)
async def test_malformed_questions_are_the_callers_mistake(world: World, target: str) -> None:
    await world.topic("a")
    code, message = await world.error(target, 400)
    assert code == "invalid_request"
    assert message


# ── Metrics ──────────────────────────────────────────────────────────────────────────────────


async def test_metrics_have_the_nodes_totals_and_no_queue_names(world: World) -> None:
    await world.topic("a", visible=3, in_flight=1, oldest_sent_at_ms=990_000, log_bytes=10, waits=2)
    await world.topic("b", visible=4, delayed=7, oldest_sent_at_ms=940_000, log_bytes=5)
    world.meter.sent(2, 50)
    samples = await world.scrape("/metrics")
    assert samples["penstock_queue_messages", frozenset({("state", "visible")})] == 7
    assert samples["penstock_queue_messages", frozenset({("state", "in_flight")})] == 1
    assert samples["penstock_queue_messages", frozenset({("state", "delayed")})] == 7
    assert samples["penstock_queue_oldest_message_age_seconds", frozenset()] == 60
    assert samples["penstock_queues", frozenset()] == 2
    assert samples["penstock_log_size_bytes", frozenset()] == 15
    assert samples["penstock_waits", frozenset()] == 2
    assert samples["penstock_messages_sent_total", frozenset()] == 2
    assert samples["penstock_ready", frozenset()] == 0
    assert not any("queue" in dict(labels) for _, labels in samples)


async def test_object_metrics_are_per_queue_and_by_prefix(world: World) -> None:
    await world.topic("orders-1", visible=3, sent=9, acked=6)
    await world.topic("other", visible=4)
    samples = await world.scrape("/metrics/objects?kind=queue&prefix=orders")
    labels = {("account", ACCOUNT), ("region", REGION), ("queue", "orders-1")}
    key = ("penstock_object_queue_messages", frozenset(labels | {("state", "visible")}))
    assert samples[key] == 3
    assert samples["penstock_object_queue_messages_deleted_total", frozenset(labels)] == 6
    assert {dict(labels)["queue"] for _, labels in samples} == {"orders-1"}
    assert len(await world.scrape("/metrics/objects?prefix=none")) == 0


async def test_too_many_objects_are_refused_instead_of_cut(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "OBJECTS_MAX", 1)
    await world.topic("a")
    await world.topic("b")
    assert "longer prefix" in (await world.error("/metrics/objects", 400))[1]
    assert await world.scrape("/metrics/objects?prefix=a")


async def test_a_queue_deleted_during_a_scrape_is_left_out(world: World) -> None:
    topic = await world.topic("a")
    await world.topic("b", visible=1)
    del world.backend.counts[topic.topic_id]
    samples = await world.scrape("/metrics")
    assert samples["penstock_queue_messages", frozenset({("state", "visible")})] == 1
    assert [q["name"] for q in (await world.get("/api/v1/queues"))["queues"]] == ["b"]


async def test_a_scrape_lets_other_work_run_between_queues(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "QUEUES_AT_ONCE", 2)
    for n in range(6):
        await world.topic(f"q{n}")
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counter = asyncio.create_task(count_turns())
    await world.scrape("/metrics")
    counter.cancel()
    assert turns >= 2


# ── Node ─────────────────────────────────────────────────────────────────────────────────────


async def test_info_says_what_runs_and_how_it_is(world: World) -> None:
    await world.topic("a")
    world.health.ready()
    info = await world.get("/api/v1/info")
    assert info["version"] == "1.2.3"
    assert info["endpoints"] == {"sqs": "http://127.0.0.1:9324"}
    assert (info["uptime_ms"], info["queue_count"]) == (100_000, 1)
    assert (info["state"], info["is_ready"]) == ("ready", True)


async def test_config_shows_each_value_with_its_origin(world: World) -> None:
    assert (await world.get("/api/v1/config"))["settings"] == [
        {"key": "admin.token", "value": "********", "origin": "env PENSTOCK_ADMIN__TOKEN"}
    ]


# ── Queues ───────────────────────────────────────────────────────────────────────────────────


async def test_queues_show_their_counts_and_both_ends_of_a_redrive(world: World) -> None:
    dead = await world.topic("dead")
    source = await world.topic("orders", target=dead, visible=5, oldest_sent_at_ms=400_000)
    answer = await world.get("/api/v1/queues")
    by_name = {queue["name"]: queue for queue in answer["queues"]}
    assert list(by_name) == ["dead", "orders"]
    assert answer["next"] is None
    assert by_name["dead"]["sources"] == [source.arn]
    assert by_name["orders"]["dead_letter_target"] == dead.arn
    assert by_name["orders"]["attempts_max"] == 3
    stats = by_name["orders"]["stats"]
    assert (stats["visible"], stats["oldest_age_ms"]) == (5, 600_000)
    counts = {*QueueStats.__struct_fields__} - {"obstacles"}  # which only an explanation asks for
    assert set(stats) == counts | {"oldest_age_ms"}
    assert by_name["dead"]["stats"]["oldest_age_ms"] is None


async def test_queues_are_filtered_and_paged_without_loss(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a1", "a2", "a3", "b1"):
        await world.topic(name)

    async def names(query: str) -> tuple[list[str], str | None]:
        answer = await world.get(f"/api/v1/queues?{query}")
        return [queue["name"] for queue in answer["queues"]], answer["next"]

    assert await names("prefix=a") == (["a1", "a2", "a3"], None)
    assert await names(f"account={ACCOUNT}&region={REGION}&prefix=b") == (["b1"], None)
    assert await names("account=111111111111") == ([], None)
    assert await names("region=mars") == ([], None)
    monkeypatch.setattr(queues, "QUEUES_MAX", 3)
    found, after = await names("")
    assert found == ["a1", "a2", "a3"]
    assert await names(f"after={after}") == (["b1"], None)


async def test_one_queue_has_its_settings_and_tags_but_not_its_key(world: World) -> None:
    await world.topic("orders.fifo", visible=1)
    reply = await world.send("/api/v1/queues/orders.fifo")
    queue = json.loads(reply.body)
    assert queue["kind"] == "fifo"
    assert queue["settings"]["lease_ms"] == 30_000
    assert queue["settings"]["redrive"] is None
    assert queue["tags"] == {"team": "a"}
    listing = (await world.send("/api/v1/queues")).body
    for body in (reply.body, listing):
        assert SECRET not in body
        assert b"receipt" not in body


async def test_an_unknown_queue_is_404(world: World) -> None:
    await world.topic("a")
    assert await world.error("/api/v1/queues/b", 404) == (
        "queue_not_found",
        "The specified queue does not exist.",
    )
    assert (await world.error("/api/v1/queues/a?region=mars", 404))[0] == "queue_not_found"
    assert (await world.error("/api/v1/queues/b/messages", 404))[0] == "queue_not_found"
    assert (await world.send("/api/v1/queues/%61")).status == 200


# ── Messages ─────────────────────────────────────────────────────────────────────────────────


async def test_a_peek_shows_a_message_whole_and_its_state(world: World) -> None:
    topic = await world.topic("a")
    attributes = {
        "n": Attribute("Number.int", b"12"),
        "b": Attribute("Binary", b"\x00\xff"),
    }
    message = text_message("grüße\n", attributes=attributes, group="g", trace_header="t")
    world.backend.add(topic, message, attempts=2)
    answer = await world.get("/api/v1/queues/a/messages")
    assert answer == {
        "messages": [
            {
                "partition": 0,
                "offset": 0,
                "message_id": "00010203-0405-0607-0809-0a0b0c0d0e0f",
                "state": "in_flight",
                "attempts": 2,
                "sent_at_ms": 2_000,
                "appended_at_ms": 2_000,
                "size_bytes": 8 + len("nNumber.int12") + len("bBinary") + 2,
                "body": "grüße\n",
                "attributes": {
                    "n": {"data_type": "Number.int", "value": "12"},
                    "b": {"data_type": "Binary", "value_base64": "AP8="},
                },
                "group": "g",
                "trace_header": "t",
            }
        ],
        "next": {"0": 1},
    }


async def test_a_body_that_is_no_text_is_shown_in_base64(world: World) -> None:
    topic = await world.topic("a")
    world.backend.add(topic, Message(message_id=bytes(16), body=b"\xff\x00"))
    (message,) = (await world.get("/api/v1/queues/a/messages"))["messages"]
    assert message["body_base64"] == "/wA="
    assert "body" not in message


async def test_following_next_shows_every_message_once(world: World) -> None:
    topic = await world.topic("a", partitions=3)
    for n in range(47):
        world.backend.add(topic, text_message(str(n)), partition=n % 3)
    for place in (0, 4, 5, 6, 7, 8):  # a stretch that is already acknowledged
        world.backend.records[topic.topic_id, 1][place] = None
    seen: list[str] = []
    start = "begin"
    for _ in range(30):
        answer = await world.get(f"/api/v1/queues/a/messages?count=7&start={start}")
        assert len(answer["messages"]) <= 7
        seen += [message["body"] for message in answer["messages"]]
        start = ",".join(f"{p}:{offset}" for p, offset in answer["next"].items())
    gone = {str(place * 3 + 1) for place in (0, 4, 5, 6, 7, 8)}
    assert sorted(seen, key=int) == [str(n) for n in range(47) if str(n) not in gone]


async def test_a_busy_partition_does_not_hide_the_others(world: World) -> None:
    topic = await world.topic("a", partitions=2)
    for _ in range(100):
        world.backend.add(topic, text_message("busy"), partition=0)
    world.backend.add(topic, text_message("quiet"), partition=1)
    answer = await world.get("/api/v1/queues/a/messages?count=10")
    assert "quiet" in [message["body"] for message in answer["messages"]]


async def test_one_partition_and_an_offset_may_be_asked_for(world: World) -> None:
    topic = await world.topic("a", partitions=2)
    for n in range(5):
        world.backend.add(topic, text_message(str(n)), partition=1)
    answer = await world.get("/api/v1/queues/a/messages?partition=1&start=3")
    assert [message["body"] for message in answer["messages"]] == ["3", "4"]
    assert answer["next"] == {"1": 5}


async def test_the_end_is_an_offset_to_go_on_from(world: World) -> None:
    topic = await world.topic("a", partitions=2)
    for n in range(5):
        world.backend.add(topic, text_message(str(n)), partition=1)
    answer = await world.get("/api/v1/queues/a/messages?start=end")
    assert answer == {"messages": [], "next": {"0": 0, "1": 5}}


async def test_a_tail_waits_until_a_message_comes(world: World) -> None:
    topic = await world.topic("a")
    world.backend.add(topic, text_message("old"))
    nothing = [lambda: None] * 3
    world.clock.deeds = [*nothing, lambda: world.backend.add(topic, text_message("new"))]
    answer = await world.get("/api/v1/queues/a/messages?start=end&wait_ms=20000")
    assert [message["body"] for message in answer["messages"]] == ["new"]
    assert answer["next"] == {"0": 2}
    assert world.clock.now_ms < 1_001_000


async def test_a_tail_without_news_ends_at_its_time(world: World) -> None:
    await world.topic("a")
    answer = await world.get("/api/v1/queues/a/messages?wait_ms=1050")
    assert answer == {"messages": [], "next": {"0": 0}}
    assert world.clock.now_ms == 1_001_050


async def test_a_tail_ends_when_the_node_drains(world: World) -> None:
    await world.topic("a")
    world.clock.deeds = [world.health.drain]
    await world.get("/api/v1/queues/a/messages?wait_ms=20000")
    assert world.clock.now_ms < 1_001_000


async def test_tails_are_bounded_and_counted_back(world: World) -> None:
    world.api._context.tails.bound = 1
    await world.topic("a")
    target = "/api/v1/queues/a/messages?wait_ms=500"
    both = await asyncio.gather(world.send(target), world.send(target))
    assert sorted(reply.status for reply in both) == [200, 429]
    cancelled = asyncio.create_task(world.send(target))
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.wait((cancelled,))
    assert (await world.send(target)).status == 200


async def test_large_messages_are_spread_over_answers(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "REPLY_BYTES_MAX", 1_000)
    topic = await world.topic("a")
    for n in range(9):
        world.backend.add(topic, text_message(str(n) * 400))
    seen: list[str] = []
    start = 0
    while len(seen) < 9:
        answer = await world.get(f"/api/v1/queues/a/messages?start={start}&count=100")
        assert 1 <= len(answer["messages"]) <= 3
        seen += [message["body"][0] for message in answer["messages"]]
        start = answer["next"]["0"]
    assert seen == list("012345678")


@pytest.mark.parametrize(
    "query",
    [
        "start=middle",
        "start=-1",
        "start=0:x",
        "start=9:0",
        "start=a:0",
        "start=",
        "partition=2",
        "partition=-1",
        "partition=1&start=0:5",
        "count=0",
        "count=101",
        "wait_ms=20001",
        "offset=1",
    ],
)
async def test_wrong_places_are_named(world: World, query: str) -> None:
    await world.topic("a", partitions=2)
    code, _ = await world.error(f"/api/v1/queues/a/messages?{query}", 400)
    assert code == "invalid_request"
