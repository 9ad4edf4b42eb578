"""How far a cluster goes: ``python -m benchmarks.scale [--nodes N] [--queues N] [--quick]``.

Measures what the model needs at a quarter of the size that was asked for, predicts what the whole
size costs, measures that too, and prints both with their ratio: a ratio far from one is a term of
the model that does not grow as it says. Then the model's terms at three sizes, with what bounds
each. Store and fetches are measured on a real etcd and between two real nodes; without an etcd that
part is left out, and said so.

Processor times: on a busy machine they are larger, by as much for all of them."""

import argparse
import asyncio
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec
from tests.harness.etcd import LACKING, EtcdCluster

from benchmarks import machine
from benchmarks.scale import measures, model
from benchmarks.scale.model import CELL, SIZES, STORE_QUOTA_BYTES, Constants, Size
from penstock.broker.coordination.host import PARTITION_COUNT
from penstock.metadata.cluster_entries import FRONTENDS_MAX
from penstock.metadata.topics.catalog import TOPICS_MAX

STORE_SIZE: Final = Size(100, 20_000)
QUICK_STORE_SIZE: Final = Size(30, 2_000)
FETCHES: Final = 1_000
GIB: Final = 2**30
MIB: Final = 2**20

Value = Callable[[Size, Constants], float]

# Name, unit, formula, and the bound with its reason, where there is one.
TERMS: Final[Sequence[tuple[str, str, Value, float | None, str]]] = (
    ("queues", "", lambda s, _: s.queues, TOPICS_MAX, "TOPICS_MAX"),
    ("partitions led by a node", "", lambda s, _: s.led, None, ""),
    ("replicas on a node", "", lambda s, _: s.held, None, ""),
    ("store, without history", "GiB", lambda s, c: model.store_bytes(s, c) / GIB, 8, "quota"),
    (
        "memory of catalog, view and replicas",
        "GiB",
        lambda s, c: model.node_memory_bytes(s, c) / GIB,
        None,
        "",
    ),
    (
        "of the manager, more",
        "GiB",
        lambda s, c: s.partitions * c.known_row_bytes / GIB,
        None,
        "",
    ),
    ("reading everything at the start", "s", model.start_seconds, 60, "patience"),
    (
        "in one piece, after registering",
        "s",
        model.held_up_seconds,
        model.LEASE_USED_SECONDS,
        "lease",
    ),
    ("a full round of the cycle collector", "s", model.collect_seconds, 1, "requests wait"),
    ("rows changed by the loss of a node", "", lambda s, _: model.loss_changes(s), None, ""),
    ("transactions for it", "", lambda s, _: model.loss_txns(s), None, ""),
    ("elections, after the lease", "s", model.election_seconds, 5, "bar"),
    ("counting it out", "s", model.shrink_seconds, 5, "bar"),
    (
        "told to each node by it",
        "MiB",
        lambda s, c: model.loss_bytes_per_node(s, c) / MIB,
        None,
        "",
    ),
    (
        "told by the store, altogether",
        "MiB",
        lambda s, c: model.loss_bytes_of_store(s, c) / MIB,
        None,
        "",
    ),
    ("processor of the store for that", "s", model.loss_told_seconds, 5, "bar"),
    ("a plan", "s", model.plan_seconds, None, ""),
    ("from plan to plan", "s", model.plan_period_seconds, 60, "moves wait for it"),
    (
        "a restarted node leads again",
        "min",
        lambda s, c: _minutes(model.hand_back_seconds, s, c),
        10,
        "choice",
    ),
    (
        "a new node has its share",
        "h",
        lambda s, c: model.balance_seconds(s, c) / 3_600,
        24,
        "choice",
    ),
    ("queues created a second, at most", "", model.creations_per_second, None, ""),
    (
        "the slow round over everything",
        "min",
        lambda s, _: model.slow_round_seconds(s) / 60,
        60,
        "choice",
    ),
    ("nodes that a node follows", "", lambda s, _: model.leaders_asked(s), None, ""),
    (
        "replica fetches a second, idle, asked",
        "",
        lambda s, _: model.fetches_per_second(s),
        None,
        "",
    ),
    ("cores of a node for them", "", model.idle_fetch_core, 0.5, "half of one"),
    ("connections between it and others", "", lambda s, _: model.connections(s), 20_000, "files"),
    ("keep-alives a second", "", lambda s, _: model.keep_alives_per_second(s), None, ""),
    ("frontends", "", lambda s, _: s.nodes, FRONTENDS_MAX, "FRONTENDS_MAX"),
    (
        "changes told a second by their beats",
        "",
        lambda s, _: model.frontend_beats_per_second(s) * s.nodes,
        None,
        "",
    ),
    ("watch streams of the store", "", lambda s, _: model.watch_streams(s), None, ""),
    ("cores of the store, idle", "", model.store_core, 4, "one machine"),
    ("open files of a node", "", lambda s, _: model.files(s), 1_048_576, "kernel"),
    ("open files that it demands", "", lambda s, _: model.files_demanded(s), 1_048_576, "kernel"),
    (
        "topics looked at a second, for stored bytes",
        "",
        lambda s, _: model.topics_walked_per_second(s),
        None,
        "",
    ),
    ("nodes that coordinate groups", "", lambda s, _: min(PARTITION_COUNT, s.nodes), None, ""),
)


