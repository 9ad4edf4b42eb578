"""Jobs that add up facts, and are killed at it: usage, the invoices made of it, and telemetry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from benchmarks.pipeline.facts import make_facts, totals_of, totals_of_rows
from tests.pipeline.killed_process import Told
from tests.pipeline.killing import AFTER, WORKER, Case, Tally, before, between
from tests.pipeline.topics import send

from penstock.wire.facts import deliveries, telemetry

BATCH_BYTES = "16k"


def _sums(totals: Mapping[Any, Mapping[str, int]]) -> Counter[Any]:
    """So that what is too little or too much of any sum shows as so many."""
    return Counter({(key, n): v for key, sums in totals.items() for n, v in sums.items() if v})


class UsageCase(Case):
    name = "usage"
    tables = ("usage_partial",)
    lives = (
        (WORKER, between("usage_partial")),
        (WORKER, AFTER),
        (between("usage_hour"),),
        (before("usage_hourly"),),
    )
    topic = "facts"
    facts_each = 130  # of two nodes: more than an hour, so that one is closed by each life

    def prepare(self) -> None:
        self.topics.make(self.topic, 1)
        self._made = make_facts(self.facts_each * (self.kills + 8), rows=10, nodes=2)

    def feed(self) -> None:
        self.feeds += 1
        made = self._made[(self.feeds - 1) * self.facts_each : self.feeds * self.facts_each]
        assert made, "the facts are used up"
        send(self.topics, self.topic, [value for _, value in made])

    def arguments(self, *, is_last: bool) -> dict[str, Any]:
        size = "1m" if is_last else BATCH_BYTES
        return {"topic": self.topic, "grace_s": 0, "batch_bytes": size}

    def judge(self, tally: Tally, told: Sequence[Told]) -> None:
        want = totals_of(each for each, _ in self._made[: self.feeds * self.facts_each])
        tally.compare(_sums(want), _sums(totals_of_rows(self.rows("usage_partial"))))
        late = ["usage_adjustment"] if self.lake.exists("usage_adjustment") else []
        sealed = [row for table in ["usage_hourly", *late] for row in self.rows(table)]
        last = max(key[0] for key in totals_of_rows(self.rows("usage_hourly")))
        closed = {key: sums for key, sums in want.items() if key[0] <= last}
        tally.compare(_sums(closed), _sums(totals_of_rows(sealed)))
        assert not self.lake.exists("usage_reject"), "a fact was taken for a copy"


RATES = """
currency = "EUR"
[[version]]
valid_from = 2026-01-01
free_requests = 100
bytes_out_micros = 90_000
storage_micros = 23_000
[version.request_micros]
send = 400_000
other = 100_000
[version.classes]
send = ["sqs:SendMessage", "kafka:Write"]
"""


class BillingCase(Case):
    """Invoices of a month that goes on. All of it is SQL, so there is no Python worker to kill."""

    name = "billing"
    lives = (
        (between("invoice_line"),),
        (between("invoice"),),
        (before("invoice"),),
        (before("invoice_line"),),
    )

    def prepare(self) -> None:
        self._usage = _BilledUsage(self.stage, kills=self.kills)
        self._usage.lake = self.lake
        self._rates = self.folder / "rates.toml"
        self._rates.write_text(RATES)

    def feed(self) -> None:
        self._usage.feed()
        self.stage.finish(self._usage)

    def arguments(self, *, is_last: bool) -> dict[str, Any]:
        return {"rates": str(self._rates), "month": "2026-01"}

    def judge(self, tally: Tally, told: Sequence[Told]) -> None:
        heads, lines = self.rows("invoice"), self.rows("invoice_line")
        names = ("requests", "messages", "bytes_in", "bytes_out", "byte_minutes")
        used: Counter[Any] = Counter()
        for row in self.rows("usage_partial"):
            if row["kind"] in ("calls", "storage"):
                used.update({(row["tenant"], name): row[name] for name in names})
        last = {head["tenant"]: head for head in sorted(heads, key=lambda h: h["revision"])}
        billed = Counter({(t, name): head[name] for t, head in last.items() for name in names})
        tally.compare(+used, +billed)
        revisions = Counter((head["tenant"], head["revision"]) for head in heads)
        tally.compare(Counter(set(revisions)), revisions)
        amounts: Counter[Any] = Counter()
        for line in lines:
            amounts[line["tenant"], line["revision"], line["writing"]] += line["amount_micros"]
        owed = Counter(
            {(h["tenant"], h["revision"], h["writing"]): h["amount_micros"] for h in heads}
        )
        tally.compare(+owed, +amounts)
        written = Counter(each["table"] for each in told if each["what"] == "commit")
        # Lines of which no invoice came: the next writing had to find them and take their place.
        tally.replays += written["invoice_line"] - written["invoice"]


class _BilledUsage(UsageCase):
    name = "usage-to-bill"
    job = "usage"
    topic = "facts-to-bill"


class DeliveriesCase(Case):
    name = "deliveries"
    tables = ("delivery",)
    lives = (
        (WORKER, between("delivery")),
        (WORKER, AFTER),
        (between("delivery_hourly"),),
        (before("delivery_hourly"),),
    )
    flushes_each = 60
    rows_each = 40
    begin_ms = 1_700_000_400_000

    def prepare(self) -> None:
        self.topics.make("pushed", 1)
        self._rows: list[deliveries.DeliveryRow] = []

    def feed(self) -> None:
        self.feeds += 1
        values = []
        for _ in range(self.flushes_each):
            flush, first = len(self._rows) // self.rows_each + 1, len(self._rows)
            rows = [self._row(number) for number in range(first, first + self.rows_each)]
            self._rows += rows
            columns = deliveries.columns_of(rows)
            head = (1, "n1", "i", flush, rows[-1].at_ms, 0)
            values.append(deliveries.encode(deliveries.DeliveryFacts(*head, columns)))
        send(self.topics, "pushed", values)

    def _row(self, number: int) -> deliveries.DeliveryRow:
        # A feed is about an hour and a half, so that the next one adds to its last hour.
        at_ms = self.begin_ms + number * 2_300
        outcome = deliveries.RETRY if number % 7 == 0 else deliveries.DELIVERED
        place = (f"s-{number % 3}", "orders", 0, number, f"id-{number}", 1)
        return deliveries.DeliveryRow(at_ms, "111", "eu", *place, outcome, 200, number % 90, 100)

    def arguments(self, *, is_last: bool) -> dict[str, Any]:
        return {"topic": "pushed", "batch_bytes": "1m" if is_last else BATCH_BYTES}

    def judge(self, tally: Tally, told: Sequence[Told]) -> None:
        kept = Counter(row["source_offset"] for row in self.rows("delivery"))
        tally.compare(Counter(row.offset for row in self._rows), kept)
        sums = Counter[Any]()
        for row in self.rows("delivery_hourly"):
            key = (str(row["date"]), row["hour"], row["subscription"])
            sums += Counter({(*key, name): row[name] for name in ("delivered", "retried", "bytes")})
        want = Counter[Any]()
        for each in self._rows:
            at = datetime.fromtimestamp(each.at_ms / 1_000, UTC)
            name = "retried" if each.outcome == deliveries.RETRY else "delivered"
            key = (str(at.date()), at.hour, each.subscription)
            want.update({(*key, name): 1, (*key, "bytes"): each.bytes})
        tally.compare(want, sums)


class TelemetryCase(Case):
    name = "telemetry"
    tables = ("metrics_1m",)
    lives = (
        (WORKER, between("metrics_1m")),
        (WORKER, AFTER),
        (between("metrics_1h"),),
        (before("lag_1m"),),
    )
    minutes_each = 70
    begin_ms = 1_700_000_400_000 // 3_600_000 * 3_600_000

    def prepare(self) -> None:
        self.topics.make("measured", 1)

    def feed(self) -> None:
        first = self.feeds * self.minutes_each
        self.feeds += 1
        minutes = range(first, first + self.minutes_each)
        send(self.topics, "measured", [_measured(n, node) for n in minutes for node in (0, 1)])

    def arguments(self, *, is_last: bool) -> dict[str, Any]:
        return {"topic": "measured", "grace_s": 0, "batch_bytes": "1m" if is_last else BATCH_BYTES}

    def judge(self, tally: Tally, told: Sequence[Told]) -> None:
        count = self.feeds * self.minutes_each
        want = Counter({_minute_key(n, node): n + 1 for n in range(count) for node in (0, 1)})
        minutes: Counter[Any] = Counter()
        for row in self.rows("metrics_1m"):
            if row["kind"] == telemetry.CALLS:
                minutes[ms_of(row["at"]), row["resource"]] += row["requests"]
        tally.compare(want, minutes)
        hours: Counter[Any] = Counter()
        for row in self.rows("metrics_1h"):
            if row["kind"] == telemetry.CALLS:
                hours[ms_of(row["at"]), row["resource"]] += row["requests"]
        whole: Counter[Any] = Counter()
        for (at_ms, resource), requests in want.items():
            if at_ms - self.begin_ms < count // 60 * 3_600_000:
                whole[at_ms // 3_600_000 * 3_600_000, resource] += requests
        tally.compare(whole, hours)
        lags = Counter((ms_of(row["at"]), row["resource"]) for row in self.rows("lag_1m"))
        tally.compare(Counter(set(want)), lags)


def _measured(minute: int, node: int) -> bytes:
    columns = telemetry.TelemetryColumns()
    name = {"account": "a", "region": "r", "resource": f"t{node}"}
    columns.add(telemetry.CALLS, **name, op="kafka:Write", requests=minute + 1, messages=9)
    columns.add(telemetry.LAG, **name, partition=0, group="g", committed=5, log_end=minute + 9)
    columns.add(telemetry.NODE, cpu_ms=100)
    at_ms = TelemetryCase.begin_ms + minute * 60_000
    return telemetry.encode(
        telemetry.TelemetryFacts(1, f"n{node}", "i", minute + 1, at_ms, at_ms + 60_000, columns)
    )


def _minute_key(minute: int, node: int) -> tuple[int, str]:
    return TelemetryCase.begin_ms + minute * 60_000, f"t{node}"


def ms_of(at: Any) -> int:
    return int(at.timestamp() * 1_000)
