"""Report pages: complete, safe to open, and with the sums of the lake. No Spark."""

from __future__ import annotations

import csv
import datetime
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from random import Random
from typing import Any, cast
from xml.etree import ElementTree

import pyarrow as pa
import pytest

from penstock.pipeline.facts.telemetry_sums import OUT
from penstock.pipeline.job import JobContext, JobMisused
from penstock.pipeline.jobs import telemetry as telemetry_job
from penstock.pipeline.lake import Lake
from penstock.pipeline.registry import jobs_of
from penstock.pipeline.reports import billing, charts, hotspots, numbers
from penstock.pipeline.reports.rows import over_time
from penstock.wire.facts.telemetry import bucket_of, packed

JOBS = jobs_of("report")

pytestmark = pytest.mark.slow
START = datetime.datetime(2026, 3, 1, tzinfo=datetime.UTC)
HOUR = datetime.timedelta(hours=1)
EVIL = '<script>alert("$x$")</script>'
COUNTS = ("requests", "messages", "bytes_in", "bytes_out", "throttled", "denied", "failed")


class Notes:
    """The port ``Progress`` that keeps what it is told."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        self.texts.append(text)

    @contextmanager
    def tasks(self, label: str) -> Iterator[None]:
        yield


def context(lake: Lake, tmp_path: Path, **arguments: Any) -> JobContext:
    return JobContext(
        spark=cast(Any, None),
        server="",
        lake=lake,
        checkpoint=tmp_path,
        progress=Notes(),
        since_ms=arguments.pop("since_ms", None),
        until_ms=arguments.pop("until_ms", None),
        arguments=arguments,
    )


def used(hours: int = 48, tenants: int = 9) -> list[dict[str, Any]]:
    chance = Random(5)
    rows: list[dict[str, Any]] = []
    for hour in range(hours):
        for tenant in range(tenants):
            for resource, op in (
                (f"orders-{tenant}", "sqs:SendMessage"),
                (EVIL, "sqs:ReceiveMessage"),
                ("a-very-long-name-of-a-topic-that-somebody-chose", "kafka:Write"),
            ):
                at = START + HOUR * hour
                rows.append(
                    {
                        "hour": at,
                        "date": at.date(),
                        "kind": "calls",
                        "tenant": f"{tenant:012d}",
                        "region": "us-east-1",
                        "resource": resource,
                        "op": op,
                        **{name: chance.randrange(10_000 // (tenant + 1)) for name in COUNTS},
                        "byte_minutes": 0,
                    }
                )
    return rows


def with_usage(lake: Lake, rows: list[dict[str, Any]]) -> None:
    schema = pa.schema(
        [
            ("hour", pa.timestamp("us", tz="UTC")),
            ("date", pa.date32()),
            *((name, pa.string()) for name in ("kind", "tenant", "region", "resource", "op")),
            *((name, pa.int64()) for name in (*COUNTS, "byte_minutes")),
        ]
    )
    half = len(rows) // 2
    for batch_id, part in enumerate((rows[:half], rows[half:])):
        lake.append(
            pa.Table.from_pylist(part, schema),
            "usage_partial",
            app="usage:q",
            batch_id=batch_id,
            partition_by=("kind", "date"),
        )


class Checker(HTMLParser):
    """Tags in pairs, nothing from elsewhere, nothing that runs."""

    EMPTY = frozenset(("meta", "br"))

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        assert tag not in ("script", "link", "iframe", "img", "object")
        for name, value in attrs:
            assert not name.startswith("on")
            if name in ("src", "href", "xlink:href"):
                is_beside = tag == "a" and re.fullmatch(r"penstock-[\w%-]+\.html", value or "")
                assert is_beside or (value or "").startswith("#")
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.EMPTY:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def check(text: str) -> str:
    """The page's visible text."""
    checker = Checker()
    checker.feed(text)
    checker.close()
    assert checker.open == []
    assert "url(http" not in text
    assert "@import" not in text
    assert 'name="viewport"' in text
    assert "prefers-color-scheme:dark" in text
    for svg in re.findall(r"<svg .*?</svg>", text, flags=re.DOTALL):
        ElementTree.fromstring(svg)
        assert "currentColor" in svg
        assert "#010203" not in svg
    return " ".join(checker.texts)


