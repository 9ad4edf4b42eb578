"""``python -m benchmarks.versions REVISION``: processor time per send of this tree against an older
revision of it. Prints a table with a bar; eight minutes.

The older revision is unpacked from git into ``.cache/`` and runs in this environment. Both servers
run at the same time and take turns with the load, old and new, then new and old, so that whatever
changes on the machine meanwhile falls on both. Two servers of the same revision differ by up to 5 %
for as long as they run, so several pairs of servers are started one after the other, and the result
is the median of their ratios: with authentication off, and with signatures, policies, limits and
usage. The same tree against itself reads up to 1.06 where the host of a virtual machine takes
processor time away. The counts of Python calls and opcodes, printed first, change by a percent or
two, because the server's background work is counted too."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from benchmarks.limits import ROOT_KEY, Bench, Node, Options
from benchmarks.scenarios import ROOT
from penstock.wire.aws.signer import Credentials

CACHE: Final = Path(__file__).parent / ".cache"
COST_MAX: Final = 1.02
WIDE: Final = {"per_s": 1e9, "burst": 1e9}
Target = tuple[Node, str, Credentials]


def unpacked(revision: str) -> Path:
    """Return the folder with the sources of a revision."""
    commit = subprocess.run(
        ["git", "rev-parse", "--verify", f"{revision}^{{commit}}"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.strip()  # fmt: skip
    folder = CACHE / commit
    if not folder.exists():
        folder.mkdir(parents=True)
        archive = subprocess.Popen(
            ["git", "archive", commit, "src"], cwd=ROOT, stdout=subprocess.PIPE
        )
        subprocess.run(["tar", "-x", "-C", str(folder)], stdin=archive.stdout, check=True)
        assert archive.wait() == 0
    return folder / "src"


def counted(path: Path, *, is_guarded: bool) -> dict[str, float]:
    """Return Python calls and opcodes per send."""
    command = [sys.executable, str(Path(__file__).with_name("counting.py"))]
    command += ["signed"] if is_guarded else []
    env = {**os.environ, "PYTHONPATH": str(path)}
    done = subprocess.run(command, env=env, check=True, capture_output=True)
    return dict(json.loads(done.stdout))


class Versions(Bench):
    def compare(self, older: Path, *, is_guarded: bool, number: int) -> tuple[float, float]:
        """Return the processor time per send in µs of the older revision and of this tree, from one
        pair of servers. ``number``: odd pairs start the older server first."""
        pair = [("older", older), ("this", ROOT / "src")]
        costs: dict[str, list[float]] = {"older": [], "this": []}
        with ExitStack() as nodes:
            targets = {
                name: self._target(nodes, f"{name}-{number}", path, is_guarded=is_guarded)
                for name, path in (pair if number % 2 else pair[::-1])
            }
            for turn in range(self._options.rounds):
                for name in ("older", "this") if turn % 2 else ("this", "older"):
                    costs[name].append(self._load(*targets[name]).server_cpu_us)
        return statistics.median(costs["older"]), statistics.median(costs["this"])

    def _target(self, nodes: ExitStack, name: str, path: Path, *, is_guarded: bool) -> Target:
        label = f"{name}-{'guarded' if is_guarded else 'open'}"
        node = nodes.enter_context(self._node(label, is_guarded=is_guarded, PYTHONPATH=str(path)))
        if not is_guarded:
            return node, node.queue("q"), ROOT_KEY
        key = node.tenant("acme", tenant_requests=WIDE, tenant_bytes=WIDE)
        return node, node.queue("q", key), key


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.versions")
    parser.add_argument("revision", help="git revision to compare with")
    parser.add_argument("--pairs", type=int, default=9, help="number of pairs of servers")
    parser.add_argument("--rounds", type=int, default=7, help="number of rounds per server")
    parser.add_argument("--window", type=float, default=1.0, help="length of a round in seconds")
    args = parser.parse_args()
    older = unpacked(args.revision)
    options = Options(rounds=args.rounds, window_s=args.window, tail_rounds=0, polls=0)
    is_met = True
    with tempfile.TemporaryDirectory(prefix="versions-", dir=CACHE) as folder:
        bench = Versions(options, Path(folder))
        for title, is_guarded in (("authentication off", False), ("signed, with limits", True)):
            today = counted(ROOT / "src", is_guarded=is_guarded)
            for what, before in counted(older, is_guarded=is_guarded).items():
                counts = f"{before:.0f} before, {today[what]:.0f} now"
                print(f"{what}, {title}: {counts}, ratio {today[what] / before:.3f}")
            pairs = [
                bench.compare(older, is_guarded=is_guarded, number=number)
                for number in range(args.pairs)
            ]
            before, now = (statistics.median(column) for column in zip(*pairs, strict=True))
            ratios = sorted(this / that for that, this in pairs)
            ratio = statistics.median(ratios)
            is_met = is_met and ratio <= COST_MAX
            print(
                f"send, {title}: {before:.1f} µs before, {now:.1f} µs now, ratio {ratio:.3f}"
                f" (bar {COST_MAX}; pairs {ratios[0]:.3f} to {ratios[-1]:.3f})"
            )
    sys.exit(0 if is_met else 1)


if __name__ == "__main__":
    main()
