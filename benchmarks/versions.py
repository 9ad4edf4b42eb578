"""``python -m benchmarks.versions REVISION``: processor time per send of this tree against an older
revision of it. Prints a table with a bar; three minutes.

The older revision is unpacked from git into ``.cache/`` and runs in this environment. Both servers
run at the same time and take turns with the load, old and new, then new and old, so that whatever
changes on the machine meanwhile falls on both. Compared are the medians of the rounds: with
authentication off, and with signatures, policies, limits and usage."""

import argparse
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from benchmarks.limits import ROOT_KEY, Bench, Node, Options
from benchmarks.scenarios import ROOT
from penstock.cli.signature import Credentials

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


class Versions(Bench):
    def compare(self, older: Path, *, is_guarded: bool) -> tuple[float, float]:
        """Return the processor time per send in µs of the older revision and of this tree."""
        with ExitStack() as nodes:
            both = [
                self._target(nodes, name, path, is_guarded=is_guarded)
                for name, path in (("older", older), ("this", ROOT / "src"))
            ]
            costs: tuple[list[float], list[float]] = ([], [])
            for number in range(self._options.rounds):
                for which in (0, 1) if number % 2 else (1, 0):
                    node, url, key = both[which]
                    costs[which].append(self._load(node, url, key).server_cpu_us)
        return statistics.median(costs[0]), statistics.median(costs[1])

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
    parser.add_argument("--rounds", type=int, default=21, help="number of rounds per server")
    parser.add_argument("--window", type=float, default=1.5, help="length of a round in seconds")
    args = parser.parse_args()
    older = unpacked(args.revision)
    options = Options(rounds=args.rounds, window_s=args.window, tail_rounds=0, polls=0)
    is_met = True
    with tempfile.TemporaryDirectory(prefix="versions-", dir=CACHE) as folder:
        bench = Versions(options, Path(folder))
        for title, is_guarded in (("authentication off", False), ("signed, with limits", True)):
            before, now = bench.compare(older, is_guarded=is_guarded)
            is_met = is_met and now / before <= COST_MAX
            print(
                f"send, {title}: {before:.1f} µs before, {now:.1f} µs now,"
                f" ratio {now / before:.3f} (bar {COST_MAX})"
            )
    sys.exit(0 if is_met else 1)


if __name__ == "__main__":
    main()
