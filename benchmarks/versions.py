"""``python -m benchmarks.versions REVISION``: what a request costs this tree and an older revision.

Measured are the processor time, Python calls and opcodes of sends, receives with deletes, produce,
fetch, and sends that one node of three forwards to another. Prints a table with a bar; about 15
minutes.

The older revision is unpacked from git into ``.cache/`` and runs in this environment. Both servers
run at the same time and take turns with the load, old and new, then new and old, so that changes on
the machine concern both. Two servers of the same revision differ by up to 5 % for as long as they
run, so several pairs of servers are started one after the other, and the result is the median of
their ratios. The same tree against itself reads up to 1.06 where the host of a virtual machine
takes processor time away. Counts change by a percent: background work is counted too."""

import argparse
import base64
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

from tests.harness.etcd import EtcdCluster

from benchmarks import proc
from benchmarks.kafka.drivers.frames import batch_of, fetch_frame, produce_frame
from benchmarks.kafka.drivers.librdkafka import create_topic
from benchmarks.limits import ROOT_KEY, Node
from benchmarks.requests import QueueRequests, RequestMaker
from benchmarks.scenarios import ROOT
from benchmarks.server import free_port
from penstock.wire.aws.signer import Credentials

CACHE: Final = Path(__file__).parent / ".cache"
COST_MAX: Final = 1.02
WIDE: Final = {"per_s": 1e9, "burst": 1e9}
CONNECTIONS: Final = 16
COUNTED: Final = 10  # requests per connection
_RECEIPT: Final = re.compile(rb'"ReceiptHandle":"([^"]+)"')
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)


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


class Connections:
    """Sends each request on a connection of its own, then reads the replies."""

    def __init__(self, port: int) -> None:
        self._sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(CONNECTIONS)]
        for each in self._sockets:
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def exchange(self, requests: Sequence[bytes]) -> list[bytes]:
        used = self._sockets[: len(requests)]
        for each, request in zip(used, requests, strict=True):
            each.sendall(request)
        return [self._reply(each) for each in used]

    def _reply(self, connection: socket.socket) -> bytes:
        reply = b""
        while (size := self._size(reply)) is None or len(reply) < size:
            data = connection.recv(1 << 20)
            assert data, "the server closed the connection"
            reply += data
        return reply

    def _size(self, reply: bytes) -> int | None:
        """Return the size of a reply of HTTP or Kafka, None if it is not known yet."""
        if not reply.startswith(b"HTTP"[: len(reply)]):
            return int.from_bytes(reply[:4]) + 4 if len(reply) >= 4 else None
        end = reply.find(b"\r\n\r\n") + 4
        if end == 3:
            return None
        assert reply.startswith(b"HTTP/1.1 200"), reply
        found = _LENGTH.search(reply)
        assert found is not None, reply
        return end + int(found[1])


class Case(ABC):
    """A server, or a cluster, of one revision under one kind of load."""

    title: str
    is_guarded = False

    def __init__(self, stack: ExitStack, folder: Path, sources: Path, cores: set[int]) -> None:
        self._stack, self._folder, self._sources, self._cores = stack, folder, sources, cores
        self.nodes = self._start()
        self._prepare()

    def _node(self, name: str, **settings: str) -> Node:
        node = Node(
            self._folder / name,
            self._cores,
            is_guarded=self.is_guarded,
            settings={"PYTHONPATH": str(self._sources), **settings},
            program=(sys.executable, str(Path(__file__).with_name("counting.py"))),
        )
        self._stack.callback(node.server.stop)
        return node

    def _start(self) -> list[Node]:
        return [self._node("n1")]

    @abstractmethod
    def _prepare(self) -> None: ...

    @abstractmethod
    def turn(self) -> int:
        """Make some requests and return how many are measured."""

    def before_turns(self, turns: int) -> None:  # noqa: B027
        """Do what is not measured."""

    def cost(self, turns: int) -> float:
        """Return the processor time per request in microseconds."""
        self.before_turns(turns)
        began = self._cpu_seconds()
        requests = sum(self.turn() for _ in range(turns))
        return (self._cpu_seconds() - began) / requests * 1e6

    def counts(self) -> tuple[float, float]:
        """Return Python calls and opcodes per request, of all nodes."""
        self.before_turns(COUNTED)
        self._signal(signal.SIGUSR1)
        requests = sum(self.turn() for _ in range(COUNTED))
        self._signal(signal.SIGUSR2)
        calls = opcodes = 0
        for node in self.nodes:
            _, its_calls, its_opcodes = node.server.wait_for_output("counted").split()
            calls, opcodes = calls + int(its_calls), opcodes + int(its_opcodes)
        return calls / requests, opcodes / requests

    def _signal(self, number: signal.Signals) -> None:
        for node in self.nodes:
            node.server.send_signal(number)
        time.sleep(0.1)  # until the handlers have run, which say nothing

    def _cpu_seconds(self) -> float:
        return sum(proc.cpu_seconds(node.server.pid) for node in self.nodes)


