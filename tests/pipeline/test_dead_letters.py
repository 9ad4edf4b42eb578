"""What messages die of: causes are told apart, and never by ids, numbers or times."""

from __future__ import annotations

import csv
import json
import random
import uuid
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest
from tests.compat.conftest import sqs_client
from tests.harness.patience import eventually
from tests.harness.server import Server
from tests.pipeline.test_audit import context_for

from penstock.pipeline.job import JobMisused
from penstock.pipeline.jobs import dead_letters
from penstock.pipeline.jobs.dead_letters import GROUP, HOURLY, LETTER, summarise, transform
from penstock.pipeline.lake import Lake
from penstock.pipeline.quality.failure_signature import (
    FIX,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOON_MS = 1_772_366_400_000
CHANCE = random.Random(7)

# Each makes (attributes, body) of one message that dies of one thing.
Dying = Callable[[random.Random], tuple[dict[str, bytes], bytes]]


def _order(chance: random.Random, **more: Any) -> bytes:
    order = {"id": str(uuid.UUID(int=chance.getrandbits(128))), "amount": chance.random() * 1e4}
    return json.dumps(
        {**order, "lines": [{"sku": f"S-{chance.randrange(10**6)}", "n": 1}], **more}
    ).encode()


def _id(chance: random.Random) -> str:
    return chance.choice(
        [
            str(uuid.UUID(int=chance.getrandbits(128))),
            str(chance.randrange(10**12)),
            f"ord_{chance.getrandbits(60):x}7",
            f"CUST-{chance.randrange(10**6):06d}",
        ]
    )


def _timeout(c: random.Random) -> str:
    address = f"10.0.{c.randrange(256)}.{c.randrange(256)}:{c.randrange(10**4)}"
    return f"connect to {address} timed out after {c.randrange(10**5)} ms"


def _late(c: random.Random) -> str:
    day = f"2026-0{c.randrange(1, 10)}-1{c.randrange(10)}"
    return f"expired at {day}T0{c.randrange(10)}:11:12.{c.randrange(999)}Z"


def _null(c: random.Random) -> str:
    return f"TypeError: amount is None (order {_id(c)})\n  at line {c.randrange(999)}"


CAUSES: dict[str, Dying] = {
    "timeout": lambda c: ({"error": _timeout(c).encode()}, _order(c)),
    "no such customer": lambda c: ({"error": f"customer {_id(c)} not found".encode()}, _order(c)),
    "404": lambda c: ({"error": f"HTTP 404 for /orders/{_id(c)}".encode()}, _order(c)),
    "503": lambda c: ({"error": f"HTTP 503 for /orders/{_id(c)}".encode()}, _order(c)),
    "null amount": lambda c: ({"exception": _null(c).encode()}, _order(c, amount=None)),
    "silent, json": lambda c: ({}, _order(c)),
    "silent, no json": lambda c: ({}, b"\x00\xff" + c.randbytes(20)),
    "late": lambda c: ({"reason": _late(c).encode()}, _order(c)),
}


def system(
    message_id: bytes, *, source: str = "orders", attempts: int = 3, sent_at_ms: int = NOON_MS
) -> bytes:
    arn = f"arn:aws:sqs:eu-central-1:000000000000:{source}"
    return msgspec.msgpack.encode(
        [message_id, "me", None, None, None, attempts, arn, sent_at_ms, False]
    )


def frame(spark: SparkSession, rows: list[dict[str, Any]]) -> DataFrame:
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    schema = pa.schema(
        [
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("headers", pa.list_(header)),
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", tz="UTC")),
        ]
    )
    return spark.createDataFrame(pa.Table.from_pylist(rows, schema=schema))


def letter(
    offset: int, attributes: dict[str, bytes], body: bytes, *, died_at_ms: int, **told: Any
) -> dict[str, Any]:
    message_id = told.pop("message_id", offset.to_bytes(16, "big"))
    headers = [{"key": "penstock", "value": system(message_id, **told)}]
    headers += [{"key": name, "value": value} for name, value in attributes.items()]
    at = datetime.fromtimestamp(died_at_ms / 1_000, UTC)
    return {"key": None, "value": body, "headers": headers, "topic": "dead", "partition": 0,
            "offset": offset, "timestamp": at}  # fmt: skip


# ── Groups ───────────────────────────────────────────────────────────────────────────────────────


def test_a_known_mix_is_grouped_by_its_causes(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    names = [name for name in CAUSES for _ in range(3 + 40 * (len(name) % 5))]
    CHANCE.shuffle(names)
    rows = [
        letter(n, *CAUSES[name](CHANCE), died_at_ms=NOON_MS + n * 60_000, sent_at_ms=NOON_MS)
        for n, name in enumerate(names)
    ]
    lake.append(transform(frame(spark, rows)), LETTER, app="dead-letters:q", batch_id=0,
                partition_by=("queue",), is_tracked=True)  # fmt: skip
    found = summarise(spark, lake, "dead", now_ms=NOON_MS + 10**8)
    by_offset = {row.offset: row.signature for row in lake.read(spark, LETTER).collect()}
    mixed: dict[str, Counter[str]] = {}
    for offset, name in enumerate(names):
        mixed.setdefault(by_offset[offset], Counter())[name] += 1
    purity = sum(max(counts.values()) for counts in mixed.values()) / len(names)
    assert purity >= 0.95
    assert len(mixed) == len(CAUSES), "a cause is split, or two are one"
    assert [row["letters"] for row in found] == sorted(Counter(names).values(), reverse=True)
    assert [row["rank"] for row in found] == list(range(1, len(CAUSES) + 1))
    assert lake.read(spark, GROUP).count() == len(CAUSES)
    hours = lake.read(spark, HOURLY).collect()
    assert sum(row.letters for row in hours) == len(names)
    assert len({row.hour for row in hours}) == -(-len(names) // 60)
    # Once more over the same letters: nothing is added.
    summarise(spark, lake, "dead", now_ms=NOON_MS + 10**8)
    assert lake.read(spark, GROUP).count() == len(CAUSES)
    assert lake.read(spark, HOURLY).count() == len(hours)


def test_what_comes_back_after_a_redrive_is_poison_and_no_new_message(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(tmp_path)

    def died(offset: int, body: bytes, minute: int, sent_minute: int, **told: Any) -> Any:
        at = {"died_at_ms": NOON_MS + minute * 60_000, "sent_at_ms": NOON_MS + sent_minute * 60_000}
        return letter(offset, {"error": b"bad"}, body, **at, **told)

    rows = [
        died(0, b"poison", 10, 0),
        died(1, b"twin", 10, 0),
        died(2, b"twin", 11, 1),  # the same content, sent before the other died: another message
        died(3, b"poison", 30, 20),  # redriven
        died(4, b"poison", 50, 40),  # and again
        died(5, b"copied", 12, 0),
        died(6, b"copied", 12, 0, message_id=(5).to_bytes(16, "big")),  # moved twice by a crash
    ]
    lake.append(transform(frame(spark, rows)), LETTER, app="dead-letters:q", batch_id=0,
                partition_by=("queue",), is_tracked=True)  # fmt: skip
    (group,) = summarise(spark, lake, "dead", now_ms=NOON_MS + 10**8)
    assert (group["letters"], group["distinct_messages"]) == (7, 4)
    assert (group["returned"], group["poison"]) == (2, 1)
    assert group["suggestion"] == FIX
    assert (group["source"], group["attempts_max"]) == ("orders", 3)


def test_foreign_records_are_letters_too(spark: SparkSession) -> None:
    at = datetime.fromtimestamp(NOON_MS / 1_000, UTC)
    plain = {"key": b"k", "value": None, "topic": "dead", "partition": 2, "timestamp": at}
    odd: Any = [{"key": "penstock", "value": b"\xff\xff"}, {"key": "error", "value": None}]
    rows: list[dict[str, Any]] = [
        {**plain, "offset": 0, "headers": None},
        {**plain, "offset": 1, "headers": odd},
    ]
    made = transform(frame(spark, rows)).orderBy("offset").collect()
    assert [(row.source, row.message_id, row.shape) for row in made] == [
        ("", "dead:2:0", "empty"),
        ("", "dead:2:1", "empty"),
    ]


# ── With a server ────────────────────────────────────────────────────────────────────────────────


def _kill(client: Any, source: str, count: int) -> None:
    """Receive until the queue has moved everything to its dead letters."""
    for _ in range(2 * count + 4):
        got = client.receive_message(QueueUrl=source, MaxNumberOfMessages=10, VisibilityTimeout=0)
        if not got.get("Messages"):
            return


def test_letters_of_a_real_queue_are_grouped_and_poison_is_found(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    client = sqs_client(server.url)
    dead = client.create_queue(QueueName="orders-dead")["QueueUrl"]
    arn = client.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"][
        "QueueArn"
    ]
    redrive = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": "1"})
    source = client.create_queue(QueueName="orders", Attributes={"RedrivePolicy": redrive})[
        "QueueUrl"
    ]
    for n in range(4):
        client.send_message(QueueUrl=source, MessageBody=json.dumps({"id": n}))
    client.send_message(
        QueueUrl=source,
        MessageBody="17",
        MessageAttributes={"error": {"DataType": "String", "StringValue": "no order 17"}},
    )
    _kill(client, source, 5)
    shown: list[Any] = []
    arguments = {"queue": ("orders-dead",), "csv": str(tmp_path / "groups.csv")}
    context = context_for(spark, server, tmp_path, arguments=arguments, show=shown.extend)
    dead_letters.JOB.run(context)
    assert [(row["letters"], row["source"], row["error"], row["poison"]) for row in shown] == [
        (4, "orders", "", 0),
        (1, "orders", "no order <id>", 0),
    ]
    client.start_message_move_task(SourceArn=arn)

    def is_moved() -> bool:
        (task,) = client.list_message_move_tasks(SourceArn=arn)["Results"]
        return bool(task["Status"] == "COMPLETED")

    eventually(is_moved, seconds=120, what="the letters moved back")
    _kill(client, source, 5)
    client.close()
    shown.clear()
    dead_letters.JOB.run(context)
    assert [(row["letters"], row["distinct_messages"], row["poison"]) for row in shown] == [
        (8, 4, 4),
        (2, 1, 1),
    ]
    assert {row["suggestion"] for row in shown} == {FIX}
    with (tmp_path / "groups.csv").open() as file:
        assert [row["letters"] for row in csv.DictReader(file)] == ["8", "2"]


def test_a_queue_must_be_named(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    with pytest.raises(JobMisused, match="--queue"):
        dead_letters.JOB.run(context_for(spark, server, tmp_path))
    context = context_for(spark, server, tmp_path, arguments={"queue": ("a' OR 1=1",)})
    with pytest.raises(JobMisused, match="not the name"):
        dead_letters.JOB.run(context)
