"""Rate cards, months, flushes and complete hours: what needs no Spark of usage and billing."""

from __future__ import annotations

import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.pipeline.facts.rates import GB, RatesInvalid, Use, lines_of, parse
from penstock.pipeline.facts.usage_sums import HOUR_MS, Flushes
from penstock.pipeline.job import JobMisused
from penstock.pipeline.jobs.billing import Month
from penstock.pipeline.jobs.usage import last_complete_hour
from penstock.pipeline.registry import jobs_of

JOBS = jobs_of("run")

DAY0_MS = 1_767_225_600_000  # 2026-01-01

CARD = """
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


def hour(number: int, minute: int = 0) -> int:
    return DAY0_MS + number * HOUR_MS + minute * 60_000


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 6)), max_size=30))
def test_ranges_of_flushes_are_a_set_of_numbers(added: list[tuple[int, int]]) -> None:
    flushes, truth = Flushes(), set[int]()
    for first, more in added:
        flushes.add(("n", "i"), first, first + more)
        truth |= set(range(first, first + more + 1))
    assert {n for n in range(60) if flushes.has(("n", "i"), n)} == truth
    missing = max(truth) - min(truth) + 1 - len(truth) if truth else 0
    assert sum(flushes.gaps().values()) == missing
    assert not flushes.has(("n", "other"), 1)


def test_an_hour_is_sealed_when_every_live_node_is_behind_its_end() -> None:
    at = {"a": hour(5, 10), "b": hour(3, 20)}
    first = DAY0_MS // HOUR_MS
    assert last_complete_hour({}, grace_ms=0) is None
    assert last_complete_hour(at, grace_ms=0) == first + 2
    assert last_complete_hour(at, grace_ms=30 * 60_000) == first + 1
    assert last_complete_hour({**at, "dead": hour(-40)}, grace_ms=0) == first + 2
    assert last_complete_hour({**at, "a": hour(30)}, grace_ms=0) == first + 29


def test_a_card_prices_by_class_version_and_what_is_free() -> None:
    card = parse(
        CARD
        + """
[[version]]
valid_from = 2026-01-16
requests_by = "units64k"
free_requests = 1_000
bytes_out_micros = 50_000
request_micros = { other = 1_000_000 }
"""
    )
    uses = [
        Use("t", "kafka:Read", 0, requests=60, refused=10, bytes_out=2 * GB),
        Use("t", "sqs:SendMessage", 0, requests=1_000_070, units64k=9),
        Use("t", "storage", 0, byte_minutes=GB * 31 * 1_440),
        Use("t", "sqs:SendMessage", 1, requests=5, units64k=1_900, bytes_out=GB // 2),
    ]
    lines = {(line.version, line.item): line for line in lines_of(uses, card, days=31)}
    other, send = lines[0, "requests:other"], lines[0, "requests:send"]
    assert (other.quantity, other.refused, other.free, other.amount_micros) == (60, 10, 50, 0)
    assert (send.quantity, send.free, send.amount_micros) == (1_000_070, 50, 400_008)
    assert lines[0, "bytes_out"].amount_micros == 180_000
    assert lines[0, "storage"].amount_micros == 23_000
    later = lines[1, "requests:other"]
    assert (later.quantity, later.free, later.amount_micros) == (1_900, 900, 1_000)
    assert lines[1, "bytes_out"].amount_micros == 25_000
    assert card.starts() == [datetime.date(2026, 1, 1), datetime.date(2026, 1, 16)]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("x", "not valid TOML"),
        ("currency = 'EUR'", "version"),
        (CARD.replace('"EUR"', '"eur"'), "capital"),
        (CARD + "[other]\n", "unknown key other"),
        (CARD.replace("free_requests", "free_reqests"), "free_reqests"),
        (CARD.replace("400_000", "0.4"), "whole number"),
        (CARD.replace("400_000", "-1"), "whole number"),
        (CARD.replace("other = 100_000", ""), "other"),
        (CARD.replace("2026-01-01", '"today"'), "a date without a time"),
        (CARD.replace("[version.classes]\nsend", "[version.classes]\nsnd"), "no price"),
        (CARD + CARD.replace('currency = "EUR"', ""), "two versions"),
        (CARD.replace('"kafka:Write"]', '"sqs:SendMessage"]'), "two classes"),
    ],
)
def test_a_card_that_cannot_be_used_says_why(text: str, why: str) -> None:
    with pytest.raises(RatesInvalid, match=why):
        parse(text)


def test_months_are_calendar_months() -> None:
    assert str(Month.parse("2024-02")) == "2024-02"
    assert Month.parse("2024-02").days == 29
    assert Month.parse("2026-12").end == datetime.date(2027, 1, 1)
    with pytest.raises(JobMisused, match="not a month"):
        Month.parse("2026-13")


def test_every_job_of_the_list_is_there_under_its_name() -> None:
    assert {name: job.name for name, job in JOBS.items()} == {name: name for name in JOBS}
