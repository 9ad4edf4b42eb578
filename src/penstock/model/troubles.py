"""Every problem (trouble) that a node or a cluster can report, and what to do about it.

The log, ``/readyz``, the metric ``penstock_trouble``, ``penstock doctor`` and ``penstock cluster
status`` use these sentences, so an operator who has read one can search for it in the others.
``/readyz`` needs no credentials, so no sentence contains an address or a path: those are in
``facts``, which only the log shows.

The texts of the constants have placeholders in braces, which ``filled`` replaces by values."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
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
_BETWEEN_NODES = (
    "node_dead quorum_lost no_intact_replica no_manager under_replicated partitions_missing"
    " partitions_orphaned clock_skew"
)
CLUSTER_WIDE: Final = frozenset(map(Kind, _BETWEEN_NODES.split()))


@dataclass(frozen=True, slots=True)
class Trouble:
    kind: Kind
    name: str  # unique among the troubles of one kind
    text: str  # what is wrong, and what that means for clients
    do: str
    over: str  # log event at the end of the trouble; empty: no event
    is_blocking: bool = False  # the node is not ready: load balancers send requests elsewhere
    facts: Facts = dict  # returns further fields of the log event

    def filled(self, reason: str | None = None, *, facts: Facts = dict, **fields: Any) -> "Trouble":
        """Return a copy in which values replace the placeholders. ``reason`` goes to the log."""
        shown = {n: size(v) if n.endswith("_bytes") else v for n, v in fields.items()}
        name, text, do, over = (
            each.format(**shown) for each in (self.name, self.text, self.do, self.over)
        )
        facts = facts if reason is None else lambda: {"reason": reason}
        return replace(self, name=name, text=text, do=do, over=over, facts=facts)


CERTIFICATE_WARN_DAYS: Final = 30
CLOCK_SKEW_MS_MAX: Final = 1_000
CLOCK_DO: Final = "synchronize the clocks: NTP on every machine"
DISK_DO: Final = "receive and delete messages, or free space on the disk of the data folder"

DISK_FULL: Final = Trouble(
    Kind.DISK_FULL,
    "disk",
    "the disk is full: {free_bytes} free, {reserve_bytes} reserved for deletes; new messages are"
    " rejected, receiving and deleting still work",
    DISK_DO,
    "the disk has space again: messages are accepted",
)
DISK_LOW: Final = Trouble(
    Kind.DISK_LOW,
    "disk",
    "the disk is almost full: {free_bytes} free; new messages are rejected below {reserve_bytes}",
    DISK_DO,
    "",  # the trouble also ends when the disk becomes full
)
NO_OPERATOR: Final = Trouble(
    Kind.NO_OPERATOR,
    "operator",
    "no operator has an access key, so users, keys and the cluster cannot be managed",
    "restart the server: it creates a key for root and prints it once, or uses the key in"
    " PENSTOCK_ROOT_KEY_ID and PENSTOCK_ROOT_SECRET_FILE",
    "an operator has an access key again",
)
NO_MANAGER: Final = Trouble(
    Kind.NO_MANAGER,
    "manager",
    "no node manages the cluster: failed leaders are not replaced and no partitions are created",
    "check etcd (etcdctl endpoint health): once etcd answers, a node takes over within seconds",
    "a node manages the cluster again",
)
METADATA_AWAY: Final = Trouble(
    Kind.METADATA_AWAY,
    "metadata",
    "metadata store not reachable: sending and receiving still work; nothing can be created,"
    " changed or deleted, and failed leaders are not replaced",
    "start etcd or the metadata service, and check the network to it; its address is in the log",
    "metadata store reachable again",
)
CLOCK_SKEW: Final = Trouble(
    Kind.CLOCK_SKEW,
    "clock",
    "the clocks of {places} differ by {skew_ms:,} ms: signatures may be rejected,"
    " timestamps and retention are off",
    f"{CLOCK_DO}; penstock cluster status names the nodes",
    "the clocks of the nodes agree again",
)
LOG_DAMAGED: Final = Trouble(
    Kind.LOG_DAMAGED,
    "partition {place}",
    "the log of {place} is damaged: intact records are served, new messages are rejected",
    "stop the server and run penstock storage verify; restore a backup if needed",
    "the log of {place} is intact again",
)
REPLICATED_LOG_DAMAGED: Final = replace(
    LOG_DAMAGED,
    do="nothing: the log is rebuilt from another replica; replace the disk if this happens again",
)
REPLICA_HALTED: Final = Trouble(
    Kind.REPLICA_HALTED,
    "replica {place}",
    "the replica of {place} on this node has halted",
    "find the reason in the log, check the disk, and restart this node",
    "the replica of {place} is running again",
)
COORDINATOR_DOWN: Final = Trouble(
    Kind.COORDINATOR_DOWN,
    "coordinator {place}",
    "coordinator out of service: {place}; requests of its groups or transactions are rejected",
    "wait: the node retries every few seconds; if this lasts, find the reason in the log",
    "coordinator in service again: {place}",
)
ROW_UNREADABLE: Final = Trouble(
    Kind.ROW_UNREADABLE,
    "coordinator {topic}/{partition}",
    "coordinator out of service: {row}",
    "look at the row: penstock coordinator show {topic} {partition}; then skip it: penstock"
    " coordinator skip {topic} {partition} {offset}",
    "coordinator in service again: {topic}/{partition}",
    is_blocking=True,
)
FACTS_NOT_WRITTEN: Final = Trouble(
    Kind.FACTS_NOT_WRITTEN,
    "{what}",
    "{what} records are not being written; they are buffered in memory, and lost when the buffer"
    " is full",
    "find the reason in the log: a full disk, a damaged log, or too few replicas",
    "{what} records are written again",
)


def certificate_ending(whose: str, days_left: int) -> Trouble:
    state = "has expired: TLS connections fail"
    if days_left >= 0:
        state = f"expires in {counted(days_left, 'day')}: TLS connections fail after that"
    return Trouble(
        Kind.CERTIFICATE_ENDING,
        f"certificate {whose}",
        f"the certificate for {whose} {state}",
        "write the renewed certificate to the same file: running nodes load it (private CA:"
        " penstock generate certs)",
        over=f"the certificate for {whose} was renewed",
    )


def node_dead(
    node: int, name: str, partitions: int, *, was_stopped: bool = False, is_draining: bool = False
) -> Trouble:
    shown = f"node {node} ({name})" if name else f"node {node}"
    state = "was stopped" if was_stopped else "declared dead"
    command = f"penstock cluster decommission {node}"
    do = f"start the node again, or move its partitions to other nodes: {command}"
    if is_draining:
        do = "nothing: the node is being drained, and its partitions move to other nodes"
    return Trouble(
        Kind.NODE_DEAD,
        f"node {node}",
        f"{shown} {state}, {counted(partitions, 'partition')} affected",
        do,
        over=f"{shown} is back, or its partitions were moved",
    )


def _see(state: str) -> str:
    return f"list the partitions: penstock cluster partitions --state {state}"


_STATES: Final = (
    (
        Kind.UNDER_REPLICATED,
        "with fewer replicas than configured",
        "start or add nodes",
        "has all its replicas again",
    ),
    (Kind.PARTITIONS_MISSING, "not created yet", "wait a moment", "is created"),
    (Kind.PARTITIONS_ORPHANED, "without a topic", "report this as a bug", "has a topic again"),
)


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
    for kind, words, do, over in _STATES:
        state = kind.removeprefix("partitions_")
        if counts.get(state, 0):
            yield Trouble(
                kind,
                f"partitions {state}",
                f"{counted(counts[state], 'partition')} {words}",
                f"{do}; {_see(state)}",
                over=f"every partition {over}",
            )
