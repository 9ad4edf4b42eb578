"""``python -m tests.sim``: run schedules, tell one, or look for what notices a broken rule.

python -m tests.sim --schedules 100000       any number, from --first on
python -m tests.sim --seed 4711 [--unsynced] one of them, with its story
python -m tests.sim --mutations              the first schedule that notices each
"""

import argparse
import sys

from tests.sim.mutations import MUTATIONS, find_seed
from tests.sim.world import STEPS, World

SCHEDULES_PER_MUTATION = 20_000


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--schedules", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--unsynced", action="store_true", help="answers do not wait for disks")
    parser.add_argument("--mutations", action="store_true")
    options = parser.parse_args()
    if options.mutations:
        return _mutations()
    if options.seed is not None:
        return _one(options.seed, is_synced=not options.unsynced)
    return _many(options.first, options.schedules, is_synced=not options.unsynced)


def _one(seed: int, *, is_synced: bool) -> int:
    world = World(seed, is_synced=is_synced)
    world.story = []
    found = world.run(STEPS)
    kind = "FIFO" if world.is_fifo else "standard"
    more = [name for name in ("moved", "async") if getattr(world, f"is_{name}")]
    print(f"a {kind} queue", *more, f"faults {world.fault_rate}, calm {world.calm_rate}")
    print(*world.story, sep="\n")
    print(found or "nothing is wrong")
    return 1 if found else 0


def _many(first: int, count: int, *, is_synced: bool) -> int:
    totals: dict[str, int] = {}
    failures = 0
    for seed in range(first, first + count):
        world = World(seed, is_synced=is_synced)
        found = world.run(STEPS)
        if found:
            failures += 1
            print(f"seed {seed}: {found}", flush=True)
        for name, number in world.counts.items():
            totals[name] = totals.get(name, 0) + number
    told = ", ".join(f"{number:,} {name}" for name, number in totals.items())
    print(f"{count:,} schedules, {failures} violations: {told}")
    return 1 if failures else 0


def _mutations() -> int:
    missed = 0
    for name, mutation in MUTATIONS.items():
        found = find_seed(mutation, first=0, schedules=SCHEDULES_PER_MUTATION)
        missed += found is None
        print(f"{mutation.rule:4s} {name}: {found or 'NOT NOTICED'}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
