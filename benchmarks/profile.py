"""Where a server's time goes under load: ``python -m benchmarks.profile [scenario] [system]``.

Runs one scenario and samples the server with py-spy meanwhile: a flame graph to look at, and the
functions with most samples as text. Sampling from outside costs the server a pause per sample;
rates measured here are not for quoting.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks import proc, scenarios
from benchmarks.scenarios import SCENARIOS, Scenario, Timing
from benchmarks.server import NotAvailable, Server
from benchmarks.systems import SYSTEMS, System

HERE = Path(__file__).parent
PY_SPY = Path(sys.prefix) / "bin" / "py-spy"
SAMPLES_PER_S = 200
TOP = 30
LINE = re.compile(r":\d+\)$")
# A pool's thread that waits for work sits in a lock; py-spy takes it for busy.
IDLE = "_worker (concurrent/futures/thread.py"


def start_sampling(server: Server, *, style: str, out: Path, seconds: int) -> subprocess.Popen[str]:
    command = [str(PY_SPY), "record", "--pid", str(server.pid), "--output", str(out)]
    command += ["--format", style, "--rate", str(SAMPLES_PER_S), "--duration", str(seconds)]
    return subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace"
    )


def top_functions(folded: str) -> list[tuple[str, int, int]]:
    """From folded stacks (``a;b;c count``): function, samples in it, samples in it or below.
    All functions, those with most samples of their own first."""
    own: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for line in folded.splitlines():
        stack, _, count = line.rpartition(" ")
        frames = [LINE.sub(")", frame) for frame in stack.split(";")]
        if not count.isdigit() or frames[-1].startswith(IDLE):
            continue
        own[frames[-1]] += int(count)
        for frame in set(frames):
            total[frame] += int(count)
    return [(name, count, total[name]) for name, count in own.most_common()]


def as_text(folded: str) -> str:
    rows = top_functions(folded)
    all_samples = sum(own for _, own, _ in rows)
    lines = ["   own  +below  function"]
    for name, own, total in rows[:TOP]:
        lines.append(f"{own / all_samples:6.1%}  {total / all_samples:6.1%}  {name}")
    return "\n".join(lines) + "\n"


def record(
    system: System,
    server: Server,
    scenario: Scenario,
    begin: Callable[[], subprocess.Popen[str]],
    *,
    seconds: int,
    serial: int,
) -> None:
    """Run the scenario, with the sampler begun once the queue is filled."""
    samplers: list[subprocess.Popen[str]] = []
    _, load_cores = proc.split_cores()
    try:
        result = scenarios.run(
            scenario,
            server,
            is_queue=system.is_queue,
            timing=Timing(warm_up_s=0.5, window_s=float(seconds)),
            cores=load_cores,
            serial=serial,
            before_load=lambda: samplers.append(begin()),
        )
    finally:
        problems = [sampler.communicate(timeout=seconds + 30)[1] for sampler in samplers]
    if any(sampler.returncode for sampler in samplers):
        raise NotAvailable(f"py-spy: {problems[0].strip()[-200:]}")
    print(f"{result.messages_per_s:,.0f} msg/s while sampled", flush=True)


def run(scenario_name: str, system_name: str, *, seconds: int, out: Path) -> list[Path]:
    system = SYSTEMS[system_name]
    system.prepare()
    server_cores, _ = proc.split_cores()
    scenario = SCENARIOS[scenario_name]
    out.mkdir(parents=True, exist_ok=True)
    stem = out / f"{system_name}-{scenario_name}"
    outputs = {"flamegraph": stem.with_suffix(".svg"), "raw": stem.with_suffix(".folded")}
    with tempfile.TemporaryDirectory(dir=out) as folder:
        server = system.start(folder=Path(folder), cores=server_cores)
        try:
            # One style per recording, so the load runs once for each.
            for serial, (style, path) in enumerate(outputs.items()):
                begin = partial(start_sampling, server, style=style, out=path, seconds=seconds)
                record(system, server, scenario, begin, seconds=seconds, serial=serial)
        finally:
            server.stop()
    text = stem.with_suffix(".txt")
    text.write_text(as_text(outputs["raw"].read_text()))
    return [outputs["flamegraph"], text]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile", description=__doc__)
    parser.add_argument("scenario", nargs="?", default="send", choices=list(SCENARIOS))
    parser.add_argument("system", nargs="?", default="penstock-never", choices=list(SYSTEMS))
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=HERE / "profiles")
    given = parser.parse_args()
    try:
        paths = run(given.scenario, given.system, seconds=given.seconds, out=given.out)
    except (NotAvailable, scenarios.LoadFailed) as problem:
        sys.exit(f"cannot profile: {problem}")
    print(paths[-1].read_text())
    for path in paths:
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
