"""The page a run leaves behind: what was done to the cluster, how clients felt it, and what was
counted. One file that needs nothing else; beside it the ledgers, the nodes' logs, and the verdict
as JSON for machines."""

from __future__ import annotations

import os
import platform
from collections import defaultdict
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import msgspec
from tests.lab.rows import Change
from tests.lab.run import Outcome
from tests.lab.series import KINDS, NS, Series, build_series
from tests.lab.svg import Axis, Band, Line, bars_plot, lanes_plot, lines_plot

VERDICTS = {
    "good": "Nothing was broken.",
    "INVALID": "The run is invalid: it proves nothing.",
    "BAD": "The run is bad.",
}
STYLE_NAMES = {"send": "s0", "receive": "s1", "delete": "s2", "produce": "s3"}

_STYLE = """
:root { --ink: #1b1f24; --soft: #68707c; --paper: #ffffff; --grid: #e6e8ec; --band: #f6dcc6;
  --c0: #1f6feb; --c1: #1a7f4b; --c2: #8250df; --c3: #c2410c; --bad: #b42318; --good: #1a7f4b; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --soft: #9aa3af; --paper: #14171b;
  --grid: #2a2f36; --band: #4a3523; --c0: #6ea8ff; --c1: #5ec98d; --c2: #b794f6; --c3: #ff9d6b;
  --bad: #ff7b72; --good: #5ec98d; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 1080px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0 0 .3rem; } h2 { font-size: 1.05rem; margin: 2rem 0 .4rem; }
p.sub, .legend, figcaption { color: var(--soft); margin: 0 0 .5rem; }
.verdict { font-weight: 600; } .verdict.bad, td.bad { color: var(--bad); }
.verdict.good { color: var(--good); }
svg { width: 100%; height: auto; display: block; } .legend svg { width: 22px; display: inline; }
.key { margin-right: 1.2rem; } .key svg { margin-right: .35rem; }
.grid { stroke: var(--grid); stroke-width: 1; } .band { fill: var(--band); }
.band-number, .tick, .lane { font-size: 11px; fill: var(--soft); }
.tick { text-anchor: middle; } .lane { text-anchor: end; }
.bar-number { font-size: 11px; fill: var(--paper); text-anchor: middle; }
polyline, .legend line { fill: none; stroke-width: 1.7; stroke-linejoin: round; }
.bar { stroke-width: 3; } .dot { stroke: none; }
.s0 { stroke: var(--c0); } .s1 { stroke: var(--c1); } .s2 { stroke: var(--c2); }
.s3 { stroke: var(--c3); } .dim { stroke-dasharray: 3 3; stroke-width: 1.2; }
circle.s0 { fill: var(--c0); } circle.s1 { fill: var(--c1); } circle.s2 { fill: var(--c2); }
circle.s3 { fill: var(--c3); }
rect.fault { fill: var(--c3); } rect.up { fill: var(--c1); opacity: .55; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .25rem .8rem .25rem 0; border-bottom: 1px solid var(--grid);
  vertical-align: top; }
th { font-weight: 600; color: var(--soft); } td.n, th.n { text-align: right; white-space: nowrap; }
td:first-child { color: var(--soft); }
.counts { display: grid; gap: .5rem; grid-template-columns: repeat(auto-fill, minmax(8rem, 1fr)); }
.counts div { border: 1px solid var(--grid); border-radius: 6px; padding: .4rem .7rem; }
.counts b { display: block; font-size: 1.25rem; } .counts .bad { border-color: var(--bad); }
.counts .bad b { color: var(--bad); }
pre { white-space: pre-wrap; font-size: 12px; border: 1px solid var(--grid); padding: .6rem;
  border-radius: 6px; max-height: 24rem; overflow: auto; }
"""


