"""Where the server's time goes while records pour in or out:

    python -m benchmarks.kafka.profile [workload] [system]

Samples with py-spy from outside, once during the produce and once during the consume; rates
measured meanwhile are not for quoting.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import proc
from benchmarks.kafka.job import Action
from benchmarks.kafka.scenarios import WORKLOADS, Timing, run_workload
from benchmarks.kafka.systems import SYSTEMS
from benchmarks.profile import as_text, start_sampling
from benchmarks.scenarios import LoadFailed
from benchmarks.server import NotAvailable

HERE = Path(__file__).parents[1]
SAMPLER_S_MAX = 60


def run(workload_name: str, system_name: str, *, seconds: int, out: Path, data: Path) -> list[Path]:
    system, workload = SYSTEMS[system_name], WORKLOADS[workload_name]
    system.prepare()
    server_cores, load_cores = proc.split_cores()
    out.mkdir(parents=True, exist_ok=True)
    data.mkdir(parents=True, exist_ok=True)
    samplers: dict[Action, subprocess.Popen[str]] = {}
    written = []
    with tempfile.TemporaryDirectory(dir=data) as folder:
        server = system.start(folder=Path(folder).resolve(), cores=server_cores)

        def path_of(action: Action, suffix: str) -> Path:
            return out / f"{system_name}-{action.value}-{workload_name}{suffix}"

        def begin(action: Action) -> None:
            path = path_of(action, ".folded")
            samplers[action] = start_sampling(server, style="raw", out=path, seconds=seconds)

        try:
            for action, found in run_workload(
                workload,
                system,
                server,
                timing=Timing(window_s=float(seconds)),
                cores=load_cores,
                serial=0,
                before_load=begin,
            ):
                problem = samplers[action].communicate(timeout=SAMPLER_S_MAX)[1]
                if isinstance(found, LoadFailed):
                    raise found
                if samplers[action].returncode:
                    raise NotAvailable(f"py-spy: {problem.strip()[-200:]}")
                print(f"{action.value}: {found.mb_per_s:,.0f} MB/s while sampled", flush=True)
                text = path_of(action, ".txt")
                text.write_text(as_text(path_of(action, ".folded").read_text()))
                written.append(text)
        finally:
            for sampler in samplers.values():
                if sampler.poll() is None:
                    sampler.kill()
                    sampler.communicate()
            server.stop()
    return written


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kafka.profile", description=__doc__)
    parser.add_argument("workload", nargs="?", default="raw_64k_1", choices=list(WORKLOADS))
    parser.add_argument("system", nargs="?", default="penstock-never", choices=list(SYSTEMS))
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=HERE / "profiles")
    parser.add_argument("--data", type=Path, default=HERE / ".data")
    given = parser.parse_args()
    try:
        paths = run(
            given.workload, given.system, seconds=given.seconds, out=given.out, data=given.data
        )
    except (NotAvailable, LoadFailed) as problem:
        sys.exit(f"cannot profile: {problem}")
    for path in paths:
        print(f"\n{path.name}\n{path.read_text()}")


if __name__ == "__main__":
    main()
