"""The Kafka view's results as one picture: one row per durability, raw requests beside a client."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot
from matplotlib.axes import Axes

from benchmarks.kafka.job import Action
from benchmarks.kafka.report import POLICIES, Report
from benchmarks.kafka.scenarios import CLIENT, RAW, WORKLOADS, scenario_name

COLOURS = {
    "bare": "#9e9e9e",
    "penstock": "#2a7ab9",
    "kafka": "#e08e0b",
    "redis": "#c0392b",
    "nats": "#7a9a3a",
}
TITLES = {
    RAW: "requests made beforehand: the server's ceiling",
    CLIENT: "librdkafka: what an application gets",
}


def draw(report: Report, folder: Path) -> list[Path]:
    """Write PNG and SVG; returns their paths."""
    figure, grid = pyplot.subplots(2, 2, figsize=(13, 8), layout="constrained", sharey=True)
    for policy, row in zip(POLICIES, grid, strict=True):
        systems = [name for name in report.results if name.endswith(f"-{policy}")]
        for kind, axes in zip((RAW, CLIENT), row, strict=True):
            _draw_one(axes, report, systems, kind)
            axes.set_title(f"fsync {policy}: {TITLES[kind]}", fontsize=9)
    figure.suptitle(report.machine.title, fontsize=7, color="#555555")
    paths = [folder / "kafka.png", folder / "kafka.svg"]
    for path in paths:
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)
    return paths


def _draw_one(axes: Axes, report: Report, systems: list[str], kind: str) -> None:
    columns = [
        (scenario_name(action, workload), f"{action.value}\n{workload.title}".replace(", ", "\n"))
        for action in (Action.PRODUCE, Action.CONSUME)
        for workload in WORKLOADS.values()
        if workload.kind == kind
    ]
    shown = [s for s in systems if any(name in report.results[s] for name, _ in columns)]
    width = 0.8 / max(len(shown), 1)
    for number, system in enumerate(shown):
        results = report.results[system]
        places = [index + (number - (len(shown) - 1) / 2) * width for index in range(len(columns))]
        heights = [results[name].mb_per_s if name in results else 0.0 for name, _ in columns]
        short = system.partition("-")[0]
        bars = axes.bar(places, heights, width, label=short, color=COLOURS.get(short))
        labels = [f"{height:,.0f}" if height else "" for height in heights]
        axes.bar_label(bars, labels, fontsize=6, rotation=90, padding=2)
    axes.set_yscale("log")
    axes.margins(y=0.25)
    axes.set_xticks(range(len(columns)), [label for _, label in columns], fontsize=7)
    axes.set_ylabel("MB/s of record values", fontsize=8)
    if shown:
        axes.legend(fontsize=7, ncols=len(shown), loc="upper left")
