"""What etcd says of the cluster, change by change: who led when, who was in sync, who was alive.

It is heard over etcd's HTTP gateway and not by our own client, and every revision is seen, also
those that are over in a moment. When a member dies the watch goes on at the next one behind the
last revision that was seen. This is evidence: faults use it to say that they had an effect, the
report to draw failovers."""

from __future__ import annotations

import base64
import http.client
import json
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType, TracebackType
from typing import Any

import msgspec
from tests.harness.etcd import EtcdCluster
from tests.harness.ledger import now_ns

from penstock.model.topic import Topic
from penstock.replication.row import NO_NODE, PartitionRow

NAMESPACE = "/penstock/penstock"
_PARTITIONS = f"{NAMESPACE}/partitions/"
_NODES = f"{NAMESPACE}/nodes/"
_MANAGER = f"{NAMESPACE}/manager"
_TOPICS = f"{NAMESPACE}/topics/"
PASSING_PREFIX = "passing-"  # of queues that come and go during a run
WAVE_NS = 2_000_000_000  # changes that follow each other sooner have one cause
QUIET_SECONDS_MAX = 5.0  # of a watch, before another member is asked
END_SECONDS_MAX = 10.0


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one row, as it was heard of."""

    at: int  # CLOCK_MONOTONIC, ns
    partition: str
    before: PartitionRow | None
    after: PartitionRow | None

    @property
    def is_failover(self) -> bool:
        """Another node leads than did, or the same one anew after it was gone."""
        return (
            self.before is not None
            and self.after is not None
            and self.after.epoch > self.before.epoch
            and self.before.leader != NO_NODE
        )

    @property
    def is_in_sync_change(self) -> bool:
        return (
            self.before is not None
            and self.after is not None
            and self.before.whole != self.after.whole
        )


@dataclass
class RowHistory:
    """The fold of everything that was heard. One thread adds; readers take snapshots."""

    rows: Mapping[str, PartitionRow] = field(default_factory=dict)
    nodes: frozenset[int] = frozenset()
    topics: Mapping[str, Topic] = field(default_factory=dict)  # by key: those that are there
    manager: int | None = None
    managers: list[tuple[int, int | None]] = field(default_factory=list)  # when, who
    registrations: list[tuple[int, int, bool]] = field(default_factory=list)  # when, who, came
    changes: list[Change] = field(default_factory=list)

    def put(self, key: str, value: bytes, at: int) -> None:
        if key.startswith(_PARTITIONS):
            name = key.removeprefix(_PARTITIONS)
            row = msgspec.json.decode(value, type=PartitionRow)
            self.changes.append(Change(at, name, self.rows.get(name), row))
            self.rows = MappingProxyType({**self.rows, name: row})
        elif key.startswith(_NODES):
            node = int(key.removeprefix(_NODES))
            self.nodes |= {node}
            self.registrations.append((at, node, True))
        elif key.startswith(_TOPICS):
            topic = msgspec.json.decode(value, type=Topic)
            self.topics = MappingProxyType({**self.topics, key: topic})
        elif key == _MANAGER:
            self._manage(at, int(json.loads(value)["node"]))

    def delete(self, key: str, at: int) -> None:
        if key.startswith(_PARTITIONS):
            name = key.removeprefix(_PARTITIONS)
            self.changes.append(Change(at, name, self.rows.get(name), None))
            self.rows = MappingProxyType({k: row for k, row in self.rows.items() if k != name})
        elif key.startswith(_NODES):
            node = int(key.removeprefix(_NODES))
            self.nodes -= {node}
            self.registrations.append((at, node, False))
        elif key.startswith(_TOPICS):
            self.topics = MappingProxyType({k: one for k, one in self.topics.items() if k != key})
        elif key == _MANAGER:
            self._manage(at, None)

    def _manage(self, at: int, node: int | None) -> None:
        self.manager = node
        self.managers.append((at, node))

    # ── Questions ────────────────────────────────────────────────────────────────────────────

    def lasting(self) -> list[PartitionRow]:
        """Of topics that are there, and meant to stay."""
        ids = {
            topic.topic_id
            for topic in self.topics.values()
            if not topic.name.startswith(PASSING_PREFIX)
        }
        return [row for name, row in self.rows.items() if name.partition("/")[0] in ids]

    def failovers(self, since: int = 0) -> list[Change]:
        return [each for each in self.changes if each.at >= since and each.is_failover]

    def in_sync_changes(self, since: int = 0) -> list[Change]:
        return [each for each in self.changes if each.at >= since and each.is_in_sync_change]

    def took_over_from(self, node: int, since: int) -> list[Change]:
        """Partitions that another node leads since."""
        return [
            each
            for each in self.failovers(since)
            if each.before is not None
            and each.after is not None
            and each.before.leader == node != each.after.leader
        ]


def waves(changes: Sequence[Change]) -> int:
    """How often something happened: a dead node takes many partitions with it at once, and that is
    one failover of a cluster, however many rows it changes."""
    count, last = 0, -WAVE_NS
    for change in changes:
        count += change.at - last >= WAVE_NS
        last = change.at
    return count


class RowWatch(RowHistory):
    """``with RowWatch(etcd) as rows: ...``: heard by a thread, from the first revision on."""

    def __init__(self, etcd: EtcdCluster) -> None:
        super().__init__()
        self._etcd = etcd
        self._revision = 0
        self._ending = threading.Event()
        self._looking = threading.Event()
        self._looking.set()
        self._connection: http.client.HTTPConnection | None = None
        self._thread = threading.Thread(target=self._run, name="rows", daemon=True)

    def __enter__(self) -> RowWatch:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ending.set()
        self.look_again()
        self._hang_up()
        self._thread.join(END_SECONDS_MAX)

    def look_away(self) -> None:
        """While etcd says what is not true: its history must not be mixed with the real one."""
        self._looking.clear()
        self._hang_up()

    def look_again(self) -> None:
        """On behind the last revision that was seen."""
        self._looking.set()

    def _hang_up(self) -> None:
        connection = self._connection
        if connection is not None and connection.sock is not None:
            try:
                connection.sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it was over already

    def _run(self) -> None:
        turn = 0
        while not self._ending.is_set():
            self._looking.wait()
            host, _, port = self._etcd.endpoints[turn % len(self._etcd.endpoints)].rpartition(":")
            turn += 1
            self._connection = http.client.HTTPConnection(host, int(port), timeout=1.0)
            try:
                self._listen(self._connection)
            except (OSError, http.client.HTTPException, ValueError):
                self._ending.wait(0.05)  # the next member, and not in a hurry when all are gone
            finally:
                self._connection.close()

    def _listen(self, connection: http.client.HTTPConnection) -> None:
        key = base64.b64encode(f"{NAMESPACE}/".encode()).decode()
        end = base64.b64encode(f"{NAMESPACE}0".encode()).decode()  # "0" comes behind "/"
        request = {
            "key": key,
            "range_end": end,
            "start_revision": str(self._revision + 1),
            "progress_notify": True,
        }
        connection.request("POST", "/v3/watch", json.dumps({"create_request": request}))
        connection.sock.settimeout(QUIET_SECONDS_MAX)
        reply = connection.getresponse()
        while not self._ending.is_set():
            line = reply.readline()
            if not line or not self._looking.is_set():
                return
            told = json.loads(line).get("result", {})
            if told.get("canceled"):
                return
            self._take(told)

    def _take(self, told: dict[str, Any]) -> None:
        at = now_ns()
        for event in told.get("events", ()):
            entry = event["kv"]
            key = base64.b64decode(entry["key"]).decode()
            if event.get("type") == "DELETE":
                self.delete(key, at)
            else:
                self.put(key, base64.b64decode(entry.get("value", "")), at)
            self._revision = max(self._revision, int(entry["mod_revision"]))
