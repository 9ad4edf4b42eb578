"""Job ``quality``: checks topics against the rules of a TOML file, with exact counts.

    a topic ─► dq_quarantine   unchanged rows that failed a quarantine rule, with the failed rules
            └► dq_result       result of each rule: checked, failed, first failure

Each run checks the records since the last run, with one query for each topic, in one pass
(``quality/rules.py``); after that, the server is queried for freshness and volume of the topic. A
batch is counted once, even if it is retried."""

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from penstock.net.kafka_client.client import EARLIEST, LATEST, KafkaClient, Place
from penstock.pipeline.arrow_map import schema_of
from penstock.pipeline.job import Job, JobContext, Mode, Unsound, option
from penstock.pipeline.jobs.queries import (
    check_topics,
    client_of,
    parsed_option,
    process,
    starting_offsets,
)
from penstock.pipeline.quality import rules as checks
from penstock.record.batch import parse_header
from penstock.record.malformed import MalformedBatch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RESULT, QUARANTINE = "dq_result", "dq_quarantine"
NAME: Final = "quality"
BATCH_BYTES: Final = "256m"
_TAIL_BYTES: Final = 1_048_576  # fetched from each partition to read the age of its last batch
_RESULT: Final = schema_of(
    "run string, at timestamp, topic string, rule string, check string, status string,"
    " checked long, failed long, allowed long, value double, on_fail string, sample string,"
    " ends string"
)


@dataclass
class QualityRun:
    context: JobContext
    rules: Sequence[checks.Rule]
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    results: list[checks.Result] = field(default_factory=list)
    stopped: str = ""

    def of_topic(self, topic: str) -> None:
        rules = [rule for rule in self.rules if rule.topic == topic]
        ends = self._known_ends(topic)
        with client_of(self.context) as client:
            places = client.places(topic)
            begins = starting_offsets(client, [topic], {topic: ends})

        def take(rows: "DataFrame", app: str, batch_id: int) -> None:
            self._batch(rows, rules, ends, places, app=app, batch_id=batch_id)

        reader = self._reader(self.context.spark.readStream, topic)
        since_ms = self.context.since_ms
        if since_ms is not None and begins == "earliest":
            reader = reader.option("startingTimestamp", str(since_ms))
        else:
            reader = reader.option("startingOffsets", begins)
        try:
            process(self.context, NAME, reader, take, batch_bytes=BATCH_BYTES, query=topic)
        except Exception:
            if self.stopped:
                raise Unsound(self.stopped) from None  # Spark wraps the exception of the batch
            raise
        self._check_topic(rules, places)

    def _reader(self, reader: Any, topic: str) -> Any:
        given = {
            "subscribe": topic,
            "columns": checks.COLUMNS,
            "onDataLoss": "skip",  # the check offset_gap reports the loss
            "startingOffsetsByTimestampStrategy": "latest",
        }
        return reader.format("penstock").options(**self.context.read_options, **given)

    def _batch(
        self,
        rows: "DataFrame",
        rules: Sequence[checks.Rule],
        ends: dict[int, int],
        places: Sequence[Place],
        *,
        app: str,
        batch_id: int,
    ) -> None:
        if self.context.lake.table(RESULT).has(app, batch_id):
            return
        marked = checks.mark(rows, rules, self._history(rows, rules, places)).persist()
        try:
            results = checks.count(marked, rules, ends)
            reached = checks.ends_of(marked)
            for each in results:
                if each.rule.on_fail is checks.OnFail.STOP and not each.is_ok:
                    # A different app, because the batch is not done: the next run checks it again.
                    self._write(results, {}, app=f"{NAME}-stop:{self.run_id}", batch_id=batch_id)
                    self.stopped = f"stopped by {_summary(each)}"
                    raise Unsound(self.stopped)
            failed = {each.rule.on_fail for each in results if each.failed}
            if checks.OnFail.QUARANTINE in failed:
                aside = checks.quarantined(marked, rules)
                where: dict[str, Any] = {"partition_by": ("date",), "is_tracked": True}
                self.context.lake.append(aside, QUARANTINE, app=app, batch_id=batch_id, **where)
        finally:
            marked.unpersist()
        ends |= reached
        self._write(results, reached, app=app, batch_id=batch_id)

    def _history(
        self, rows: "DataFrame", rules: Sequence[checks.Rule], places: Sequence[Place]
    ) -> "DataFrame | None":
        """Return the earlier rows with which ``unique`` rules compare this batch, if any."""
        windows = [rule.window_s for rule in rules if rule.check is checks.Check.UNIQUE]
        if not windows:
            return None
        found = rows.groupBy("partition").agg({"offset": "min", "timestamp": "min"}).collect()
        begins = {row["partition"]: row["min(offset)"] for row in found}
        if not any(begins.values()):
            return None
        since = min(row["min(timestamp)"] for row in found).timestamp() - max(windows)
        topic = places[0].topic
        ending = {str(each.partition): begins.get(each.partition, LATEST) for each in places}
        reader = self._reader(self.context.spark.read, topic)
        history: DataFrame = (
            reader.option("startingTimestamp", str(max(0, int(since * 1_000))))
            .option("endingOffsets", json.dumps({topic: ending}))
            .load()
        )
        return history

    def _check_topic(self, rules: Sequence[checks.Rule], places: Sequence[Place]) -> None:
        results = []
        now_ms = time.time_ns() // 1_000_000
        with client_of(self.context) as client:
            for rule in rules:
                if rule.check is checks.Check.FRESHNESS:
                    newest = newest_ms(client, places)
                    age_s = None if newest is None else (now_ms - newest) / 1_000
                    results.append(judge(rule, age_s))
                elif rule.check is checks.Check.VOLUME:
                    since_ms = now_ms - rule.window_s * 1_000
                    results.append(judge(rule, float(_volume(client, places, since_ms))))
        if results:
            app = f"{NAME}-topic:{self.run_id}:{places[0].topic}"
            self._write(results, {}, app=app, batch_id=0)

    def _known_ends(self, topic: str) -> dict[int, int]:
        if not self.context.lake.exists(RESULT):
            return {}
        rows = self.context.lake.read(self.context.spark, RESULT, f"topic = '{topic}'")
        ends: dict[int, int] = {}
        for row in rows.select("ends").distinct().toLocalIterator():
            for partition, end in json.loads(row.ends).items():
                ends[int(partition)] = max(end, ends.get(int(partition), 0))
        return ends

    def _write(
        self, results: Sequence[checks.Result], ends: Mapping[int, int], *, app: str, batch_id: int
    ) -> None:
        at_us = time.time_ns() // 1_000
        rows = [
            {
                **_line(each),
                "run": self.run_id,
                "at": at_us,
                "check": each.rule.check.value,
                "allowed": each.rule.allowed,
                "value": each.value,
                "sample": each.sample,
                "ends": json.dumps(dict(ends)),
            }
            for each in results
        ]
        table = pa.Table.from_pylist(rows, schema=_RESULT)
        self.context.lake.append(table, RESULT, app=app, batch_id=batch_id, partition_by=("topic",))
        self.results += results


