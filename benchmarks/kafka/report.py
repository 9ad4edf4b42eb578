"""Figures of the Kafka view as people read them: rates, then ratios against the limit and against
each peer with the same durability."""

from collections.abc import Mapping, Sequence

import msgspec

from benchmarks.kafka.job import RECORD_BYTES, Result
from benchmarks.kafka.scenarios import (
    CONNECTIONS,
    END_TO_END,
    PRODUCE_IN_FLIGHT,
    RAW,
    SCENARIOS,
    title_of,
)
from benchmarks.machine import Machine
from benchmarks.report import LOAD_BOUND, Row, as_columns, as_pipes, times

SERVER_BUSY = 0.8  # below this share of its core it waited, for a disk or for somebody else
POLICIES = ("never", "always")
OURS = "penstock"
LIMIT = "bare"
OTHERS = (LIMIT, "kafka", "redis", "nats")


class Report(msgspec.Struct, frozen=True, kw_only=True):
    machine: Machine
    rounds: int
    window_s: float
    results: dict[str, dict[str, Result]]  # by system, then by scenario: the middle round
    spread: dict[str, dict[str, list[float]]]  # MB/s of all rounds, lowest first
    ratios: dict[str, dict[str, float]]  # by "ours / other", then by scenario
    rss_bytes: dict[str, int]
    start_s: dict[str, float]
    unavailable: dict[str, str]  # by system: the reason
    skipped: dict[str, str]  # by "system scenario": the reason


Results = Mapping[str, Mapping[str, Result]]


def ratios_of(results: Results) -> dict[str, dict[str, float]]:
    """Rates against each other; end to end it is the other's p99 by ours, so that more is better
    everywhere."""
    found: dict[str, dict[str, float]] = {}
    for policy in POLICIES:
        ours = results.get(f"{OURS}-{policy}", {})
        for other in OTHERS:
            theirs = results.get(f"{other}-{policy}", {})
            by_scenario = {
                name: value
                for name in SCENARIOS
                if name in ours
                and _is_fair(other, name)
                and (reference := theirs.get(name)) is not None
                and (value := _ratio(name, ours[name], reference)) is not None
            }
            if by_scenario:
                found[f"{OURS}-{policy} / {other}"] = by_scenario
    return found


def _is_fair(other: str, name: str) -> bool:
    """The limit is a server's: a client that waits for its own core says nothing about it."""
    return other != LIMIT or RAW in name


def _ratio(name: str, ours: Result, other: Result) -> float | None:
    if name != END_TO_END:
        return ours.mb_per_s / other.mb_per_s if other.mb_per_s else None
    if ours.latency is None or other.latency is None or not ours.latency.p99_us:
        return None
    return other.latency.p99_us / ours.latency.p99_us


def result_rows(report: Report) -> list[Row]:
    rows: list[Row] = [
        ("scenario", "system", "MB/s", "records/s", "p50 ms", "p99 ms", "CPU ms/MB", "note")
    ]
    for name in SCENARIOS:
        for system, results in report.results.items():
            if name in results:
                rows.append((title_of(name), system, *_cells(results[name])))
    return rows


def _cells(result: Result) -> Row:
    latency = ("–", "–")
    if result.latency is not None:
        latency = (f"{result.latency.p50_us / 1e3:.2f}", f"{result.latency.p99_us / 1e3:.2f}")
    rates = (f"{result.mb_per_s:,.1f}", f"{result.records_per_s:,.0f}")
    return (*rates, *latency, f"{result.server_cpu_ms_per_mb:.2f}", "; ".join(_notes(result)))


def _notes(result: Result) -> list[str]:
    notes = []
    if result.load_cpu_share > LOAD_BOUND:
        notes.append("generator-bound")
    elif result.requests and result.server_cpu_share < SERVER_BUSY:
        notes.append(f"server busy {result.server_cpu_share:.0%}")
    if result.faults:
        notes.append(f"{result.faults} errors: {result.first_fault[:60]}")
    if result.missing:
        notes.append(f"{result.missing} never received")
    return notes


def ratio_rows(report: Report) -> list[Row]:
    pairs = list(report.ratios)
    rows: list[Row] = [("scenario", *pairs)]
    for name in SCENARIOS:
        values = [report.ratios[pair].get(name) for pair in pairs]
        if any(value is not None for value in values):
            rows.append((title_of(name), *(times(value) for value in values)))
    return rows


def system_rows(report: Report) -> list[Row]:
    rows: list[Row] = [("system", "start s", "memory MB", "note")]
    for system in (*report.results, *report.unavailable):
        start_s, rss = report.start_s.get(system), report.rss_bytes.get(system)
        reasons = []
        if system in report.unavailable:
            reasons.append(f"not available: {report.unavailable[system]}")
        reasons += [
            f"no {what.partition(' ')[2]}: {why}"
            for what, why in report.skipped.items()
            if what.partition(" ")[0] == system
        ]
        rows.append(
            (
                system,
                "–" if start_s is None else f"{start_s:.2f}",
                "–" if rss is None else f"{rss / 1e6:.0f}",
                "; ".join(reasons),
            )
        )
    return rows


def tables(report: Report) -> list[list[Row]]:
    parts = [result_rows(report), system_rows(report)]
    if report.ratios:
        parts.insert(1, ratio_rows(report))
    return parts


def setting_of(report: Report) -> str:
    return (
        f"Records of {RECORD_BYTES} bytes, one core for the server, raw requests over "
        f"{CONNECTIONS} connections with {PRODUCE_IN_FLIGHT} in flight each, medians of "
        f"{report.rounds} rounds of {report.window_s:g} s. Ratios above 1 are in our favour."
    )


def as_text(report: Report) -> str:
    return "\n\n".join([report.machine.title, *(as_columns(rows) for rows in tables(report))])


def as_markdown(report: Report) -> str:
    head = f"{report.machine.title}. {setting_of(report)}"
    return "\n\n".join([head, *(as_pipes(rows) for rows in tables(report))]) + "\n"


def median(results: Sequence[Result]) -> Result:
    """The round in the middle, whole, so that its rate and its latencies belong together."""

    def key(result: Result) -> float:
        is_paced = result.latency is not None and not result.requests
        return result.latency.p99_us if is_paced and result.latency else result.mb_per_s

    return sorted(results, key=key)[len(results) // 2]
