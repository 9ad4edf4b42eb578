"""The results as one picture: rates by scenario on a logarithmic axis, and what a request costs."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot

from benchmarks.report import Report
from benchmarks.scenarios import SCENARIOS

COLOURS = {
    "bare": "#9e9e9e",
    "penstock-never": "#2a7ab9",
    "penstock-always": "#0b3d66",
    "elasticmq": "#e08e0b",
    "moto": "#7a9a3a",
    "localstack": "#8e5ea2",
}
SHORT = {
    "send": "send",
    "receive_delete": "receive\n+ delete",
    "send_batch": "send\n× 10",
    "receive_delete_batch": "receive\n+ delete × 10",
    "fifo_send": "FIFO\nsend",
    "fifo_receive_delete": "FIFO receive\n+ delete",
}


def draw(report: Report, folder: Path) -> list[Path]:
    """Write PNG and SVG; returns their paths."""
    systems = list(report.figures.results)
    names = [
        name
        for name in SHORT
        if any(name in results for results in report.figures.results.values())
    ]
    figure, (rates, costs) = pyplot.subplots(
        1, 2, figsize=(12, 4.6), gridspec_kw={"width_ratios": [3, 1]}, layout="constrained"
    )
    width = 0.8 / max(len(systems), 1)
    for number, system in enumerate(systems):
        results = report.figures.results[system]
        places = [index + (number - (len(systems) - 1) / 2) * width for index in range(len(names))]
        heights = [results[n].messages_per_s if n in results else 0.0 for n in names]
        bars = rates.bar(places, heights, width, label=system, color=COLOURS.get(system))
        rates.bar_label(
            bars, [f"{h:,.0f}" if h else "" for h in heights], fontsize=6, rotation=90, padding=2
        )
        if "send" in results:
            cost = results["send"].server_cpu_us
            costs.barh(system, cost, color=COLOURS.get(system))
            costs.text(cost, system, f" {cost:,.0f}", va="center", fontsize=8)
    rates.set_yscale("log")
    rates.margins(y=0.15)
    rates.set_xticks(range(len(names)), [SHORT[name] for name in names], fontsize=8)
    rates.set_ylabel("messages per second")
    rates.set_title("Rate, one core for the server", fontsize=10)
    rates.legend(fontsize=7, ncols=2)
    costs.set_xscale("log")
    costs.margins(x=0.25)
    costs.invert_yaxis()
    costs.set_title(f"{SCENARIOS['send'].title}: CPU µs per request", fontsize=10)
    figure.suptitle(report.machine.title, fontsize=7, color="#555555")
    paths = [folder / "results.png", folder / "results.svg"]
    for path in paths:
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)
    return paths
