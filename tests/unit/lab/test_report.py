"""The page needs nothing but itself, and shows what was found."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
from tests.harness import ledger as L  # noqa: N812  (every event class is used)
from tests.harness.ledger import Key
from tests.lab import plan
from tests.lab.judge import FaultDone, Judgement
from tests.lab.kafka_ledger import Acked
from tests.lab.report import render, write_report
from tests.lab.run import Options, Outcome
from tests.lab.series import build_series
from tests.lab.svg import shown

S = 1_000_000_000


def outcome() -> Outcome:
    judgement = Judgement(coverage={"sends_ok": 2}, outages_ms={"1. F1 kill leader": 5_400})
    judgement.add("LOST", "<script>answered, never received</script>")
    key = Key("p", 1)
    return Outcome(
        Options(plan.PROFILES["smoke"], "5eed"),
        judgement,
        [FaultDone("F1 kill leader", ("n1",), (1,), 12 * S, 15 * S, True, "n1 is gone")],
        [
            L.Invoke(11 * S, key, "q"),
            L.Ok(11 * S + 20_000_000, key, "m"),
            L.Invoke(13 * S, Key("p", 2), "q"),
            L.Info(14 * S, Key("p", 2), "no answer"),
        ],
        [Acked(11 * S, "t", [(0, 0, 0, 10 * S)])],
        (),
        [(9 * S, 1, True), (13 * S, 1, False)],
        started_at=10 * S,
        ended_at=20 * S,
        left_out=["faults of disks: no loop devices"],
        logs={1: "said\n"},
    )


class _Balance(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [str(value) for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [str(value) for name, value in attrs if name in ("src", "href")]


def test_the_page_is_whole_and_asks_for_nothing() -> None:
    page = render(outcome())
    balance = _Balance()
    balance.feed(page)
    assert balance.open == []
    assert balance.addresses == []
    assert not re.search(r"https?:|<script|@import|url\(", page)


def test_seed_faults_counts_and_what_was_left_out_are_on_it() -> None:
    page = render(outcome())
    for text in ("5eed", "F1 kill leader", "n1 is gone", "5.4", "LOST", "no loop devices"):
        assert text in page
    assert "The run is bad" in page


def test_a_run_that_proves_nothing_is_called_invalid() -> None:
    made = outcome()
    made.judgement.counts["LOST"] = 0
    made.judgement.worthless.append("3 failovers, of at least 20")
    page = render(made)
    assert "The run is invalid" in page
    assert "3 failovers, of at least 20" in page
    assert made.judgement.word == "INVALID"
    assert not made.judgement.is_good


def test_axes_name_their_units_in_few_digits() -> None:
    assert [shown(value, "ms") for value in (0.1, 10, 1_000, 100_000)] == [
        "0.1 ms",
        "10 ms",
        "1 s",
        "100 s",
    ]
    assert shown(2_000, "/s") == "2,000/s"


def test_logs_rows_and_the_verdict_lie_beside_it(tmp_path: Path) -> None:
    page = write_report(outcome(), tmp_path / "report")
    assert page.read_text("utf-8").startswith("<!doctype html>")
    verdict = msgspec.json.decode((page.parent / "verdict.json").read_bytes())
    assert verdict["counts"]["LOST"] == 1
    assert verdict["is_good"] is False
    assert (page.parent / "n1.log").read_text() == "said\n"


def test_series_count_by_second_and_know_how_long_answers_took() -> None:
    made = outcome()
    series = build_series(made.events, made.kafka, made.started_at)
    assert series["send"].counts == {1: 1}
    assert series["send"].percentile(1, 0.99) == 20.0
    assert series["send"].failed == {4: 1}
    assert series["produce"].took_ms == {1: [1_000.0]}
    assert series["delete"].percentile(1, 0.5) is None
