"""Rates, ratios and tables of the stream benchmark from given figures."""

import msgspec
import pytest
from benchmarks.kafka import report
from benchmarks.kafka.__main__ import QUICK, parse
from benchmarks.kafka.job import RECORD_BYTES, Result
from benchmarks.kafka.scenarios import END_TO_END, SCENARIOS, WORKLOADS, title_of
from benchmarks.kafka.systems import SYSTEMS
from benchmarks.load import Latency
from benchmarks.machine import Machine

MACHINE = Machine(
    cpu="Test CPU",
    cores=2,
    memory_gb=8,
    kernel="6.1",
    python="3.11",
    measured_at="2026-11-15T00:00:00+00:00",
    load_average=0.1,
    fdatasync_us=90,
)
PRODUCE, CLIENT = "produce_raw_64k_1", "produce_client_64k_1"


def result(records: int, *, p99_us: int = 0, requests: int = 1) -> Result:
    latency = Latency(records, 500.0, 500, p99_us, 2_000, 3_000) if p99_us else None
    return Result(
        seconds=2.0,
        records=records,
        records_in_all=records,
        requests=requests,
        latency=latency,
        server_cpu_s=1.0,
    )


def paced(p99_us: int) -> Result:
    return result(1_000, p99_us=p99_us, requests=0)


RESULTS = {
    "bare-never": {PRODUCE: result(8_000_000)},
    "penstock-never": {
        PRODUCE: result(2_000_000),
        CLIENT: result(200_000),
        END_TO_END: paced(2_000),
    },
    "kafka-never": {PRODUCE: result(1_000_000), CLIENT: result(400_000), END_TO_END: paced(6_000)},
    "kafka-always": {PRODUCE: result(500)},
}


def made() -> report.Report:
    return report.Report(
        machine=MACHINE,
        rounds=3,
        window_s=2.0,
        results=RESULTS,
        spread={},
        ratios=report.ratios_of(RESULTS),
        rss_bytes={"penstock-never": 60_000_000},
        start_s={"penstock-never": 0.4},
        unavailable={"nats-never": "needs a network"},
        skipped={"kafka-always consume_raw_64k_1": "it broke"},
    )


def test_rates_count_the_records_values() -> None:
    one = result(2_000_000)

    assert one.records_per_s == 1_000_000
    assert one.mb_per_s == RECORD_BYTES
    assert one.server_cpu_ms_per_mb == pytest.approx(1_000 / (2 * RECORD_BYTES))


def test_ratios_are_taken_within_one_policy_and_more_is_better() -> None:
    assert report.ratios_of(RESULTS) == {
        "penstock-never / bare": {PRODUCE: 0.25},
        "penstock-never / kafka": {PRODUCE: 2.0, CLIENT: 0.5, END_TO_END: 3.0},
    }


def test_the_middle_round_is_by_rate_and_by_latency_when_the_rate_is_given() -> None:
    assert report.median([result(3), result(1), result(2)]).records == 2
    middle = report.median([paced(9), paced(1), paced(5)])
    assert middle.latency is not None
    assert middle.latency.p99_us == 5


def test_the_tables_name_the_machine_the_ratios_and_what_is_missing() -> None:
    text, markdown = report.as_text(made()), report.as_markdown(made())

    for shown in (text, markdown):
        assert MACHINE.title in shown
        assert "0.25×" in shown
        assert "not available: needs a network" in shown
        assert "no consume_raw_64k_1: it broke" in shown
        assert title_of(PRODUCE) in shown
        assert "server busy 50%" in shown


def test_a_report_survives_its_json() -> None:
    assert msgspec.json.decode(msgspec.json.encode(made()), type=report.Report) == made()


def test_every_scenario_has_a_title_of_its_own() -> None:
    assert len({title_of(name) for name in SCENARIOS}) == len(SCENARIOS) == 2 * len(WORKLOADS) + 1


def test_everything_is_measured_unless_something_is_chosen() -> None:
    everything = parse([])
    chosen = parse(["--quick", "--only", END_TO_END, "--systems", "penstock-always"])

    assert everything.systems == list(SYSTEMS)
    assert everything.only == [*WORKLOADS, END_TO_END]
    assert (chosen.systems, chosen.only) == (["penstock-always"], [END_TO_END])
    assert (chosen.timing, chosen.rounds) == (QUICK, 1)


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--systems", "penstock-never,nonesuch"])

    assert "unknown name: nonesuch" in capsys.readouterr().err
