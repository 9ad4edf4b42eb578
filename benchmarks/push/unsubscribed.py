"""Requests on topics without subscriptions, compared with the version before push."""

import os
from statistics import median
from subprocess import CalledProcessError

from benchmarks import versions
from benchmarks.push.bench import Bench

BEFORE_PUSH = "bee3b301"  # the last revision without it
CASES = (versions.Send, versions.ReceiveAndDelete, versions.Produce, versions.Fetch)
PAIRS = 5
ROUNDS = 5


async def unsubscribed(bench: Bench) -> None:
    """Two servers take turns, so that changes on the machine concern both."""
    try:
        older = versions.unpacked(BEFORE_PUSH)
    except CalledProcessError:
        print(f"revision {BEFORE_PUSH} is not available: the version before push is not measured")
        return
    os.sched_setaffinity(0, os.sched_getaffinity(0) | bench.cores)  # ``compare`` divides them
    for case in CASES:
        pairs = [
            versions.compare(
                case,
                older,
                folder=bench.folder / case.__name__,
                number=number,
                rounds=ROUNDS,
                turns=400 // bench.part,
            )
            for number in range(PAIRS if bench.part == 1 else 1)
        ]
        opcodes = min(each.this for _, _, each in pairs) / min(each.older for _, _, each in pairs)
        bench.add(f"{case.title} ÷ before push: opcodes", opcodes, most=1.01)
        ratio = median(cost.ratio for cost, _, _ in pairs)
        bench.add(f"{case.title} ÷ before push: processor time", ratio, most=1.01)
