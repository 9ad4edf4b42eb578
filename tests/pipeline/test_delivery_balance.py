"""The job ``verify deliveries``: states against the cursor that wrote the events, and rows that are
lost, repeated or of messages that do not exist."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.harness.client import RawClient
from tests.harness.decoding import decode_batches
from tests.harness.server import Server
from tests.pipeline.stage import Notes, context_of
from tests.pipeline.test_deliveries import frame, record, row
from tests.pipeline.topics import Topics, send, topics_of
from tests.unit.cursor.leases.harness import Batch, Shell, claim_of

from penstock.model.message import AckReason, Claim
from penstock.net.kafka_client.client import Place
from penstock.pipeline.arrow_map import batch_of, schema_of
from penstock.pipeline.decoding.cursor_events import events_in
from penstock.pipeline.job import JobMisused, NotFound, Unsound
from penstock.pipeline.jobs import deliveries as job
from penstock.pipeline.jobs import delivery_balance
from penstock.pipeline.jobs.deliveries import DeliveryTables
from penstock.pipeline.jobs.delivery_balance import balance, states_of
from penstock.pipeline.lake import Lake
from penstock.pipeline.reading.offsets import Range
from penstock.record.batch import parse_header, split_batches
from penstock.record.control import encode_control_batch, iter_control

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SHARE = bytes(range(16))
EVENTS = schema_of("partition int, at long, reader string, what string, offset long")
RECORDS = schema_of("partition int, offset long")
STATES = schema_of("partition int, offset long, state string")


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


@pytest.fixture(scope="module")
def topics(server: Server) -> Iterator[Topics]:
    with topics_of(server.kafka) as found:
        yield found


def table(spark: SparkSession, rows: Sequence[Sequence[Any]], schema: pa.Schema) -> DataFrame:
    return spark.createDataFrame(pa.Table.from_batches([batch_of(rows, schema)]))


# ── States ───────────────────────────────────────────────────────────────────────────────────


class Worked:
    """A share that was worked with at random. It knows what became of each message."""

    def __init__(self, chance: Random) -> None:
        is_fifo, picky = chance.random() < 0.5, chance.random() < 0.5
        wants = (lambda record: record.offset % 3 != 0) if picky else None
        self.shell = Shell(is_fifo=is_fifo, wants=wants)
        self.reasons: dict[int, AckReason] = {}
        self.start = self.trimmed = 0
        claims: list[Claim] = []
        for _ in range(80):
            match chance.choices(range(7), (6, 6, 6, 3, 1, 0.3, 0.3))[0]:
                case 0:
                    group = f"g{chance.randrange(4)}" if is_fifo else None
                    self.shell.send(chance.randrange(1, 5), group=group)
                case 1:
                    claims += map(claim_of, self.shell.lease(chance.randrange(1, 6)).picks)
                case 2 if claims:
                    self._ack(claims.pop(chance.randrange(len(claims))), chance)
                case 3 if claims:
                    self.shell.extend(claims[-1], chance.choice((0, 5_000)))
                case 4:
                    self.shell.now_ms += chance.choice((1_000, 40_000))
                case 5:
                    to = self.shell.cursor.head + chance.randrange(3)
                    self.shell.trim(min(to, self.shell.end))
                    self.trimmed = max(self.trimmed, self.shell.cursor.head)
                case 6:
                    self.start = chance.randrange(self.shell.end + 1)
                    self.shell.begin_again(self.start)
                    self.reasons.clear()
                    self.trimmed = 0

    def _ack(self, claim: Claim, chance: Random) -> None:
        reason = chance.choice(list(AckReason))
        is_finished = self.shell.see(claim.offset) is None
        [error] = self.shell.ack(claim, reason=reason)
        if error is None and not is_finished:
            self.reasons[claim.offset] = reason

    def events(self) -> Iterator[Sequence[Any]]:
        for item in self.shell.log:
            if not isinstance(item, Batch):
                offset, kind, data, _ = item
                entries = [(kind + 16, SHARE + data), (kind + 16, bytes(16) + data)]
                batch = encode_control_batch(
                    entries, base_offset=offset, leader_epoch=0, timestamp=1
                )
                yield from events_in(batch, {SHARE.hex()})

    def state(self, offset: int) -> str:
        names = {AckReason.ACKED: "delivered", AckReason.UNWANTED: "filtered"}
        reason = self.reasons.get(offset)
        if reason is not None:
            return names.get(reason, reason.name.lower())
        cursor = self.shell.cursor
        if offset in cursor._table or offset >= cursor.head:
            return "waiting"
        return "expired" if offset < self.trimmed else "missing"


def test_states_are_those_of_the_cursor_that_wrote_the_events(spark: SparkSession) -> None:
    chance = Random(11)
    shares = [Worked(chance) for _ in range(40)]
    records = [(n, at) for n, one in enumerate(shares) for at in one.shell.offsets]
    events = [(n, *event) for n, one in enumerate(shares) for event in one.events()]
    made = states_of(
        table(spark, events, EVENTS), table(spark, records, RECORDS), is_queue=False
    ).collect()
    assert sorted((each[0], each[1]) for each in made) == records
    found = {(n, at): state for n, at, state in made if at >= shares[n].start}
    wanted = {(n, at): shares[n].state(at) for n, at in found}
    assert found == wanted
    assert set(found.values()) == {*delivery_balance._STATES}, "the test is too small"


def test_copies_to_queues_are_those_below_the_bookmark(spark: SparkSession) -> None:
    own = f"{delivery_balance.COMMON}:s"
    events = [
        *((0, at, "sns", "bookmark", to) for at, to in ((10, 5), (20, 9))),
        *((1, at, "sns", "bookmark", to) for at, to in ((10, 5), (20, 9))),
        *((1, at, own, "bookmark", to) for at, to in ((11, 2), (21, 4))),
        *((2, at, own, "bookmark", to) for at, to in ((11, 2), (12, -1))),
        (2, 10, "sns", "bookmark", 7),
    ]
    records = [(partition, offset) for partition in range(4) for offset in range(10)]
    found = states_of(table(spark, events, EVENTS), table(spark, records, RECORDS), is_queue=True)
    copied = {0: 9, 1: 4, 2: 7, 3: 0}
    assert {tuple(each) for each in found.collect()} == {
        (partition, offset, "copied" if offset < copied[partition] else "waiting")
        for partition, offset in records
    }


def test_a_row_decides_what_the_log_does_not_say(spark: SparkSession, lake: Lake) -> None:
    cases = [  # state of the log, outcomes of rows, state, fault
        ("delivered", ["retry", "delivered"], "delivered", None),
        ("delivered", ["retry"], "delivered", "unrecorded"),
        ("delivered", [], "delivered", "unrecorded"),
        ("delivered", ["delivered", "delivered"], "delivered", "double"),
        ("delivered", ["dead", "delivered"], "delivered", "double"),
        ("delivered", ["dropped"], "dropped", None),  # at most once
        ("dead", ["dead"], "dead", None),
        ("dead", ["dead", "dead"], "dead", "double"),
        ("dead", ["retry"], "dead", "unrecorded"),
        ("dropped", ["dropped"], "dropped", None),
        ("dropped", [], "dropped", "unrecorded"),
        ("expired", [], "expired", None),
        ("filtered", [], "filtered", None),
        ("missing", [], "missing", None),
        ("waiting", ["retry", "delivered"], "waiting", None),  # the ack was lost: sent again
        ("copied", [], "delivered", None),
        ("copied", ["dead"], "dead", None),
        ("copied", ["dropped"], "dropped", None),
        (None, ["delivered"], None, "unknown"),
    ]
    rows = [row(0, at, outcome) for at, case in enumerate(cases) for outcome in case[1]]
    rows += [row(0, 0, is_replay=True), row(0, 0, is_test=True), row(0, 500), row(1, 0)]
    tables = DeliveryTables(spark, lake)
    twice = [record(rows, 1), record(rows, 1)]  # a mirror may have a flush twice
    tables.add(frame(spark, twice), app="deliveries:q", batch_id=0)
    states = [(0, at, case[0]) for at, case in enumerate(cases) if case[0] is not None]
    ranges = [Range(Place("orders", 0), 0, len(cases))]
    made = balance(lake.read(spark, job.ROWS), table(spark, states, STATES), ranges)
    found = {each.offset: (each.state, each.fault) for each in made.collect()}
    assert found == {at: case[2:] for at, case in enumerate(cases)}


# ── The job ──────────────────────────────────────────────────────────────────────────────────


def share_of(topics: Topics, topic: str) -> str:
    """Return the id of the only share of a topic, from the log."""
    ids = set()
    for place in topics.client.places(topic):
        part = topics.client.fetch({place: 0}, wait_ms=0)[place]
        for batch in split_batches([part.records]):
            if parse_header(batch).is_control:
                ids |= {value[:16].hex() for _, kind, value in iter_control(batch) if kind >= 80}
    [found] = ids
    return found


def verified(
    spark: SparkSession, server: Server, lake: Lake, folder: Path, **arguments: Any
) -> tuple[dict[tuple[int, int], str], str]:
    """Return the listed messages, and the line that sums everything up."""
    notes = Notes()
    context = context_of(spark, server, lake, folder, notes, subscription="s-1", **arguments)
    try:
        delivery_balance.run(context)
    except Unsound as error:
        notes.texts.append(f"unsound: {error}")
    found = {(each["partition"], each["offset"]): each["fault"] for each in notes.rows}
    return found, "; ".join(notes.texts)


def places_of(topics: Topics, topic: str) -> dict[str, tuple[int, int]]:
    """Return partition and offset of each value."""
    found = {}
    for place in topics.client.places(topic):
        part = topics.client.fetch({place: 0}, wait_ms=0)[place]
        rows = decode_batches([part.records], columns=("value", "offset"), begin=0, end=10_000)
        for each in rows.to_pylist():
            found[each["value"].decode()] = (place.partition, each["offset"])
    return found


def test_messages_of_a_share_are_compared_with_rows(
    spark: SparkSession, server: Server, topics: Topics, lake: Lake, tmp_path: Path
) -> None:
    topics.make("orders", 2)
    topics.make("mirrored", 1)
    topics.fill("orders", {0: 3}, prefix="before")
    client = RawClient(server.port)
    name = {"QueueName": "orders:g", "Attributes": {"VisibilityTimeout": "43200"}}
    url = client.call("CreateQueue", name)["QueueUrl"]
    topics.fill("orders", {0: 12, 1: 8})
    leased: dict[str, str] = {}
    while len(leased) < 20:
        reply = client.call("ReceiveMessage", {"QueueUrl": url, "MaxNumberOfMessages": 10})
        leased |= {each["Body"]: each["ReceiptHandle"] for each in reply.get("Messages", ())}
    waiting = {"v0-10", "v1-7"}
    for body in leased.keys() - waiting:
        request = {"QueueUrl": url, "ReceiptHandle": leased[body]}
        client.call("DeleteMessage", request)
    client.close()
    topics.fill("orders", {1: 2}, prefix="after")  # not leased
    share, places = share_of(topics, "orders"), places_of(topics, "orders")
    acked = [places[body] for body in sorted(leased.keys() - waiting)]
    rows = [row(*at, share=share) for at in acked[1:]]
    rows += [row(*places["v0-10"], "retry", share=share), row(*acked[1], is_replay=True)]
    send(topics, "mirrored", [record(rows[:9], 1), record(rows[9:], 2), record(rows[:9], 1)])
    context = context_of(spark, server, lake, tmp_path / "run", topic="mirrored")
    job.run(context)
    job.run(context)  # nothing new
    found, text = verified(spark, server, lake, tmp_path)
    assert found == {acked[0]: "unrecorded"}
    assert text == "22 messages: 18 delivered, 4 waiting; 1 unrecorded"

    # An event of the share is at this offset, and no message.
    absent = (0, next(n for n in range(50) if (0, n) not in places.values()))
    more = [row(*acked[0], share=share), row(*acked[3], share=share), row(*absent, share=share)]
    send(topics, "mirrored", [record(more, 3)])
    job.run(context)
    # The cursor has never seen the messages before its start: they look like lost ones.
    found, text = verified(spark, server, lake, tmp_path, first="0:0")
    lost = dict.fromkeys(places[f"before0-{n}"] for n in range(3))
    assert found == {acked[3]: "double", absent: "unknown"} | lost
    assert text.startswith("25 messages: 18 delivered, 4 waiting, 3 missing; 1 double, 1 unknown")
    assert text.endswith("unsound: deliveries of s-1: 3 missing, 1 double, 1 unknown")

    topics.cut(Place("orders", 0), places["before0-2"][1])  # not compared: deleted by retention
    arguments = {"first": "0:0", "doubles_max": 1, "filtered": True}
    _, text = verified(spark, server, lake, tmp_path, **arguments)
    assert text.startswith("23 messages: 18 delivered, 1 filtered, 4 waiting; 1 double")


@pytest.mark.parametrize("text", ["0", "a:1", "0:-1", "0:1;1:2", ":"])
def test_offsets_that_are_misspelt_are_refused(lake: Lake, tmp_path: Path, text: str) -> None:
    context = context_of(None, _NoServer(), lake, tmp_path, subscription="s", first=text)  # type: ignore[arg-type]
    with pytest.raises(JobMisused, match=r"--first is '.*': give PARTITION:OFFSET"):
        delivery_balance.check(context)


def test_a_check_needs_a_subscription_and_its_rows(
    spark: SparkSession, server: Server, topics: Topics, lake: Lake, tmp_path: Path
) -> None:
    check = delivery_balance.check
    with pytest.raises(JobMisused, match="--subscription is required"):
        check(context_of(spark, server, lake, tmp_path))
    with pytest.raises(NotFound, match="has no table delivery"):
        check(context_of(spark, server, lake, tmp_path, subscription="s"))
    with pytest.raises(NotFound, match="there is no topic sns-absent"):
        check(context_of(spark, server, lake, tmp_path, subscription="s", source="sns-absent"))
    DeliveryTables(spark, lake).add(
        frame(spark, [record([row(0, 1)], 1)]), app="deliveries:q", batch_id=0
    )
    with pytest.raises(NotFound, match="no deliveries of subscription s-9 to an endpoint"):
        delivery_balance.run(context_of(spark, server, lake, tmp_path, subscription="s-9"))
    topics.make("untouched")
    with pytest.raises(JobMisused, match="untouched has no messages to compare"):
        delivery_balance.run(
            context_of(spark, server, lake, tmp_path, subscription="s-9", source="untouched")
        )


class _NoServer:
    kafka = "127.0.0.1:1"
