"""``python -m tests.lab --profile smoke|chaos --seed N --report DIR``: a run of the fault lab. Ends
with 0 only if every count is zero and the run was worth judging."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType

from tests.harness.etcd import LACKING
from tests.lab import plan
from tests.lab.network import run_prefix
from tests.lab.report import write_report
from tests.lab.run import LabRun, Options, new_seed


def main() -> int:
    if LACKING is not None:
        print(LACKING, file=sys.stderr)
        return 2
    given = _arguments().parse_args()
    profile = plan.PROFILES["chosen" if given.fault else given.profile]
    kinds = plan.SMOKE if profile.name == "smoke" else plan.ALL
    if given.fault:
        kinds = tuple(_named(text) for text in given.fault)
    seed = given.seed or new_seed()
    options = Options(
        profile,
        seed,
        with_kafka=given.kafka,
        kinds=kinds,
        pace_ms=given.pace_ms,
        seconds=given.seconds,
        keep=given.report if given.keep else None,
    )
    print(f"profile {profile.name}, seed {seed}", flush=True)
    signal.signal(signal.SIGTERM, _leave)  # so that everything is taken down on the way out
    report: Path = given.report
    report.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{run_prefix()}-") as folder:
        outcome = LabRun(options, Path(folder), report / "ledgers").go()
    page = write_report(outcome, report)
    print(outcome.judgement.text())
    print(f"{outcome.judgement.word}: {page}")
    return 0 if outcome.judgement.is_good else 1


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.lab", description=__doc__)
    parser.add_argument("--profile", choices=("smoke", "chaos"), default="smoke")
    parser.add_argument("--seed", help="to repeat a plan; drawn and printed otherwise")
    parser.add_argument("--report", type=Path, default=Path("lab-report"), help="a folder")
    parser.add_argument("--seconds", type=float, help="of chaos, other than ten minutes")
    parser.add_argument("--pace-ms", type=int, default=20, help="between calls of one client")
    parser.add_argument(
        "--kafka", action=argparse.BooleanOptionalAction, default=True, help="Kafka clients too"
    )
    parser.add_argument("--keep", action="store_true", help="the nodes' disks too, as they end")
    parser.add_argument(
        "--fault",
        action="append",
        metavar="NAME",
        help="instead of a profile: this fault, by class name or number; may be repeated",
    )
    return parser


def _named(text: str) -> plan.Kind:
    """By class or by number; those that need a run of their own first, for this is one."""
    kinds = (*plan.ALONE, *plan.ALL)
    for kind in kinds:
        if text in (kind.__name__, kind.name.split()[0]):
            return kind
    raise SystemExit(f"no fault {text}; there are {', '.join(k.__name__ for k in kinds)}")


def _leave(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(143)


if __name__ == "__main__":
    sys.exit(main())