def _minutes(value: Value, size: Size, c: Constants) -> float:
    return value(size, c) / 60


async def everything(size: Size, *, is_quick: bool) -> Constants:
    """Prints predictions beside measurements, and returns the constants."""
    quarter = Size(max(3, size.nodes // 4), max(100, size.queues // 4))
    small, whole = measures.measured_apart(quarter), measures.measured_apart(size)
    compare(size, quarter, small, whole)
    with tempfile.TemporaryDirectory() as root:
        if LACKING is None:
            await _on_etcd(Path(root), whole, QUICK_STORE_SIZE if is_quick else STORE_SIZE)
        else:
            print(f"the store is left out: {LACKING}")
        from benchmarks.scale import node_measures

        calls = FETCHES // 10 if is_quick else FETCHES
        pair = Path(root) / "pair"
        pair.mkdir()
        _take(whole, node_measures.measured_apart(pair, calls=calls))
    return whole


async def _on_etcd(root: Path, constants: Constants, size: Size) -> None:
    from benchmarks.scale import store_measures

    folder = root / "etcd"
    with EtcdCluster(folder) as etcd:
        _take(constants, await store_measures.measured(etcd, folder, size, constants))


def _take(constants: Constants, figures: msgspec.Struct) -> None:
    for name, value in msgspec.structs.asdict(figures).items():
        setattr(constants, name, value)


def compare(size: Size, quarter: Size, small: Constants, whole: Constants) -> None:
    """What the smaller cluster lets expect of the larger one."""
    predicted: Sequence[tuple[str, str, Value]] = (
        ("memory of catalog and view", "MiB", lambda s, c: model.node_memory_bytes(s, c) / MIB),
        ("memory of the manager", "MiB", lambda s, c: s.partitions * c.known_row_bytes / MIB),
        ("taking everything over", "s", _taking_over),
        ("in one piece, after registering", "s", model.held_up_seconds),
        ("a full round of the collector", "s", model.collect_seconds),
        ("looking at what a lost node held", "s", lambda s, c: s.held * c.due_us / 1e6),
        ("a place for a new partition", "ms", lambda s, c: s.nodes * c.choose_us_per_node / 1e3),
        ("a plan", "s", model.plan_seconds),
    )
    print(f"\npredicted from {quarter.title} for {size.title}, and measured there\n")
    print(f"{'term':36}{'predicted':>12}{'measured':>12}{'ratio':>8}")
    for name, unit, value in predicted:
        expected, found = value(size, small), value(size, whole)
        ratio = f"{found / expected:8.2f}" if expected else f"{'-':>8}"
        print(f"{f'{name}, {unit}':36}{expected:12,.2f}{found:12,.2f}{ratio}")


def _taking_over(size: Size, c: Constants) -> float:
    return (size.partitions * c.fill_row_us + size.queues * c.fill_topic_us) / 1e6


def show(constants: Constants, sizes: Sequence[Size]) -> None:
    print("\nconstants (bytes; microseconds of processor)\n")
    for name, value in msgspec.structs.asdict(constants).items():
        print(f"{name:28}{value:12,.1f}")
    print("\nterms (over a bound: !)\n")
    titles = "".join(f"{size.title:>20}" for size in sizes)
    print(f"{'nodes × queues':46}{titles}  bound")
    for name, unit, value, limit, reason in TERMS:
        cells = ""
        for size in sizes:
            term = value(size, constants)
            mark = "!" if limit is not None and term > limit else " "
            cells += f"{_number(term):>19}{mark}"
        bound = f"{_number(limit)} ({reason})" if limit is not None else ""
        print(f"{name + (f', {unit}' if unit else ''):46}{cells}  {bound}")
    assert STORE_QUOTA_BYTES == 8 * GIB, "as the table has it"


def _number(value: float) -> str:
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:,.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(description="how far a cluster goes")
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument("--queues", type=int, default=100_000)
    parser.add_argument("--quick", action="store_true", help="does it all run?")
    options = parser.parse_args()
    if options.nodes < 3 or options.queues < 100:
        parser.error("from 3 nodes and 100 queues on")
    size = Size(options.nodes, options.queues)
    if options.quick:
        size = Size(min(options.nodes, 100), min(options.queues, 4_000))
    with tempfile.TemporaryDirectory() as root:
        print(machine.describe(Path(root)).title)
    constants = asyncio.run(everything(size, is_quick=options.quick))
    show(constants, (*SIZES, CELL))
    ring = measures.ring(options.nodes)
    print(
        f"\nring of {options.nodes} metadata nodes: built in {ring.build_seconds:.2f} s, "
        f"{ring.bytes / MIB:.0f} MiB, {ring.owner_us:.1f} µs a key, "
        f"the fullest {ring.spread:.2f} of the mean"
    )


if __name__ == "__main__":
    main()
