"""Files damaged while the server was down: it never serves a wrong byte, it says what it found, and
what can be rebuilt is rebuilt without a loss.

Every body carries its own checksum, so a changed byte that reached a consumer would be counted as
BADCRC, and a record that moved to another place as PHANTOM or DUP."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
from tests.harness.checker import Verdict, check
from tests.harness.damage import flip_bit
from tests.harness.ledger import Recv
from tests.harness.load import NO_PROGRESS_SECONDS_MAX, Load
from tests.harness.server import Server, stable_port

SENDS = 300
BODY_BYTES = 1_000
# Segments so small that there are several; no topics of the node's own among the files.
ENV = {
    "PENSTOCK_LOG__SEGMENT_BYTES_MAX": "65536",
    "PENSTOCK_USAGE__ENABLED": "false",
    "PENSTOCK_TELEMETRY__ENABLED": "false",
    "PENSTOCK_AUDIT__ENABLED": "false",
}
HARMLESS = {"LOST", "STUCK"}  # what damage to the messages themselves may cost, if it is reported


@dataclass
class Bench:
    """A stopped server with several segments of messages, a part of them consumed."""

    server: Server
    load: Load

    def files(self, pattern: str) -> list[Path]:
        # The server's own topics are there too, and empty.
        found = sorted(p for p in self.server.data.rglob(pattern) if p.stat().st_size > 0)
        assert found, f"no {pattern} under the data folder: the layout changed, and this test's"
        return found

    def start_and_drain(self, *, no_progress_seconds: float = 4.0) -> Verdict:
        """A damaged queue may well end STUCK: not for long."""
        self.server.start()
        self.load.drain(no_progress_seconds=no_progress_seconds)
        return check(self.load.events(), log=self.server.stderr)

    def served_count(self) -> int:
        """Messages given out after the restart."""
        return sum(
            1
            for event in self.load.events()
            if isinstance(event, Recv) and event.call.startswith("drain-")
        )

    def says_damage(self) -> bool:
        """Whether an operator is told, by the readiness check or on stderr."""
        status, text = self.server.readyz()
        words = ("damage", "corrupt", "truncat", "crc", "torn")
        log = self.server.stderr.lower()
        return any(word in log for word in words) or (
            status != 200 and any(word in text.lower() for word in words)
        )


@pytest.fixture
def bench(tmp_path: Path, seed: str, request: pytest.FixtureRequest) -> Iterator[Bench]:
    ledgers = tmp_path / "ledgers"
    ledgers.mkdir()
    with Server(tmp_path / "data", env=ENV, port=stable_port()) as server:
        load = Load(server.port, ledgers, seed=seed)
        queue = load.create_queue(f"damaged-{request.param}")
        groups = 7 if queue.is_fifo else 0
        producer = load.producer("p", queue, groups=groups, payload_bytes=BODY_BYTES)
        consumer = load.consumer("c", queue)
        for _ in range(SENDS // 10):
            producer.send(10)
        for got in consumer.receive(10, 60):
            assert consumer.delete(got)
        assert server.stop() == 0, server.stderr_tail()
        yield Bench(server, load)
        load.close()


def newest_log(bench: Bench) -> Path:
    return [path for path in bench.files("*.log") if path.stat().st_size > 0][-1]


def flip_middle(bench: Bench, chance: Random) -> None:
    path = bench.files("*.log")[1]
    flip_bit(path, path.stat().st_size // 2 + chance.randrange(1_000), bit=chance.randrange(8))


def flip_header(bench: Bench, chance: Random) -> None:
    """The base offset of a segment's first batch, which the batch's own checksum leaves out."""
    flip_bit(bench.files("*.log")[1], 7, bit=chance.randrange(8))


def zero_page(bench: Bench, chance: Random) -> None:
    with bench.files("*.log")[1].open("r+b") as file:
        file.seek(4_096 * chance.randrange(1, 8))
        file.write(bytes(4_096))


def flip_tail(bench: Bench, chance: Random) -> None:
    path = newest_log(bench)
    flip_bit(path, path.stat().st_size - 1 - chance.randrange(20), bit=chance.randrange(8))


def tear_tail(bench: Bench, chance: Random) -> None:
    path = newest_log(bench)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - chance.randrange(1, 30))


def garbage_tail(bench: Bench, chance: Random) -> None:
    with newest_log(bench).open("ab") as file:
        file.write(chance.randbytes(500))


# With how many messages must be served all the same: those before the damage, at least.
BEFORE_SEGMENT = 30
BEFORE_TAIL = SENDS - 30
DAMAGES: list[tuple[str, Callable[[Bench, Random], None], int]] = [
    ("standard", flip_middle, BEFORE_SEGMENT),
    ("standard", flip_header, BEFORE_SEGMENT),
    ("standard", zero_page, BEFORE_SEGMENT),
    ("standard", flip_tail, BEFORE_TAIL),
    ("standard", tear_tail, BEFORE_TAIL),
    ("standard", garbage_tail, BEFORE_TAIL),
    ("groups.fifo", flip_middle, BEFORE_SEGMENT),
    # The torn event is a delete: its message is leased again, and its group waits for it.
    ("groups.fifo", tear_tail, SENDS // 2),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bench", "damage", "served_min"),
    DAMAGES,
    indirect=["bench"],
    ids=[f"{kind}-{damage.__name__}" for kind, damage, _ in DAMAGES],
)
def test_a_damaged_segment_is_reported_and_never_served(
    bench: Bench, damage: Callable[[Bench, Random], None], served_min: int, seed: str
) -> None:
    damage(bench, Random(f"damage-{seed}"))
    verdict = bench.start_and_drain()
    broken = {name for name, count in verdict.counts.items() if count}
    assert broken <= HARMLESS, verdict.text()
    assert bench.served_count() >= served_min, (
        f"only {bench.served_count()} messages before the damage were served\n{verdict.text()}"
    )
    # Damage that cost nothing, in a batch nobody has to read again, may wait to be found.
    assert verdict.is_clean or bench.says_damage(), (
        f"damage went unmentioned\n{verdict.text()}\n{bench.server.stderr_tail()}"
    )
    assert bench.server.stop() == 0, bench.server.stderr_tail()


REBUILDABLE = ("*.index", "*.time", "*.check", "*.checkpoint")


@pytest.mark.parametrize("bench", ["standard"], indirect=True)
@pytest.mark.parametrize("how", ["flipped", "emptied", "missing", "garbage"])
def test_what_can_be_rebuilt_is_rebuilt_without_a_loss(bench: Bench, how: str, seed: str) -> None:
    chance = Random(f"rebuild-{seed}")
    for path in [path for pattern in REBUILDABLE for path in bench.files(pattern)]:
        if how == "missing":
            path.unlink()
        elif how == "emptied":
            path.write_bytes(b"")
        elif how == "garbage":
            path.write_bytes(chance.randbytes(max(64, path.stat().st_size)))
        elif path.stat().st_size:
            flip_bit(path, chance.randrange(path.stat().st_size), bit=chance.randrange(8))
    bench.start_and_drain(no_progress_seconds=NO_PROGRESS_SECONDS_MAX).assert_clean()
    assert bench.server.stop() == 0, bench.server.stderr_tail()
