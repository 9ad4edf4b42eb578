"""Every problem (trouble) that a node or a cluster can report, and what to do about it.

The log, ``/readyz``, the metric ``penstock_trouble``, ``penstock doctor`` and ``penstock cluster
status`` use these sentences, so an operator who has read one can search for it in the others.
``/readyz`` needs no credentials, so no sentence contains an address or a path: those are in
``facts``, which only the log shows."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from penstock.model.units import counted, size


class Kind(StrEnum):
    DISK_FULL = "disk_full"
    DISK_LOW = "disk_low"
    NO_OPERATOR = "no_operator"
    NODE_DEAD = "node_dead"
    QUORUM_LOST = "quorum_lost"
    NO_INTACT_REPLICA = "no_intact_replica"
    NO_MANAGER = "no_manager"
    UNDER_REPLICATED = "under_replicated"
    PARTITIONS_MISSING = "partitions_missing"
    PARTITIONS_ORPHANED = "partitions_orphaned"
    METADATA_AWAY = "metadata_away"
    CLOCK_SKEW = "clock_skew"
    LOG_DAMAGED = "log_damaged"
    REPLICA_HALTED = "replica_halted"
    COORDINATOR_DOWN = "coordinator_down"
    ROW_UNREADABLE = "row_unreadable"
    CERTIFICATE_ENDING = "certificate_ending"
    FACTS_NOT_WRITTEN = "facts_not_written"


Facts = Callable[[], Mapping[str, Any]]


# Troubles that do not reject any request yet.
WARNINGS: Final = frozenset({Kind.DISK_LOW, Kind.CERTIFICATE_ENDING})
# Troubles between nodes, which the command ``cluster status`` finds itself.
CLUSTER_WIDE: Final = frozenset(
    {
        Kind.NODE_DEAD,
        Kind.QUORUM_LOST,
        Kind.NO_INTACT_REPLICA,
        Kind.NO_MANAGER,
        Kind.UNDER_REPLICATED,
        Kind.PARTITIONS_MISSING,
        Kind.PARTITIONS_ORPHANED,
        Kind.CLOCK_SKEW,
    }
)


@dataclass(frozen=True, slots=True)
class Trouble:
    kind: Kind
    name: str  # unique among the troubles of one kind
    text: str  # what is wrong, and what that means for clients
    do: str
    over: str  # log event at the end of the trouble; empty: no event
    is_blocking: bool = False  # the node is not ready: load balancers send requests elsewhere
    facts: Facts = dict  # returns further fields of the log event


CERTIFICATE_WARN_DAYS: Final = 30
CLOCK_SKEW_MS_MAX: Final = 1_000


# ── Disk ─────────────────────────────────────────────────────────────────────────────────────

DISK_DO: Final = "receive and delete messages, or free space on the disk of the data folder"


def disk_full_text(free_bytes: int, reserve_bytes: int) -> str:
    return (
        f"the disk is full: {size(free_bytes)} free, {size(reserve_bytes)} reserved for deletes;"
        " new messages are rejected, receiving and deleting still work"
    )


def disk_full(free_bytes: int, reserve_bytes: int, facts: Facts) -> Trouble:
    return Trouble(
        Kind.DISK_FULL,
        "disk",
        disk_full_text(free_bytes, reserve_bytes),
        DISK_DO,
        over="the disk has space again: messages are accepted",
        facts=facts,
    )


def disk_low(free_bytes: int, reserve_bytes: int, facts: Facts) -> Trouble:
    return Trouble(
        Kind.DISK_LOW,
        "disk",
        f"the disk is almost full: {size(free_bytes)} free; new messages are rejected below"
        f" {size(reserve_bytes)}",
        DISK_DO,
        over="",  # the trouble also ends when the disk becomes full
        facts=facts,
    )


# ── Access ───────────────────────────────────────────────────────────────────────────────────


def no_operator() -> Trouble:
    return Trouble(
        Kind.NO_OPERATOR,
        "operator",
        "no operator has an access key, so users, keys and the cluster cannot be managed",
        "restart the server: it creates a key for root and prints it once, or uses the key in"
        " PENSTOCK_ROOT_KEY_ID and PENSTOCK_ROOT_SECRET_FILE",
        over="an operator has an access key again",
    )


def certificate_ending(whose: str, days_left: int) -> Trouble:
    if days_left >= 0:
        state = f"expires in {counted(days_left, 'day')}: TLS connections fail after that"
    else:
        state = "has expired: TLS connections fail"
    return Trouble(
        Kind.CERTIFICATE_ENDING,
        f"certificate {whose}",
        f"the certificate for {whose} {state}",
        "write the renewed certificate to the same file: running nodes load it (private CA:"
        " penstock generate certs)",
        over=f"the certificate for {whose} was renewed",
    )


# ── Cluster ──────────────────────────────────────────────────────────────────────────────────


def node_dead(
    node: int, name: str, partitions: int, *, was_stopped: bool = False, is_draining: bool = False
) -> Trouble:
    shown = f"node {node} ({name})" if name else f"node {node}"
    state = "was stopped" if was_stopped else "declared dead"
    do = (
        "nothing: the node is being drained, and its partitions move to other nodes"
        if is_draining
        else f"start the node again, or move its partitions to other nodes: penstock cluster"
        f" decommission {node}"
    )
    return Trouble(
        Kind.NODE_DEAD,
        f"node {node}",
        f"{shown} {state}, {counted(partitions, 'partition')} affected",
        do,
        over=f"{shown} is back, or its partitions were moved",
    )


def no_manager() -> Trouble:
    return Trouble(
        Kind.NO_MANAGER,
        "manager",
        "no node manages the cluster: failed leaders are not replaced and no partitions are"
        " created",
        "check etcd (etcdctl endpoint health): once etcd answers, a node takes over within seconds",
        over="a node manages the cluster again",
    )


def _see(state: str) -> str:
    return f"list the partitions: penstock cluster partitions --state {state}"


def partition_troubles(counts: Mapping[str, int]) -> Iterable[Trouble]:
    lost, leaderless, below = (
        counts.get(state, 0) for state in ("lost", "leaderless", "below_minimum")
    )
    if lost:
        yield Trouble(
            Kind.NO_INTACT_REPLICA,
            "partitions lost",
            f"{counted(lost, 'partition')} without a complete replica: nothing can be sent or"
            " received until all replicas are back",
            f"start all nodes that hold a replica; {_see('lost')}",
            over="every partition has a complete replica again",
        )
    if leaderless or below:
        found = ((leaderless, "without a leader"), (below, "with too few replicas in sync"))
        which = ", ".join(f"{counted(n, 'partition')} {words}" for n, words in found if n)
        yield Trouble(
            Kind.QUORUM_LOST,
            "quorum",
            f"quorum lost: {which}; messages to these partitions are rejected",
            "start the nodes that are dead;"
            f" {_see('leaderless' if leaderless else 'below_minimum')}",
            over="every partition has a leader and enough replicas again",
        )
    for state, kind, words, do, over in (
        (
            "under_replicated",
            Kind.UNDER_REPLICATED,
            "with fewer replicas than configured",
            "start or add nodes",
            "every partition has all its replicas again",
        ),
        (
            "missing",
            Kind.PARTITIONS_MISSING,
            "not created yet",
            "wait a moment",
            "every partition is created",
        ),
        (
            "orphaned",
            Kind.PARTITIONS_ORPHANED,
            "without a topic",
            "report this as a bug",
            "every partition has a topic again",
        ),
    ):
        if counts.get(state, 0):
            yield Trouble(
                kind,
                f"partitions {state}",
                f"{counted(counts[state], 'partition')} {words}",
                f"{do}; {_see(state)}",
                over=over,
            )


def metadata_away(reason: str) -> Trouble:
    return Trouble(
        Kind.METADATA_AWAY,
        "metadata",
        "metadata store not reachable: sending and receiving still work; nothing can be created,"
        " changed or deleted, and failed leaders are not replaced",
        "start etcd or the metadata service, and check the network to it; its address is in the"
        " log",
        over="metadata store reachable again",
        facts=lambda: {"reason": reason},
    )


CLOCK_DO: Final = "synchronize the clocks: NTP on every machine"


def clock_skew_text(one: str, other: str, skew_ms: int) -> str:
    return (
        f"the clocks of {one} and {other} differ by {abs(skew_ms):,} ms: signatures may be"
        " rejected, timestamps and retention are off"
    )


def clock_skew(skew_ms: int) -> Trouble:
    return Trouble(
        Kind.CLOCK_SKEW,
        "clock",
        clock_skew_text("this node", "another node", skew_ms),
        f"{CLOCK_DO}; penstock cluster status names the nodes",
        over="the clocks of the nodes agree again",
    )


# ── Data ─────────────────────────────────────────────────────────────────────────────────────


def log_damaged(place: str, reason: str, *, is_replicated: bool) -> Trouble:
    return Trouble(
        Kind.LOG_DAMAGED,
        f"partition {place}",
        f"the log of {place} is damaged: intact records are served, new messages are rejected",
        "nothing: the log is rebuilt from another replica; replace the disk if this happens again"
        if is_replicated
        else "stop the server and run penstock storage verify; restore a backup if needed",
        over=f"the log of {place} is intact again",
        facts=lambda: {"reason": reason},
    )


def replica_halted(place: str, reason: str) -> Trouble:
    return Trouble(
        Kind.REPLICA_HALTED,
        f"replica {place}",
        f"the replica of {place} on this node has halted",
        "find the reason in the log, check the disk, and restart this node",
        over=f"the replica of {place} is running again",
        facts=lambda: {"reason": reason},
    )


def coordinator_down(reason: str) -> Trouble:
    place = reason.partition(":")[0]
    return Trouble(
        Kind.COORDINATOR_DOWN,
        f"coordinator {place}",
        f"coordinator out of service: {place}; requests of its groups or transactions are rejected",
        "wait: the node retries every few seconds; if this lasts, find the reason in the log",
        over=f"coordinator in service again: {place}",
        facts=lambda: {"reason": reason},
    )


def row_unreadable(topic: str, partition: int, offset: int, reason: str) -> Trouble:
    place = f"{topic}/{partition}"
    return Trouble(
        Kind.ROW_UNREADABLE,
        f"coordinator {place}",
        f"coordinator out of service: {reason}",
        f"look at the row: penstock coordinator show {topic} {partition}; then skip it: penstock"
        f" coordinator skip {topic} {partition} {offset}",
        over=f"coordinator in service again: {place}",
        is_blocking=True,
    )


def facts_not_written(what: str, reason: str) -> Trouble:
    return Trouble(
        Kind.FACTS_NOT_WRITTEN,
        what,
        f"{what} records are not being written; they are buffered in memory, and lost when the"
        " buffer is full",
        "find the reason in the log: a full disk, a damaged log, or too few replicas",
        over=f"{what} records are written again",
        facts=lambda: {"reason": reason},
    )