class Send(Case):
    title = "send"
    at = 0  # the node that requests are sent to

    def _prepare(self) -> None:
        node, key = self.nodes[self.at], self._key()
        self._requests = QueueRequests(
            RequestMaker(
                node.server.host,
                node.server.port,
                stamp=time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()),
                key=key if self.is_guarded else None,
            ),
            node.queue("q", key),
            body_bytes=256,
            distinct=100,
        )
        self._connections = Connections(node.server.port)

    def _key(self) -> Credentials:
        return ROOT_KEY

    def turn(self) -> int:
        sends = self._requests.sends()
        self._connections.exchange([next(sends) for _ in range(CONNECTIONS)])
        return CONNECTIONS


class GuardedSend(Send):
    title = "send, signed, with limits"
    is_guarded = True

    def _key(self) -> Credentials:
        return self.nodes[0].tenant("acme", tenant_requests=WIDE, tenant_bytes=WIDE)


class ReceiveAndDelete(Send):
    title = "receive and delete"

    def before_turns(self, turns: int) -> None:
        request = self._requests.send_batch(10)
        for _ in range(turns // 10 + 1):
            self._connections.exchange([request] * CONNECTIONS)

    def turn(self) -> int:
        replies = self._connections.exchange([self._requests.receive(1)] * CONNECTIONS)
        receipts = [receipt for reply in replies for receipt in _RECEIPT.findall(reply)]
        self._connections.exchange([self._requests.delete(receipt) for receipt in receipts])
        return len(receipts)  # fewer for a version that missed the end of large batches


class Produce(Case):
    title = "produce, 10 records of 1 KB"

    def _start(self) -> list[Node]:
        self._port = free_port()
        return [self._node("n1", PENSTOCK_KAFKA__LISTEN=f"127.0.0.1:{self._port}")]

    def _prepare(self) -> None:
        create_topic("127.0.0.1", self._port, "t", partitions=1, config={})
        batch, _ = batch_of(10_500, now_ms=int(time.time() * 1_000))
        self._produce = produce_frame("t", 0, batch)
        self._connections = Connections(self._port)

    def turn(self) -> int:
        self._connections.exchange([self._produce] * CONNECTIONS)
        return CONNECTIONS


class Fetch(Produce):
    title = "fetch, 10 records of 1 KB"

    def _prepare(self) -> None:
        super()._prepare()
        self._connections.exchange([self._produce] * CONNECTIONS)
        self._fetches = [fetch_frame("t", {0: 10 * number}, 9_000) for number in range(CONNECTIONS)]

    def turn(self) -> int:
        self._connections.exchange(self._fetches)
        return CONNECTIONS


class ForwardedSend(Send):
    title = "forwarded send, three nodes"

    def _start(self) -> list[Node]:
        etcd = self._stack.enter_context(EtcdCluster(self._folder / "etcd"))
        shared = {
            "PENSTOCK_MASTER_KEY": base64.b64encode(bytes(32)).decode(),
            "PENSTOCK_CLUSTER__ETCD": ",".join(etcd.endpoints),
        }
        return [
            self._node(
                f"n{number}",
                PENSTOCK_NODE__NAME=f"n{number}",
                PENSTOCK_CLUSTER__NODE=str(number),
                PENSTOCK_INTERNAL__LISTEN=f"127.0.0.1:{free_port()}",
                **shared,
            )
            for number in (1, 2, 3)
        ]

    def _prepare(self) -> None:
        super()._prepare()
        leader = self.nodes[0].admin("GET", "cluster/partitions?topic=q", {})
        self.at = next(
            index for index in range(3) if index + 1 != leader["partitions"][0]["leader"]
        )
        super()._prepare()


class Compared(NamedTuple):
    older: float
    this: float

    @property
    def ratio(self) -> float:
        return self.this / self.older


def compare(
    case: type[Case], older: Path, *, folder: Path, number: int, rounds: int, turns: int
) -> tuple[Compared, Compared, Compared]:
    """Return processor time, calls and opcodes from one pair of servers. ``number``: odd pairs
    start the older server first."""
    cores, _ = proc.split_cores()
    sources = [older, ROOT / "src"]
    with ExitStack() as stack:
        pair: dict[int, Case] = {}
        for side in (0, 1) if number % 2 else (1, 0):
            place = folder / f"{number}-{side}"
            place.mkdir(parents=True)
            pair[side] = case(stack, place, sources[side], cores)
        costs: dict[int, list[float]] = {0: [], 1: []}
        for side in (0, 1):
            pair[side].cost(turns // 4)
        for turn in range(rounds):
            for side in (0, 1) if turn % 2 else (1, 0):
                costs[side].append(pair[side].cost(turns))
        counts = [pair[side].counts() for side in (0, 1)]
    return (
        Compared(*(statistics.median(costs[side]) for side in (0, 1))),
        *(Compared(*column) for column in zip(*counts, strict=True)),
    )  # type: ignore[return-value]


CASES: Final = (Send, GuardedSend, ReceiveAndDelete, Produce, Fetch, ForwardedSend)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.versions")
    parser.add_argument("revision", help="git revision to compare with")
    parser.add_argument("--pairs", type=int, default=7, help="number of pairs of servers")
    parser.add_argument("--rounds", type=int, default=7, help="number of rounds per server")
    parser.add_argument("--turns", type=int, default=600, help="number of waves per round")
    parser.add_argument("--only", default="", help="part of the titles of the cases to run")
    args = parser.parse_args()
    older = unpacked(args.revision)
    is_met = True
    print("| request | µs before | µs now | ratio (pairs) | calls | opcodes |")
    print("| --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory(prefix="versions-", dir=CACHE) as folder:
        for case in (each for each in CASES if args.only in each.title):
            pairs = [
                compare(
                    case,
                    older,
                    folder=Path(folder) / case.__name__,
                    number=number,
                    rounds=args.rounds,
                    turns=args.turns,
                )
                for number in range(args.pairs)
            ]
            ratios = sorted(cost.ratio for cost, _, _ in pairs)
            ratio = statistics.median(ratios)
            is_met = is_met and ratio <= COST_MAX
            before, now = (
                statistics.median(column)
                for column in zip(*(pair[0] for pair in pairs), strict=True)
            )
            # The least of all pairs: background work adds to the others.
            calls, opcodes = (
                Compared(
                    min(pair[index].older for pair in pairs),
                    min(pair[index].this for pair in pairs),
                )
                for index in (1, 2)
            )
            print(
                f"| {case.title} | {before:.1f} | {now:.1f}"
                f" | {ratio:.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})"
                f" | {calls.older:.0f}, {calls.this:.0f}"
                f" | {opcodes.older:,.0f}, {opcodes.this:,.0f}: {opcodes.ratio:.3f} |",
                flush=True,
            )
    sys.exit(0 if is_met else 1)


if __name__ == "__main__":
    main()
