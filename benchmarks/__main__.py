"""``python -m benchmarks``: measure everything once and say which bars were met.

Systems take turns: each round starts every system, runs all scenarios on it and ends it, so that
whatever changes on the machine meanwhile falls on all of them. Figures are medians of the rounds.
"""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

import msgspec

from benchmarks import backlog, machine, plot, proc, report, scenarios
from benchmarks.bars import ALWAYS, Figures
from benchmarks.load import Result
from benchmarks.scenarios import PACED_RATE, SCENARIOS, LoadFailed, Scenario, Timing
from benchmarks.server import NotAvailable, Server
from benchmarks.systems import SYSTEMS, System

HERE = Path(__file__).parent
BACKLOG, START = "backlog", "start"
BACKLOG_MESSAGES = 1_000_000
QUICK_BACKLOG_MESSAGES = 20_000
FULL_WINDOW_S = 4.0
WARM_UP_SERIAL = 999_999


class Options(msgspec.Struct, frozen=True, kw_only=True):
    systems: list[str]
    only: list[str]
    rounds: int
    timing: Timing
    backlog_messages: int
    out: Path
    data: Path


class Bench:
    """One run of everything, and what it has found so far."""

    def __init__(self, options: Options, folder: Path) -> None:
        self._options = options
        self._folder = folder
        self._server_cores, self._load_cores = proc.split_cores()
        self._results: dict[str, dict[str, list[Result]]] = {}
        self._rss: dict[str, int] = {}
        self._start_s: dict[str, float] = {}
        self._unavailable: dict[str, str] = {}
        self._skipped: dict[str, str] = {}

    def run(self) -> report.Report:
        options = self._options
        here = machine.describe(self._folder)
        print(here.title, flush=True)
        self._prepare()
        for number in range(options.rounds):
            for name in options.systems:
                if name not in self._unavailable:
                    self._round(SYSTEMS[name], number)
        figures = Figures(
            results={s: {n: median(r) for n, r in by.items()} for s, by in self._results.items()},
            backlog=self._backlog(),
            empty_start_s=self._empty_start(),
        )
        return report.Report(
            machine=here,
            rounds=options.rounds,
            window_s=options.timing.window_s,
            connections=options.timing.connections,
            body_bytes=options.timing.body_bytes,
            figures=figures,
            rss_bytes=self._rss,
            start_s=self._start_s,
            unavailable=self._unavailable,
            skipped=self._skipped,
            bars=report.judge_all(figures),
        )

    def _prepare(self) -> None:
        for name in self._options.systems:
            try:
                SYSTEMS[name].prepare()
            except NotAvailable as reason:
                self._give_up(name, reason)

    def _round(self, system: System, number: int) -> None:
        place = self._folder / f"{system.name}-{number}"
        place.mkdir()
        try:
            server = system.start(folder=place, cores=self._server_cores)
        except NotAvailable as reason:
            self._give_up(system.name, reason)
            return
        try:
            self._start_s[system.name] = server.ready_s
            self._warm_up(system, server)
            for scenario in self._scenarios(system):
                if scenario.name == "end_to_end" and self._is_too_slow(system.name):
                    too_slow = f"it takes fewer than {2 * PACED_RATE:,} msg/s"
                    self._skipped[f"{system.name} {scenario.name}"] = too_slow
                    continue
                try:
                    result = scenarios.run(
                        scenario,
                        server,
                        is_queue=system.is_queue,
                        timing=self._options.timing,
                        cores=self._load_cores,
                        serial=number,
                    )
                except LoadFailed as problem:
                    self._skipped[f"{system.name} {scenario.name}"] = str(problem)
                    print(f"  {system.name:16} {scenario.title:32} failed: {problem}", flush=True)
                    continue
                self._keep(system.name, scenario, result)
            self._rss[system.name] = server.rss_bytes()
        finally:
            server.stop()
            shutil.rmtree(place, ignore_errors=True)

    def _warm_up(self, system: System, server: Server) -> None:
        """Let a compiler that works at run time finish before anything counts."""
        if not system.warm_up_s:
            return
        timing = msgspec.structs.replace(self._options.timing, warm_up_s=0.0)
        share = min(1.0, timing.window_s / FULL_WINDOW_S)
        for name in ("send", "receive_delete_batch"):
            timing = msgspec.structs.replace(timing, window_s=system.warm_up_s * share / 2)
            try:
                scenarios.run(
                    SCENARIOS[name],
                    server,
                    is_queue=True,
                    timing=timing,
                    cores=self._load_cores,
                    serial=WARM_UP_SERIAL,
                )
            except LoadFailed:
                pass  # still cold; the measured runs will say if there is more to it

    def _scenarios(self, system: System) -> list[Scenario]:
        wanted = [SCENARIOS[name] for name in self._options.only if name in SCENARIOS]
        if not system.is_queue:
            return [scenario for scenario in wanted if scenario.on_bare]
        return wanted

    def _is_too_slow(self, name: str) -> bool:
        """A system that cannot take the paced rate would only show an ever longer line."""
        sends = self._results.get(name, {}).get("send")
        return sends is not None and median(sends).messages_per_s < 2 * PACED_RATE

    def _keep(self, name: str, scenario: Scenario, result: Result) -> None:
        self._results.setdefault(name, {}).setdefault(scenario.name, []).append(result)
        latency = result.latencies.get(scenario.headline)
        p99 = f"p99 {latency.p99_us / 1_000:8.2f} ms" if latency else ""
        print(
            f"  {name:16} {scenario.title:32} {result.messages_per_s:10,.0f} msg/s  {p99}  "
            f"{result.server_cpu_us:8.1f} µs/request  load {result.load_cpu_share:4.0%}",
            flush=True,
        )

    def _backlog(self) -> backlog.Backlog | None:
        if BACKLOG not in self._options.only or not self._has_penstock():
            return None
        try:
            return backlog.measure(
                SYSTEMS[ALWAYS],
                self._folder / "backlog",
                messages=self._options.backlog_messages,
                rounds=self._options.rounds,
                timing=self._options.timing,
                server_cores=self._server_cores,
                load_cores=self._load_cores,
            )
        except (NotAvailable, LoadFailed) as problem:
            self._skipped[f"{ALWAYS} backlog"] = str(problem)
            return None

    def _empty_start(self) -> float | None:
        if START not in self._options.only or not self._has_penstock():
            return None
        try:
            return backlog.empty_start_s(SYSTEMS[ALWAYS], self._folder, self._server_cores)
        except NotAvailable as reason:
            self._skipped[f"{ALWAYS} start"] = str(reason)
            return None

    def _has_penstock(self) -> bool:
        return ALWAYS in self._options.systems and ALWAYS not in self._unavailable

    def _give_up(self, name: str, reason: NotAvailable) -> None:
        self._unavailable[name] = str(reason)
        print(f"  {name:16} not available: {reason}", flush=True)