def _summary(result: checks.Result) -> str:
    rule = result.rule
    where = f", first at {result.sample}" if result.sample else ""
    return f"rule '{rule.name}' of {rule.topic}: {result.failed} failed{where}"


def judge(rule: checks.Rule, value: float | None) -> checks.Result:
    """Check a topic's age or volume against a rule. None (the topic is empty) fails."""
    is_low = value is None or (rule.minimum is not None and value < rule.minimum)
    is_high = value is not None and rule.maximum is not None and value > rule.maximum
    return checks.Result(rule, checked=1, failed=int(is_low or is_high), value=value)


def newest_ms(client: KafkaClient, places: Sequence[Place]) -> int | None:
    """Return the timestamp of the newest batch, or None if the topic is empty."""
    firsts = client.offsets(dict.fromkeys(places, EARLIEST))
    lasts = client.offsets(dict.fromkeys(places, LATEST), is_committed=True)
    times = []
    for place in places:
        if lasts[place] <= firsts[place]:
            continue
        last = {place: lasts[place] - 1}
        fetched = client.fetch(last, wait_ms=0, partition_bytes_max=_TAIL_BYTES)
        for piece in fetched.values():
            try:
                times.append(parse_header(bytes(piece.records[:61])).max_timestamp)
            except MalformedBatch:
                continue  # an unreadable batch counts as missing
    return max(times, default=None)


def _volume(client: KafkaClient, places: Sequence[Place], since_ms: int) -> int:
    """Count the offsets since a time, including transaction markers and compacted records."""
    begins = client.offsets(dict.fromkeys(places, since_ms))
    ends = client.offsets(dict.fromkeys(places, LATEST), is_committed=True)
    return sum(max(0, ends[place] - begin) for place, begin in begins.items() if begin >= 0)


def _rules(context: JobContext) -> Sequence[checks.Rule]:
    return parsed_option(context, "rules", checks.parse_rules, checks.RulesInvalid)


def check(context: JobContext) -> None:
    check_topics(context, list(dict.fromkeys(rule.topic for rule in _rules(context))))


def run(context: JobContext) -> None:
    rules = _rules(context)
    found = QualityRun(context, rules)
    try:
        for topic in dict.fromkeys(rule.topic for rule in rules):
            found.of_topic(topic)
    finally:
        context.show([_line(each) for each in found.results])
    alerts = [
        each
        for each in found.results
        if not each.is_ok and each.rule.on_fail is not checks.OnFail.QUARANTINE
    ]
    if alerts:
        raise Unsound(f"{len(alerts)} rules failed; {_summary(alerts[0])}")


def _line(result: checks.Result) -> dict[str, Any]:
    rule = result.rule
    return {
        "topic": rule.topic,
        "rule": rule.name,
        "status": "ok" if result.is_ok else "failed",
        "checked": result.checked,
        "failed": result.failed,
        "first": result.sample,
        "on_fail": rule.on_fail.value,
    }


JOB: Final = Job(
    name=NAME,
    summary="Check the records of topics against data quality rules.",
    run=run,
    check=check,
    options=(option("--rules", "PATH", "TOML file with the data quality rules", required=True),),
    modes=frozenset({Mode.ONCE}),
)