def write_report(outcome: Outcome, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number, log in outcome.logs.items():
        (folder / f"n{number}.log").write_text(log, "utf-8")
    rows = [
        {
            "second": round((change.at - outcome.started_at) / NS, 3),
            "partition": change.partition,
            "row": change.after,
        }
        for change in outcome.changes
    ]
    (folder / "rows.jsonl").write_bytes(msgspec.json.Encoder().encode_lines(rows))
    judgement = outcome.judgement
    verdict = {
        "profile": outcome.options.profile.name,
        "seed": outcome.options.seed,
        "is_good": judgement.is_good,
        "counts": judgement.counts,
        "coverage": judgement.coverage,
        "worthless": judgement.worthless,
        "outages_ms": judgement.outages_ms,
        "faults": outcome.faults,
        "first": judgement.first,
    }
    (folder / "verdict.json").write_bytes(msgspec.json.format(msgspec.json.encode(verdict)))
    page = folder / "report.html"
    page.write_text(render(outcome), "utf-8")
    return page


def render(outcome: Outcome) -> str:
    axis = Axis((outcome.ended_at - outcome.started_at) / NS)
    bands = [
        Band(
            (fault.injected_at - outcome.started_at) / NS,
            (fault.healed_at - outcome.started_at) / NS,
            f"{number}. {fault.name}: {', '.join(fault.victims)}",
            number,
        )
        for number, fault in enumerate(outcome.faults, 1)
    ]
    series = build_series(outcome.events, outcome.kafka, outcome.started_at)
    title = f"Penstock fault lab: {outcome.options.profile.name}, seed {outcome.options.seed}"
    sections = [
        _head(title, outcome, axis.seconds),
        _counts(outcome),
        _section(
            "Faults",
            "Numbers stand for the faults in the plots below. No send: the longest time in which"
            " some queue took nothing, until the next fault.",
            _faults(outcome),
        ),
        _section(
            "Nodes and faults",
            "Green: registered with the cluster. Orange: from the fault to its end.",
            lanes_plot(axis, _lanes(outcome, axis, bands)),
        ),
        _section(
            "Messages per second",
            "Sent, received and deleted.",
            lines_plot(axis, bands, _rates(series, axis, KINDS[:3]), unit="/s"),
        ),
        *(
            [
                _section(
                    "Records per second",
                    "Acknowledged to the Kafka producer.",
                    lines_plot(axis, bands, _rates(series, axis, KINDS[3:]), unit="/s"),
                )
            ]
            if series["produce"].counts
            else []
        ),
        _section(
            "Time to an answer: the slowest",
            "Of each second the 99th percentile. A receive waits for messages, so its time is not"
            " all work.",
            lines_plot(axis, bands, _latencies(series, axis, 0.99), unit="ms", is_log=True),
        ),
        _section(
            "Time to an answer: the median",
            "Of each second.",
            lines_plot(axis, bands, _latencies(series, axis, 0.5), unit="ms", is_log=True),
        ),
        _section(
            "Calls that failed or were not answered",
            "Per second; a message of a batch counts for itself.",
            bars_plot(axis, bands, _failures(series, axis.seconds), unit="/s"),
        ),
        _section(
            "Failovers and changes of in-sync sets",
            "Partitions per second.",
            bars_plot(axis, bands, _changes(outcome), unit="/s"),
        ),
        _section("What the run went through", "", _coverage(outcome)),
        _offenders(outcome.judgement.first),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>\n"
        + "\n".join(sections)
        + "\n</body></html>\n"
    )


# ── Text ─────────────────────────────────────────────────────────────────────────────────────


def _head(title: str, outcome: Outcome, seconds: float) -> str:
    good = outcome.judgement.is_good
    words = VERDICTS[outcome.judgement.word]
    why = "; ".join(outcome.judgement.worthless)
    machine = f"{os.cpu_count()} cores, {platform.system()} {platform.release()}"
    left_out = "".join(f"<br>Left out: {escape(text)}." for text in outcome.left_out)
    return (
        f'<h1>{escape(title)}</h1><p class="sub">{seconds:.0f} s of load, three nodes and three'
        f" etcd members on one machine ({escape(machine)}).{left_out}</p>"
        f'<p class="verdict {"good" if good else "bad"}">{words} {escape(why)}</p>'
    )


def _counts(outcome: Outcome) -> str:
    cells = "".join(
        f'<div class="{"bad" if count else ""}">{name}<b>{count}</b></div>'
        for name, count in outcome.judgement.counts.items()
    )
    return _section("Invariants", "Each must be zero.", f'<div class="counts">{cells}</div>')


def _faults(outcome: Outcome) -> str:
    outages = list(outcome.judgement.outages_ms.values())
    rows = "".join(
        "<tr>"
        f"<td>{number}</td><td>{escape(fault.name)}</td><td>{escape(', '.join(fault.victims))}</td>"
        f'<td class="n">{(fault.injected_at - outcome.started_at) / NS:.1f}</td>'
        f'<td class="n">{(fault.healed_at - fault.injected_at) / NS:.1f}</td>'
        f'<td class="n">{outages[number - 1] / 1_000:.1f}</td>'
        + (
            f"<td>{escape(fault.evidence)}</td></tr>"
            if fault.evidence
            else '<td class="bad">had no effect</td></tr>'
        )
        for number, fault in enumerate(outcome.faults, 1)
    )
    heads = (
        "<th></th><th>fault</th><th>on</th>"
        '<th class="n">from (s)</th><th class="n">for (s)</th><th class="n">no send for (s)</th>'
        "<th>what it did</th>"
    )
    return f"<table><tr>{heads}</tr>{rows}</table>"


def _coverage(outcome: Outcome) -> str:
    cells = "".join(
        f"<div>{escape(name.replace('_', ' '))}<b>{count:,}</b></div>"
        for name, count in outcome.judgement.coverage.items()
    )
    return f'<div class="counts">{cells}</div>'


def _offenders(first: Mapping[str, str]) -> str:
    if not first:
        return ""
    blocks = "".join(
        f"<h2>{name}</h2><pre>{escape(why[:8_000])}</pre>" for name, why in first.items()
    )
    return f"<h2>The first of each kind</h2>{blocks}"


def _section(title: str, text: str, body: str) -> str:
    return f'<h2>{escape(title)}</h2><p class="sub">{escape(text)}</p>{body}'


# ── Plots ────────────────────────────────────────────────────────────────────────────────────


def _lanes(
    outcome: Outcome, axis: Axis, bands: Sequence[Band]
) -> dict[str, list[tuple[float, float, str, str]]]:
    lanes: dict[str, list[tuple[float, float, str, str]]] = {
        "faults": [(band.start, band.end, "fault", band.label) for band in bands]
    }
    since: dict[int, float] = {}
    for at, node, came in outcome.registrations:
        lane = lanes.setdefault(f"n{node}", [])
        second = (at - outcome.started_at) / NS
        if came:
            since.setdefault(node, second)
        elif node in since:
            lane.append((since.pop(node), second, "up", f"n{node} registered"))
    for node, second in since.items():
        lanes[f"n{node}"].append((second, axis.seconds, "up", f"n{node} registered"))
    return {
        name: [bar for bar in lanes[name] if bar[1] >= 0] for name in sorted(lanes, key=_lane_order)
    }


def _lane_order(name: str) -> tuple[bool, str]:
    return name != "faults", name


def _rates(series: Mapping[str, Series], axis: Axis, kinds: Sequence[str]) -> list[Line]:
    seconds = range(int(axis.seconds))
    return [
        Line(kind, STYLE_NAMES[kind], {at: series[kind].counts.get(at, 0) for at in seconds})
        for kind in kinds
        if series[kind].counts
    ]


def _latencies(series: Mapping[str, Series], axis: Axis, share: float) -> list[Line]:
    lines = []
    for kind in KINDS:
        points = {
            second: series[kind].percentile(second, share)
            for second in sorted(series[kind].took_ms)
            if 0 <= second < axis.seconds
        }
        if points:
            lines.append(Line(kind, STYLE_NAMES[kind], points))
    return lines


def _failures(series: Mapping[str, Series], seconds: float) -> list[Line]:
    return [
        Line(
            kind,
            STYLE_NAMES[kind],
            {s: n for s, n in series[kind].failed.items() if 0 <= s < seconds},
        )
        for kind in KINDS
        if series[kind].counts
    ]


def _changes(outcome: Outcome) -> list[Line]:
    def per_second(changes: Sequence[Change]) -> dict[int, float | None]:
        counts: dict[int, float | None] = defaultdict(float)
        for change in changes:
            second = (change.at - outcome.started_at) // NS
            if second >= 0:
                counts[second] = (counts[second] or 0.0) + 1
        return counts

    return [
        Line("failovers", "s3", per_second([c for c in outcome.changes if c.is_failover])),
        Line("in-sync sets", "s0", per_second([c for c in outcome.changes if c.is_in_sync_change])),
    ]
