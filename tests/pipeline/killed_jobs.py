"""What is killed (``killing.py`` says how): each job with its work, its moments to die, and the
truth its result is held against, row by row. Those that add up facts are in ``killed_facts.py``.

Work is given out for each life of a job, so that a kill always finds it busy, and values are made
so that no two are alike: whatever is there twice or not at all is counted.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from contextlib import closing
from typing import Any

import msgspec
import pyarrow as pa
from tests.compat.conftest import sqs_client
from tests.pipeline.killed_facts import (
    BillingCase,
    DeliveriesCase,
    TelemetryCase,
    UsageCase,
    ms_of,
)
from tests.pipeline.killed_process import Kill, Told
from tests.pipeline.killing import AFTER, WORKER, Case, Tally, before, between
from tests.pipeline.topics import BASE_MS, send

from penstock.net.kafka_client.client import EARLIEST, LATEST, Place
from penstock.pipeline.archive.replaying import CHUNK_RECORDS

PARTITIONS = 2
BATCH_BYTES = "16k"


# ── Records, kept and copied ─────────────────────────────────────────────────────────────────


class ArchiveCase(Case):
    name = "archive"
    tables = ("archive/archived",)
    lives = ((WORKER, between("archive/archived")), (WORKER, AFTER), (before("archive/archived"),))

    def prepare(self) -> None:
        self.topics.make("archived", PARTITIONS)

    def feed(self) -> None:
        self.feeds += 1
        counts = dict.fromkeys(range(PARTITIONS), 900)
        self.topics.fill("archived", counts, prefix=f"f{self.feeds}-")

    def arguments(self, *, is_last: bool) -> dict[str, Any]:
        return {"topics": "archived", "batch_bytes": "1m" if is_last else BATCH_BYTES}

    def judge(self, tally: Tally, told: Sequence[Told]) -> None:
        want = self.topics.values("archived")
        rows = self.table("archive/archived")
        rows = rows.sort_by([("partition", "ascending"), ("offset", "ascending")])
        found = rows["value"].to_pylist()
        tally.compare(Counter(want), Counter(found))
        assert found == want, "in the order of the log"


class SinkCase(Case):
    """A copy by way of the sink. Three partitions from two: nothing lies where it lay."""

    name = "sink"
    watched = "copied"
    is_by_chance = True
    lives = ((WORKER, AFTER), (AFTER,))

    def prepare(self) -> None:
        self.topics.make("copied", 3)
        self.topics.make("to-copy", PARTITIONS)

    def feed(self) -> None:
        self.feeds += 1
        counts = dict.fromkeys(range(PARTITIONS), 900)
        self.topics.fill("to-copy", counts, prefix=f"f{self.feeds}-")

    def arguments(self, *, is_last: bool) -> dict[str, Any]:
        records = 5_000 if is_last else 200
        return {"source": "to-copy", "target": "copied", "batch_records": records}

    def is_due_again(self, told: Sequence[Told], batches: Set[int]) -> bool:
        return bool(batches)  # perhaps in the target, perhaps not: the sink has to find out

    def judge(self, tally: Tally, told: Sequence[Told]) -> None:
        want, found = self.topics.values("to-copy"), self.topics.values("copied")
        tally.compare(Counter(want), Counter(found))


class ReplayCase(Case):
    """Commits to no table on its way; its target shows that it is under way."""

    name = "replay"
    watched = "replayed"
    lives = ((WORKER, Kill("between")), (WORKER, AFTER), (Kill("between"),))

    def prepare(self) -> None:
        self.topics.make("replayed", PARTITIONS)
        self.topics.make("kept", PARTITIONS)
        records = CHUNK_RECORDS * (4 + 3 * self.kills)
        self.topics.fill("kept", dict.fromkeys(range(PARTITIONS), records))
        archive = _Kept(self.stage, kills=0)
        archive.lake = self.lake
        self.stage.finish(archive)

    def arguments(self, *, is_last: bool) -> dict[str, Any]:
        # Slow enough that a kill finds it at work: two chunks of each partition in a second.
        rate = None if is_last else 2.0 * CHUNK_RECORDS * PARTITIONS
        return {"source": "kept", "target": "replayed", "rate": rate}

    def is_due_again(self, told: Sequence[Told], batches: Set[int]) -> bool:
        return any(each["what"] == "held" for each in told)  # sent, and nobody noted it

    def judge(self, tally: Tally, told: Sequence[Told]) -> None:
        want, found = self.topics.values("kept"), self.topics.values("replayed")
        tally.compare(Counter(want), Counter(found))
        assert found == want, "in the order of the archive"


class _Kept(Case):
    name = "kept"
    job = "archive"

    def arguments(self, *, is_last: bool) -> dict[str, Any]:
        return {"topics": "kept"}


# ── Records, judged ──────────────────────────────────────────────────────────────────────────


class AuditCase(Case):
    """The trail of a server whose queues are made by the dozen."""

    name = "audit"
    tables = ("audit_log",)
    lives = ((WORKER, between("audit_log")), (WORKER, AFTER), (before("audit_log"),))
    queues_each = 70

    def feed(self) -> None:
        self.feeds += 1
        with closing(sqs_client(self.stage.server.url)) as sqs:
            for number in range(self.queues_each):
                sqs.create_queue(QueueName=f"q-{self.feeds}-{number}")

    def arguments(self, *, is_last: bool) -> dict[str, Any]:
        return {"batch_bytes": "1m" if is_last else "4k"}

    def judge(self, tally: Tally, told: Sequence[Told]) -> None:
        from penstock.pipeline.jobs.audit import verify_audit

        rows = self.rows("audit_log")
        end = self.lake.end_offsets("audit_log", "audit")["__audit"][0]
        tally.compare(Counter(range(end)), Counter(row["offset"] for row in rows))
        made = Counter(
            row["resource"].rsplit(":")[-1] for row in rows if row["action"] == "sqs:CreateQueue"
        )
        names = [f"q-{f}-{n}" for f in range(1, self.feeds + 1) for n in range(self.queues_each)]
        tally.compare(Counter(names), Counter({n: c for n, c in made.items() if n[:2] == "q-"}))
        assert verify_audit(self.stage.spark, self.lake).fault_count == 0


RULES = """
[[rule]]
topic = "orders"
name = "id there"
check = "not_null"
field = "id"
[[rule]]
topic = "orders"
name = "amount"
check = "range"
field = "amount"
min = 0
on_fail = "quarantine"
[[rule]]
topic = "orders"
name = "gap"
check = "offset_gap"
"""


class QualityCase(Case):
    name = "quality"
    tables = ("dq_result",)
    lives = (
        (WORKER, between("dq_result")),
        (WORKER, between("dq_quarantine")),
        (AFTER,),
        (before("dq_result"),),
    )
    orders_each = 600

    def prepare(self) -> None:
        self.topics.make("orders", 1)
        self._rules = self.folder / "rules.toml"
        self._rules.write_text(RULES)

    def feed(self) -> None:
        first = self.feeds * self.orders_each
        self.feeds += 1
        numbers = range(first, first + self.orders_each)
        orders = [{"id": n, "amount": -1 if n % 7 == 0 else n} for n in numbers]
        send(self.topics, "orders", [json.dumps(order).encode() for order in orders], at_once=20)

    def arguments(self, *, is_last: bool) -> dict[str, Any]:
        return {"rules": str(self._rules), "batch_bytes": "1m" if is_last else "6k"}

    def judge(self, tally: Tally, told: Sequence[Told]) -> None:
        count = self.feeds * self.orders_each
        bad = range(0, count, 7)
        checked: Counter[str] = Counter()
        failed: Counter[str] = Counter()
        for row in self.rows("dq_result"):
            checked[row["rule"]] += row["checked"]
            failed[row["rule"]] += row["failed"]
        tally.compare(Counter({"id there": count, "amount": count, "gap": checked["gap"]}), checked)
        tally.compare(Counter({"amount": len(bad)}), +failed)
        aside = Counter(row["offset"] for row in self.rows("dq_quarantine"))
        tally.compare(Counter(bad), aside)


class DeadLettersCase(Case):
    name = "dead-letters"
    tables = ("dead_letter",)
    lives = (
        (WORKER, between("dead_letter")),
        (WORKER, AFTER),
        (between("dlq_group"),),
        (before("dlq_hourly"),),
    )
    letters_each = 400

    def prepare(self) -> None:
        self.topics.make("dead", 1)

    def feed(self) -> None:
        first = self.feeds * self.letters_each
        self.feeds += 1
        numbers = range(first, first + self.letters_each)
        values = [json.dumps({"order": n}).encode() for n in numbers]
        headers = [_died(n) for n in numbers]
        at_ms = BASE_MS + self.feeds * 3_600_000
        send(self.topics, "dead", values, at_once=20, headers=headers, at_ms=at_ms)

    def arguments(self, *, is_last: bool) -> dict[str, Any]:
        return {"queue": ("dead",), "batch_bytes": "1m" if is_last else BATCH_BYTES}

    def judge(self, tally: Tally, told: Sequence[Told]) -> None:
        count = self.feeds * self.letters_each
        rows = self.rows("dead_letter")
        tally.compare(Counter(range(count)), Counter(row["offset"] for row in rows))
        ids = Counter(row["message_id"] for row in rows)
        tally.compare(Counter(n.to_bytes(16, "big").hex() for n in range(count)), ids)
        groups: Counter[str] = Counter()
        for row in self.rows("dlq_group"):
            groups[row["error"]] += row["letters"]
        tally.compare(Counter(_cause(n) for n in range(count)), groups)
        hours: Counter[int] = Counter()
        for row in self.rows("dlq_hourly"):
            hours[ms_of(row["hour"])] += row["letters"]
        first = (BASE_MS + 3_600_000) // 3_600_000 * 3_600_000
        each = {first + n * 3_600_000: self.letters_each for n in range(self.feeds)}
        tally.compare(Counter(each), hours)


def _cause(number: int) -> str:
    return ("timed out", "not found", "refused")[number % 3]


def _died(number: int) -> list[tuple[bytes, bytes]]:
    arn = "arn:aws:sqs:eu-central-1:000000000000:orders"
    message_id = number.to_bytes(16, "big")
    told = [message_id, "me", None, None, None, 3, arn, BASE_MS, False]
    return [(b"penstock", msgspec.msgpack.encode(told)), (b"error", _cause(number).encode())]


# ── What is deleted ──────────────────────────────────────────────────────────────────────────


class RetentionCase(Case):
    """Records are acknowledged up to a few from the end; exactly those may go, and what goes is
    told of by a plan."""

    name = "retention"
    lives = (
        (WORKER, before("retention_plan", nth=2)),
        (between("retention_plan"),),
        (between("retention_plan", nth=2),),
    )
    records_each, kept = 200, 30
    is_early = True
    places = tuple(Place("done-with", n) for n in range(PARTITIONS))

    def prepare(self) -> None:
        self.topics.make("done-with", PARTITIONS, retention_ms="-1")
        # The first offsets to remain. Not so many records: a cut takes an offset of its own.
        self.floors: dict[Place, int] = {}
        self._policies = self.folder / "policies.toml"
        self._policies.write_text(
            '[[policy]]\ntopic = "done-with"\nkeep_s = 1\narchive_required = false\n'
        )

    def feed(self) -> None:
        self.feeds += 1
        counts = dict.fromkeys(range(PARTITIONS), self.records_each)
        self.topics.fill("done-with", counts, prefix=f"f{self.feeds}-")
        ends = self.topics.client.offsets(dict.fromkeys(self.places, LATEST))
        acked = {
            place: range(self.floors.get(place, 0), end - self.kept) for place, end in ends.items()
        }
        self.floors = {place: each.stop for place, each in acked.items()}
        offsets = [n for each in acked.values() for n in each]
        partitions = [place.partition for place, each in acked.items() for _ in each]
        acks = pa.table(
            {
                "topic": ["done-with"] * len(offsets),
                "partition": pa.array(partitions, pa.int32()),
                "cursor": ["c"] * len(offsets),
                "first": pa.array(offsets, pa.int64()),
                "last": pa.array(offsets, pa.int64()),
            }
        )
        self.lake.append(acks, "acks", app=f"acks:{self.feeds}", batch_id=0)

    def arguments(self, *, is_last: bool) -> dict[str, Any]:
        return {"policies": str(self._policies), "acks": "acks", "apply": True}

    def judge(self, tally: Tally, told: Sequence[Told]) -> None:
        starts = self.topics.client.offsets(dict.fromkeys(self.places, EARLIEST))
        gone = Counter((place.partition, n) for place, at in starts.items() for n in range(at))
        may = Counter((place.partition, n) for place, at in self.floors.items() for n in range(at))
        # A record that went and should not have is lost; one that stayed is one too many.
        tally.compare(may - gone, Counter())
        tally.doubled, tally.lost = tally.lost, (gone - may).total()
        last = range(self.records_each - self.kept, self.records_each)
        names = [f"f{self.feeds}-{p}-{n}".encode() for p in range(PARTITIONS) for n in last]
        tally.compare(Counter(names), Counter(self.topics.values("done-with")))
        plans = [row for row in self.rows("retention_plan") if row["action"] == "delete"]
        asked = {(r["partition"], n) for r in plans for n in range(r["base"], r["end"])
                 if r["outcome"]}  # fmt: skip
        done = Counter((r["partition"], n) for r in plans for n in range(r["base"], r["end"])
                       if r["outcome"] == "done")  # fmt: skip
        tally.lost += len(set(gone) - asked)  # deleted, and no plan says so
        tally.doubled += (done - Counter(set(done))).total()
        tally.replays += len({r["plan_id"] for r in plans if r["outcome"] == "asked"})


CASES: Mapping[str, type[Case]] = {
    case.name: case
    for case in (
        ArchiveCase,
        UsageCase,
        SinkCase,
        AuditCase,
        ReplayCase,
        TelemetryCase,
        QualityCase,
        RetentionCase,
        DeadLettersCase,
        DeliveriesCase,
        BillingCase,
    )
}
