"""``python -m benchmarks.kafka``: how fast records go in and out, beside the limit and the peers.

Systems take turns: each round starts every system, runs all scenarios on it and ends it, so that
whatever changes on the machine meanwhile falls on all of them. Figures are medians of the rounds.
"""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks import machine, proc
from benchmarks.kafka import memory, plot, report, scenarios
from benchmarks.kafka.job import Result
from benchmarks.kafka.scenarios import (
    CLIENT,
    END_TO_END,
    WORKLOADS,
    Measured,
    Timing,
    Workload,
    scenario_name,
    title_of,
)
from benchmarks.kafka.systems import SYSTEMS, System
from benchmarks.scenarios import LoadFailed
from benchmarks.server import NotAvailable, Server

HERE = Path(__file__).parents[1]
WHAT = (*WORKLOADS, END_TO_END)
WARM_UP = ("raw_64k_1", "raw_1m_16")
WARM_UP_SERIAL = 999_999
QUICK = Timing(warm_up_s=0.2, window_s=1.0, bytes_max=256 * 1024**2)


class Options(msgspec.Struct, frozen=True, kw_only=True):
    systems: list[str]
    only: list[str]
    rounds: int
    timing: Timing
    out: Path
    data: Path
    is_quick: bool = False


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
        memory.touch(self._folder, 2 * options.timing.bytes_max)
        for name in options.systems:
            try:
                SYSTEMS[name].prepare()
            except NotAvailable as reason:
                self._give_up(name, reason)
        for number in range(options.rounds):
            for name in options.systems:
                if name not in self._unavailable:
                    self._round(SYSTEMS[name], number)
        middle = {
            system: {name: report.median(found) for name, found in by_name.items()}
            for system, by_name in self._results.items()
        }
        return report.Report(
            machine=here,
            rounds=options.rounds,
            window_s=options.timing.window_s,
            results=middle,
            spread={
                system: {n: sorted(round(r.mb_per_s, 1) for r in each) for n, each in by.items()}
                for system, by in self._results.items()
            },
            ratios=report.ratios_of(middle),
            rss_bytes=self._rss,
            start_s=self._start_s,
            unavailable=self._unavailable,
            skipped=self._skipped,
        )

    def _round(self, system: System, number: int) -> None:
        place = self._folder / f"{system.name}-{number}"
        place.mkdir()
        try:
            server = system.start(folder=place, cores=self._server_cores)
        except NotAvailable as reason:
            self._give_up(system.name, reason)
            shutil.rmtree(place, ignore_errors=True)
            return
        try:
            self._start_s[system.name] = server.ready_s
            self._warm_up(system, server)
            for workload in self._workloads(system):
                self._measure(system, server, workload, number)
            if system.is_kafka and END_TO_END in self._options.only:
                self._measure_end_to_end(system, server, number)
            self._rss[system.name] = server.rss_bytes()
        except OSError as problem:
            self._fail(system.name, "round", f"the server has gone: {problem}")
        finally:
            server.stop()
            shutil.rmtree(place, ignore_errors=True)

    def _workloads(self, system: System) -> list[Workload]:
        wanted = [WORKLOADS[name] for name in self._options.only if name in WORKLOADS]
        return [each for each in wanted if system.is_kafka or each.kind != CLIENT]

    def _warm_up(self, system: System, server: Server) -> None:
        """Let a compiler that works at run time finish before anything counts."""
        if not system.warm_up_s:
            return
        seconds = 1.0 if self._options.is_quick else system.warm_up_s / (2 * len(WARM_UP))
        timing = Timing(warm_up_s=0.0, window_s=seconds, bytes_max=self._options.timing.bytes_max)
        for name in WARM_UP:
            try:
                list(self._run(system, server, WORKLOADS[name], WARM_UP_SERIAL, timing))
            except LoadFailed:
                pass  # still cold; the measured runs will say if there is more to it

    def _measure(self, system: System, server: Server, workload: Workload, number: int) -> None:
        try:
            for action, found in self._run(system, server, workload, number, self._options.timing):
                name = scenario_name(action, workload)
                if isinstance(found, LoadFailed):
                    self._fail(system.name, name, str(found))
                else:
                    self._keep(system.name, name, found)
        except LoadFailed as problem:
            self._fail(system.name, workload.name, str(problem))

    def _run(
        self, system: System, server: Server, workload: Workload, serial: int, timing: Timing
    ) -> Measured:
        return scenarios.run_workload(
            workload, system, server, timing=timing, cores=self._load_cores, serial=serial
        )

    def _measure_end_to_end(self, system: System, server: Server, number: int) -> None:
        try:
            found = scenarios.run_end_to_end(
                system,
                server,
                timing=self._options.timing,
                cores=self._load_cores,
                serial=number,
            )
        except LoadFailed as problem:
            self._fail(system.name, END_TO_END, str(problem))
            return
        self._keep(system.name, END_TO_END, found)

    def _keep(self, system: str, name: str, result: Result) -> None:
        self._results.setdefault(system, {}).setdefault(name, []).append(result)
        p99 = f"p99 {result.latency.p99_us / 1_000:8.2f} ms" if result.latency else " " * 15
        print(
            f"  {system:16} {title_of(name):40} {result.mb_per_s:9,.1f} MB/s  {p99}  "
            f"{result.server_cpu_ms_per_mb:7.2f} CPU ms/MB  load {result.load_cpu_share:4.0%}"
            f"  {result.first_fault[:60]}",
            flush=True,
        )

    def _fail(self, system: str, name: str, why: str) -> None:
        self._skipped[f"{system} {name}"] = why
        print(f"  {system:16} {name:40} failed: {why}", flush=True)

    def _give_up(self, name: str, reason: NotAvailable) -> None:
        self._unavailable[name] = str(reason)
        print(f"  {name:16} not available: {reason}", flush=True)


def parse(arguments: Sequence[str]) -> Options:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kafka", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round: does it run at all")
    parser.add_argument("--only", default=",".join(WHAT), help=f"of {', '.join(WHAT)}")
    parser.add_argument("--systems", default=",".join(SYSTEMS), help=f"of {', '.join(SYSTEMS)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--window", type=float, default=Timing().window_s, help="seconds measured per scenario"
    )
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument(
        "--data", type=Path, default=HERE / ".data", help="must be on the disk to be measured"
    )
    given = parser.parse_args(arguments)
    only, systems = given.only.split(","), given.systems.split(",")
    for name in (*(set(only) - set(WHAT)), *(set(systems) - set(SYSTEMS))):
        parser.error(f"unknown name: {name}")
    return Options(
        systems=systems,
        only=only,
        rounds=1 if given.quick else given.rounds,
        timing=QUICK if given.quick else Timing(window_s=given.window),
        out=given.out,
        data=given.data.resolve(),
        is_quick=given.quick,
    )


def write(found: report.Report, out: Path) -> list[Path]:
    out.mkdir(parents=True, exist_ok=True)
    as_json, as_markdown = out / "kafka.json", out / "kafka.md"
    as_json.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    as_markdown.write_text(report.as_markdown(found))
    return [as_json, as_markdown, *plot.draw(found, out)]


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(sys.argv[1:] if arguments is None else arguments)
    options.data.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(dir=options.data) as folder:
            found = Bench(options, Path(folder)).run()
    except KeyboardInterrupt:
        sys.exit("stopped: nothing was written")
    print("\n" + report.as_text(found) + "\n")
    for path in write(found, options.out):
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