def median(results: list[Result]) -> Result:
    """The round in the middle, whole, so that its rate and its latencies belong together."""

    def key(result: Result) -> float:
        paced = result.latencies.get("end to end")
        return result.messages_per_s if paced is None else paced.p99_us

    return sorted(results, key=key)[len(results) // 2]


def parse(arguments: list[str]) -> Options:
    what = [*SCENARIOS, BACKLOG, START]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--kafka", action="store_true", help="given first: python -m benchmarks.kafka instead"
    )
    parser.add_argument("--quick", action="store_true", help="one short round: does it run at all")
    parser.add_argument("--only", default=",".join(what), help=f"of {', '.join(what)}")
    parser.add_argument("--systems", default=",".join(SYSTEMS), help=f"of {', '.join(SYSTEMS)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--window", type=float, default=FULL_WINDOW_S, help="seconds measured per scenario"
    )
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument(
        "--data", type=Path, default=HERE / ".data", help="must be on the disk to be measured"
    )
    given = parser.parse_args(arguments)
    only, systems = given.only.split(","), given.systems.split(",")
    if given.kafka:
        parser.error("--kafka is given first, and what follows belongs to it")
    for name in (*(set(only) - set(what)), *(set(systems) - set(SYSTEMS))):
        parser.error(f"unknown name: {name}")
    timing = Timing(window_s=given.window, connections=given.connections)
    if given.quick:
        timing = Timing(warm_up_s=0.3, window_s=1.0, connections=given.connections)
    return Options(
        systems=systems,
        only=only,
        rounds=1 if given.quick else given.rounds,
        timing=timing,
        backlog_messages=QUICK_BACKLOG_MESSAGES if given.quick else BACKLOG_MESSAGES,
        out=given.out,
        data=given.data,
    )


def write(found: report.Report, out: Path) -> list[Path]:
    out.mkdir(parents=True, exist_ok=True)
    as_json, as_markdown = out / "results.json", out / "results.md"
    as_json.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    as_markdown.write_text(report.as_markdown(found))
    return [as_json, as_markdown, *plot.draw(found, out)]


def main() -> None:
    if sys.argv[1:2] == ["--kafka"]:
        from benchmarks.kafka.__main__ import main as measure_streams

        measure_streams(sys.argv[2:])
        return
    options = parse(sys.argv[1:])
    options.data.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(dir=options.data) as folder:
            found = Bench(options, Path(folder)).run()
    except KeyboardInterrupt:
        sys.exit("stopped: nothing was written")
    print("\n" + report.as_text(found) + "\n")
    for path in write(found, options.out):
        print(f"wrote {path}")
    if report.missed(found.bars):
        sys.exit("missed: " + "; ".join(f"{t} ({c})" for t, c in report.missed(found.bars).items()))


if __name__ == "__main__":
    main()
