"""Turns figures into what people read: a table on the terminal, Markdown, and JSON.

The three show the same rows. Every rate stands beside the processor time that it cost, since a
rate says how fast this machine is and the processor time says how good the server is.
"""

from collections.abc import Mapping, Sequence

import msgspec

from benchmarks.backlog import Backlog
from benchmarks.bars import BARS, Bar, Figures, Verdict
from benchmarks.load import Result
from benchmarks.machine import Machine
from benchmarks.scenarios import SCENARIOS

LOAD_BOUND = 0.95  # above this share of its core the generator was the limit
PAIRS = (
    ("penstock-never", "bare"),
    ("penstock-always", "bare"),
    ("penstock-always", "penstock-never"),
    ("penstock-never", "elasticmq"),
    ("penstock-always", "elasticmq"),
    ("penstock-never", "moto"),
    ("penstock-always", "moto"),
    ("penstock-never", "localstack"),
    ("penstock-always", "localstack"),
)


class Judged(msgspec.Struct, frozen=True):
    title: str
    condition: str
    value: float | None
    unit: str
    verdict: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    machine: Machine
    rounds: int
    window_s: float
    connections: int
    body_bytes: int
    figures: Figures
    rss_bytes: dict[str, int]  # by system, at the end of its last round
    start_s: dict[str, float]
    unavailable: dict[str, str]  # by system: the reason
    skipped: dict[str, str]  # by "system scenario": the reason
    bars: list[Judged]


Row = Sequence[str]


def judge_all(figures: Figures, bars: Sequence[Bar] = BARS) -> list[Judged]:
    judged = []
    for bar in bars:
        value, verdict = bar.judge(figures)
        judged.append(Judged(bar.title, bar.condition, value, bar.unit, verdict.value))
    return judged


def result_rows(report: Report) -> list[Row]:
    rows: list[Row] = [
        ("scenario", "system", "msg/s", "p50 ms", "p99 ms", "p99.9 ms", "CPU µs/request", "note")
    ]
    for name, scenario in SCENARIOS.items():
        for system, results in report.figures.results.items():
            if name in results:
                rows.append((scenario.title, system, *_cells(results[name], scenario.headline)))
    return rows


def _cells(result: Result, headline: str) -> Row:
    latency = result.latencies.get(headline)
    times = ("–", "–", "–")
    if latency is not None:
        times = (_ms(latency.p50_us), _ms(latency.p99_us), _ms(latency.p999_us))
    cpu = f"{result.server_cpu_us:.1f}"
    return (f"{result.messages_per_s:,.0f}", *times, cpu, "; ".join(_notes(result)))


def _notes(result: Result) -> list[str]:
    notes = []
    if result.load_cpu_share > LOAD_BOUND:
        notes.append("generator-bound")
    if result.is_drained:
        notes.append(f"drained after {result.seconds:.1f} s")
    if result.faults:
        notes.append(f"{result.faults} errors: {result.first_fault[:60]}")
    if result.missing:
        notes.append(f"{result.missing} never received")
    return notes


def ratio_rows(figures: Figures) -> list[Row]:
    """A paced run's rate is given, so it has no ratio."""
    columns = [
        scenario
        for scenario in SCENARIOS.values()
        if scenario.name != "end_to_end"
        and any(scenario.name in results for results in figures.results.values())
    ]
    rows: list[Row] = [("ratio", *(scenario.title for scenario in columns))]
    for system, other in PAIRS:
        values = [figures.ratio(system, s.name, other, s.name) for s in columns]
        if any(value is not None for value in values):
            rows.append((f"{system} / {other}", *(times(value) for value in values)))
    return rows


def system_rows(report: Report) -> list[Row]:
    rows: list[Row] = [("system", "start s", "memory MB", "note")]
    for system in (*report.figures.results, *report.unavailable):
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


def backlog_rows(backlog: Backlog) -> list[Row]:
    return [
        ("a backlog", "value"),
        ("messages waiting", f"{backlog.messages:,}"),
        ("filled at", f"{backlog.fill_messages_per_s:,.0f} msg/s"),
        ("memory", f"{backlog.rss_bytes / 1e6:.0f} MB"),
        ("memory after a restart", f"{backlog.rss_after_restart_bytes / 1e6:.0f} MB"),
        ("restart after a stop", f"{backlog.restart_s:.2f} s"),
        ("restart after SIGKILL", f"{backlog.restart_after_kill_s:.2f} s"),
        ("receive + delete", f"{backlog.receive_deep_per_s:,.0f} msg/s"),
        ("the same, nearly empty queue", f"{backlog.receive_shallow_per_s:,.0f} msg/s"),
    ]


def bar_rows(judged: Sequence[Judged]) -> list[Row]:
    rows: list[Row] = [("bar", "wanted", "measured", "")]
    for bar in judged:
        unit = "×" if bar.unit == "×" else f" {bar.unit}"
        value = "–" if bar.value is None else f"{bar.value:.3g}{unit}"
        rows.append((bar.title, bar.condition, value, bar.verdict))
    return rows


def tables(report: Report) -> list[list[Row]]:
    parts = [result_rows(report), system_rows(report)]
    ratios = ratio_rows(report.figures)
    if len(ratios) > 1:
        parts.insert(1, ratios)
    if report.figures.backlog is not None:
        parts.append(backlog_rows(report.figures.backlog))
    return [*parts, bar_rows(report.bars)]


def as_text(report: Report) -> str:
    return "\n\n".join([report.machine.title, *(as_columns(rows) for rows in tables(report))])


def as_markdown(report: Report) -> str:
    setting = (
        f"{report.connections} connections, {report.body_bytes}-byte bodies, one core for the "
        f"server, medians of {report.rounds} rounds of {report.window_s:g} s."
    )
    parts = [report.machine.title + ". " + setting, *(as_pipes(rows) for rows in tables(report))]
    return "\n\n".join(parts) + "\n"


def missed(judged: Sequence[Judged]) -> Mapping[str, str]:
    return {bar.title: bar.condition for bar in judged if bar.verdict == Verdict.MISSED}


def as_columns(rows: Sequence[Row]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        # The last column is prose.
        cells[-1] = row[-1]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "  ".join("─" * width for width in widths))
    return "\n".join(lines)


def as_pipes(rows: Sequence[Row]) -> str:
    lines = ["| " + " | ".join(cell.replace("|", "/") for cell in row) + " |" for row in rows]
    lines.insert(1, "|" + "---|" * len(rows[0]))
    return "\n".join(lines)


def _ms(value_us: int) -> str:
    return f"{value_us / 1_000:.2f}"


def times(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.2f}×" if value < 10 else f"{value:.0f}×"