def test_a_usage_page_has_the_sums_of_the_lake(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    rows = used()
    with_usage(lake, rows)
    out = tmp_path / "usage.html"
    JOBS["usage"].run(context(lake, tmp_path, out=str(out)))
    text = check(out.read_text())
    for name in ("requests", "messages"):
        assert f"{sum(row[name] for row in rows):,}" in text
    assert numbers.size(sum(row["bytes_in"] for row in rows)) in text
    assert "2026-03-01 00:00 to 2026-03-03 00:00" in text
    assert EVIL in text  # as text, and not as a tag
    assert out.read_text().count("<svg") == 6


def test_the_csv_has_every_row_and_no_formula(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    rows = used(hours=3)
    rows[0]["resource"] = "=cmd()"
    with_usage(lake, rows)
    out = tmp_path / "usage.csv"
    JOBS["usage"].run(context(lake, tmp_path, out=str(out), is_csv=True))
    read = list(csv.DictReader(io.StringIO(out.read_text())))
    assert sum(int(row["requests"]) for row in read) == sum(row["requests"] for row in rows)
    assert "'=cmd()" in {row["resource"] for row in read}


def test_a_period_is_cut_at_its_hours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake = Lake(tmp_path / "lake")
    rows = used(hours=30)
    with_usage(lake, rows)
    since, until = START + HOUR * 5, START + HOUR * 26
    JOBS["usage"].run(
        context(
            lake,
            tmp_path,
            since_ms=int(since.timestamp() * 1_000),
            until_ms=int(until.timestamp() * 1_000),
            is_csv=True,
        )
    )
    read = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    inside = [row for row in rows if since <= row["hour"] < until]
    assert sum(int(row["messages"]) for row in read) == sum(row["messages"] for row in inside)


def test_many_days_are_shown_by_the_day() -> None:
    rows = [{"hour": START + HOUR * n, "requests": 2, "tenant": str(n % 9)} for n in range(24 * 10)]
    found = over_time(rows, "requests", lambda row: str(row["tenant"]), at="hour", step_s_min=3_600)
    assert found.step_s == 86_400
    assert found.times == [START + HOUR * 24 * day for day in range(10)]
    assert sum(map(sum, found.values.values())) == 480
    assert list(found.values)[-1] == "others"


def test_without_rows_a_page_says_so(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    with_usage(lake, used(hours=1))
    out = tmp_path / "empty.html"
    JOBS["usage"].run(context(lake, tmp_path, out=str(out), until_ms=1_000))
    assert "no data in this time" in check(out.read_text())


@pytest.mark.parametrize("name", list(JOBS))
def test_a_lake_without_the_tables_says_which_job_to_run(name: str, tmp_path: Path) -> None:
    with pytest.raises(JobMisused, match="pipeline run"):
        JOBS[name].run(context(Lake(tmp_path), tmp_path))


def test_a_file_that_cannot_be_written_is_said_plainly(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    with_usage(lake, used(hours=1))
    with pytest.raises(JobMisused, match=r"cannot write .*No such file"):
        JOBS["usage"].run(context(lake, tmp_path, out=str(tmp_path / "no" / "x.html")))


def invoice(tenant: str, revision: int, amounts: dict[str, int], writing: int) -> Any:
    head = {
        "month": "2026-03",
        "tenant": tenant,
        "revision": revision,
        "writing": writing,
        "status": "draft",
        "currency": "EUR",
        "amount_micros": sum(amounts.values()),
        **dict.fromkeys(("requests", "refused", "messages"), 10),
        **dict.fromkeys(("bytes_in", "bytes_out", "byte_minutes"), 2_048),
    }
    lines = [
        {
            **{name: head[name] for name in ("month", "tenant", "revision", "writing")},
            "item": item,
            "valid_from": datetime.date(2026, 1, 1),
            **dict.fromkeys(("quantity", "refused", "free", "price_micros"), 7),
            "amount_micros": amount,
        }
        for item, amount in amounts.items()
    ]
    return head, lines


def test_a_billing_page_counts_the_last_revision_of_each_invoice(tmp_path: Path) -> None:
    from penstock.pipeline.jobs import billing as billing_job

    lake = Lake(tmp_path / "lake")
    made = [
        invoice("000000000001", 1, {"requests": 1_000_000}, 1),
        invoice("000000000001", 2, {"requests": 3_250_000, "storage": 90_000}, 2),
        invoice("000000000002", 1, {"requests": 1_660_000}, 1),
    ]
    for number, (head, lines) in enumerate(made):
        heads = pa.Table.from_pylist([head], billing_job._INVOICE)
        rows = pa.Table.from_pylist(lines, billing_job._LINE)
        lake.append(heads, "invoice", app="b", batch_id=number, partition_by=("month",))
        lake.append(
            rows, "invoice_line", app="b", batch_id=number, partition_by=("month", "writing")
        )
    heads_found, lines_found = billing.collect(lake, None, None)
    assert [head["revision"] for head in heads_found] == [2, 1]
    assert sum(line["amount_micros"] for line in lines_found) == 5_000_000
    out = tmp_path / "billing.html"
    JOBS["billing"].run(context(lake, tmp_path, out=str(out)))
    text = check(out.read_text())
    assert "5.00 EUR" in text
    assert "storage" in text


def metric(at: datetime.datetime, **values: Any) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for field in OUT:
        row[field.name] = "" if field.type == pa.string() else 0
    return {**row, "at": at, "date": at.date(), "partition": -1, "hist": [], **values}


def with_telemetry(lake: Lake) -> None:
    chance = Random(3)
    rows = []
    for minute in range(30):
        at = START + datetime.timedelta(minutes=minute)
        for number, name in enumerate(("orders", "mail", EVIL)):
            took = packed({bucket_of(chance.lognormvariate(-6, 1)): 5})
            much = 1_000 * 3**number + chance.randrange(400)
            rows.append(
                metric(
                    at, kind="calls", resource=name, op="sqs:SendMessage", requests=5,
                    messages=much, hist=took, node="n1",
                )
            )  # fmt: skip
            rows += [
                metric(
                    at, kind="partition", resource=name, partition=partition, node=f"n{number}",
                    messages=much // 4, bytes_in=much * 50,
                )
                for partition in range(4)
            ]  # fmt: skip
    schema = OUT.append(pa.field("date", pa.date32()))
    lake.append(
        pa.Table.from_pylist(rows, schema),
        "metrics_1m",
        app="t",
        batch_id=0,
        partition_by=("kind", "date"),
    )
    hot = [
        {"at": START, "scope": "queue", "name": f"a/r/{EVIL}", "rate": 150.0, "share": 0.69,
         "z": 9.0, "reason": "69% of the total"},
    ]  # fmt: skip
    lake.append(pa.Table.from_pylist(hot, telemetry_job._HOT), "hot", app="h", batch_id=0)
    lag = [
        {"at": START + datetime.timedelta(minutes=n), "account": "a", "region": "r",
         "resource": "orders", "partition": 0, "group": "billing", "records": 70 + n,
         "seconds": 33.0, "trend_per_s": 0.1, "eta_s": None, "state": "STALLED",
         "date": START.date()}
        for n in range(3)
    ]  # fmt: skip
    lag_schema = telemetry_job._LAG.append(pa.field("date", pa.date32()))
    lake.append(
        pa.Table.from_pylist(lag, lag_schema), "lag_1m", app="l", batch_id=0, partition_by=("date",)
    )


def test_a_hotspot_page_shows_load_durations_and_groups(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    with_telemetry(lake)
    out = tmp_path / "hot.html"
    since_ms = int(START.timestamp() * 1_000)
    JOBS["hotspots"].run(context(lake, tmp_path, out=str(out), since_ms=since_ms))
    text = check(out.read_text())
    assert "450" in text  # requests
    assert "69.0%" in text
    assert "STALLED" in text
    assert "72" in text  # of the last minute, not of those before
    found = hotspots.collect(lake, since_ms, None)
    assert len(found.lags) == 1


def lag_row(minute: int, **values: Any) -> dict[str, Any]:
    at = START + datetime.timedelta(minutes=minute)
    row = {
        "at": at, "account": "a", "region": "r", "resource": "orders", "partition": 0,
        "group": "g", "records": 300, "seconds": None, "trend_per_s": 0.0, "eta_s": None,
        "state": "STALLED", "date": at.date(),
    }  # fmt: skip
    return {**row, **values}


def hot_page(tmp_path: Path, lags: list[dict[str, Any]]) -> str:
    lake = Lake(tmp_path / "lake")
    with_telemetry(lake)
    schema = telemetry_job._LAG.append(pa.field("date", pa.date32()))
    table = pa.Table.from_pylist(lags, schema)
    lake.append(table, "lag_1m", app="l", batch_id=1, partition_by=("date",))
    out = tmp_path / "hot.html"
    since_ms = int(START.timestamp() * 1_000)
    JOBS["hotspots"].run(context(lake, tmp_path, out=str(out), since_ms=since_ms))
    check(out.read_text())
    return out.read_text()


def test_groups_that_stand_still_are_counted_as_groups_and_without_bookkeeping(
    tmp_path: Path,
) -> None:
    sink = "spark-sink-0b7d5f63-6a0a-4d53-9a55-2f4f6b6f0c11"
    text = hot_page(
        tmp_path,
        [
            *(lag_row(1, partition=partition) for partition in range(4)),
            lag_row(1, group=sink, resource="results"),
        ],
    )
    assert "<dt>Groups stalled</dt><dd>2</dd>" in text  # "billing" and "g"
    assert sink not in text


def test_the_time_of_a_lag_goes_on_while_the_group_stands_still(tmp_path: Path) -> None:
    text = hot_page(
        tmp_path,
        [
            lag_row(0, state="OK", seconds=30.0),
            *(lag_row(minute) for minute in range(1, 11)),
            *(lag_row(minute, group="older") for minute in range(6)),
            *(lag_row(minute, group="moves", state="OK") for minute in range(6)),
        ],
    )
    times = re.findall(r'data-label="Group">(\w+)<.*?data-label="Time">(.*?)<', text, re.DOTALL)
    assert dict(times) == {"billing": "33 s", "g": "10 min", "older": "&gt; 5 min", "moves": "–"}


def linked(page: Path) -> set[str]:
    return set(re.findall(r'href="([^"]+)"', page.read_text()))


def billed(lake: Lake) -> None:
    from penstock.pipeline.jobs import billing as billing_job

    for number, (head, lines) in enumerate(
        [
            invoice("000000000001", 1, {"requests:send": 3_250_000, "storage": 90_000}, 1),
            invoice("000000000002", 1, {"requests:send": 1_660_000}, 1),
            invoice("*", 1, {}, 1),
        ]
    ):
        head["status"] = "draft" if number == 1 else "final"
        for name, row, schema in (
            ("invoice", [head], billing_job._INVOICE),
            ("invoice_line", lines, billing_job._LINE),
        ):
            table = pa.Table.from_pylist(row, schema)
            lake.append(table, name, app="b", batch_id=number, partition_by=("month",))


def test_pages_in_a_folder_are_linked_and_listed(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    with_usage(lake, used(hours=1))
    billed(lake)
    folder = tmp_path / "reports"
    for name in ("usage", "billing", "invoice"):
        JOBS[name].run(context(lake, tmp_path, out=f"{folder}/"))
    pages = {path.name for path in folder.iterdir()}
    assert pages == {
        "penstock-usage.html",
        "penstock-billing.html",
        "penstock-invoice-2026-03-000000000001.html",
        "penstock-invoice-2026-03-000000000002.html",
        "penstock-reports.html",
    }
    index = folder / "penstock-reports.html"
    check(index.read_text())
    assert linked(index) == pages - {index.name}
    assert linked(folder / "penstock-billing.html") == {index.name, "penstock-usage.html"}
    assert linked(folder / "penstock-invoice-2026-03-000000000001.html") == set()
    alone = tmp_path / "to-mail.html"
    JOBS["usage"].run(context(lake, tmp_path, out=str(alone)))
    assert linked(alone) == set()


def test_an_invoice_is_for_one_customer_and_says_what_it_is_for(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    billed(lake)
    out = tmp_path / "invoice.html"
    words = {"tenant": "000000000001", "customer": EVIL, "seller": "Penstock & Co", "note": "net"}
    JOBS["invoice"].run(context(lake, tmp_path, out=str(out), **words))
    text = check(out.read_text())
    for said in ("3.34 EUR", "Requests: send", EVIL, "Penstock & Co", "net", "2026-03-31"):
        assert said in text
    assert "000000000002" not in text
    assert "draft" not in text
    JOBS["invoice"].run(context(lake, tmp_path, out=str(out), tenant="000000000002"))
    assert "Draft invoice" in check(out.read_text())


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"tenant": "000000000009"}, "no invoice of tenant 000000000009: penstock pipeline run"),
        ({"month": "2026-04"}, "no invoice for 2026-04"),
        ({"customer": "Ann"}, "--customer needs --tenant"),
        ({"out": "/tmp/one.html"}, "is a file, but there are 2 pages"),
    ],
)
def test_an_invoice_that_cannot_be_written_says_why(
    tmp_path: Path, arguments: dict[str, str], why: str
) -> None:
    lake = Lake(tmp_path / "lake")
    billed(lake)
    with pytest.raises(JobMisused, match=why):
        JOBS["invoice"].run(context(lake, tmp_path, **{"out": f"{tmp_path}/x/", **arguments}))


def test_one_hour_is_a_bar_among_hours() -> None:
    one = [START + HOUR * 14]
    for svg in (
        charts.stacked(one, {"a": [5.0]}, step_s=3_600),
        charts.lines(one, {"in": [5.0], "out": [3.0]}, step_s=3_600),
    ):
        texts = re.findall(r"<text[^>]*>([^<]+)</text>", svg)
        assert {"13:00", "14:00", "15:00", "16:00", "2026-03-01"} <= set(texts)


def test_the_same_rows_make_the_same_plot() -> None:
    values = {f"name {n}": float(n) for n in range(20)}
    assert charts.ranking(values) == charts.ranking(values)
    assert "10 others" in charts.ranking(values)
