"""Ratios, verdicts and tables from given figures."""

import msgspec
import pytest
from benchmarks import report
from benchmarks.__main__ import median, parse
from benchmarks.backlog import Backlog
from benchmarks.bars import BARS, Figures, Verdict
from benchmarks.load import Latency, Result
from benchmarks.machine import Machine
from benchmarks.profile import top_functions

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


def result(scenario: str, rate: int, *, p99_us: int = 900, name: str = "send") -> Result:
    latency = Latency(rate, 500.0, 500, p99_us, 2_000, 3_000)
    return Result(
        scenario=scenario,
        seconds=1.0,
        requests=rate,
        messages=rate,
        latencies={name: latency},
        server_cpu_us=20.0,
    )


def figures() -> Figures:
    return Figures(
        results={
            "bare": {"send": result("send", 50_000)},
            "penstock-never": {
                "send": result("send", 10_000),
                "receive_delete": result("receive_delete", 3_000, name="receive"),
            },
            "penstock-always": {
                "end_to_end": result("end_to_end", 1_000, p99_us=9_999, name="end to end")
            },
            "moto": {"send": result("send", 500)},
        },
        backlog=Backlog(
            messages=1_000_000,
            fill_messages_per_s=40_000,
            rss_bytes=149_000_000,
            rss_anon_bytes=60_000_000,
            rss_after_restart_bytes=80_000_000,
            restart_s=0.4,
            restart_after_kill_s=3.0,
            receive_deep_per_s=2_700,
            receive_shallow_per_s=3_000,
        ),
    )


def verdicts() -> dict[str, str]:
    return {judged.title: judged.verdict for judged in report.judge_all(figures())}


@pytest.mark.parametrize(
    ("title", "verdict"),
    [
        ("send, fsync never / bare", Verdict.MET),
        ("send, fsync always / bare", Verdict.UNKNOWN),
        ("receive + delete cycles / send, fsync never", Verdict.MISSED),
        ("send / moto", Verdict.MET),
        ("end to end p99 at 1,000 msg/s, fsync always", Verdict.MET),
        ("memory with the backlog", Verdict.MET),
        ("restart with the backlog, after a stop", Verdict.MET),
        ("restart with the backlog, after SIGKILL", Verdict.MISSED),
        ("receive from the backlog / from a nearly empty queue", Verdict.MET),
        ("start, empty", Verdict.UNKNOWN),
    ],
)
def test_a_bar_is_met_missed_or_not_measured(title: str, verdict: Verdict) -> None:
    assert verdicts()[title] == verdict.value


def test_every_bar_has_a_title_of_its_own() -> None:
    assert len({bar.title for bar in BARS}) == len(BARS)


def full_report() -> report.Report:
    return report.Report(
        machine=MACHINE,
        rounds=3,
        window_s=4.0,
        connections=32,
        body_bytes=256,
        figures=figures(),
        rss_bytes={"bare": 25_000_000},
        start_s={"bare": 0.1},
        unavailable={"elasticmq": "needs java"},
        skipped={"moto end_to_end": "it is slow"},
        bars=report.judge_all(figures()),
    )


def test_the_tables_name_the_machine_the_ratios_and_what_could_not_be_had() -> None:
    found = full_report()
    for text in (report.as_text(found), report.as_markdown(found)):
        assert "Test CPU, 2 cores" in text
        assert "not available: needs java" in text
        assert "no end_to_end: it is slow" in text
        assert "0.20×" in text  # penstock-never / bare
        assert "20×" in text  # penstock-never / moto
        assert "1,000,000" in text


def test_markdown_rows_all_have_as_many_cells_as_their_head() -> None:
    for block in report.as_markdown(full_report()).split("\n\n"):
        if block.startswith("|"):
            assert len({line.count("|") for line in block.strip().splitlines()}) == 1


def test_a_generator_at_its_limit_and_errors_are_said() -> None:
    bound = msgspec.structs.replace(
        result("send", 10), load_cpu_share=0.99, faults=2, first_fault="500 oops"
    )
    changed = msgspec.structs.replace(figures(), results={"bare": {"send": bound}})
    text = report.as_text(msgspec.structs.replace(full_report(), figures=changed))
    assert "generator-bound; 2 errors: 500 oops" in text


def test_results_survive_json() -> None:
    found = full_report()
    again = msgspec.json.decode(msgspec.json.encode(found), type=report.Report)
    assert again == found


def test_the_median_round_is_taken_whole_and_a_paced_one_by_its_p99() -> None:
    assert median([result("send", rate) for rate in (3, 1, 2)]).messages == 2
    paced = [
        result("end_to_end", 1_000, p99_us=p99_us, name="end to end") for p99_us in (9, 50, 20)
    ]
    assert median(paced).latencies["end to end"].p99_us == 20


def test_quick_means_one_short_round(capsys: pytest.CaptureFixture[str]) -> None:
    options = parse(["--quick", "--systems", "bare", "--only", "send"])
    assert (options.rounds, options.systems, options.only) == (1, ["bare"], ["send"])
    assert options.timing.window_s < 2
    with pytest.raises(SystemExit):
        parse(["--only", "sned"])
    assert "unknown name: sned" in capsys.readouterr().err


def test_folded_stacks_become_functions_without_idle_threads() -> None:
    folded = (
        "main (a.py:1);work (b.py:7) 3\n"
        "main (a.py:2);work (b.py:9);leaf (c.py:1) 2\n"
        "run (t.py:1);_worker (concurrent/futures/thread.py:81) 90\n"
    )
    assert top_functions(folded) == [("work (b.py)", 3, 5), ("leaf (c.py)", 2, 2)]
