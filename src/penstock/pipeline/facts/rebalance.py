"""Plans moves of partitions, so that no node has far more load than the others. ``plan`` is pure
and deterministic: the same loads give the same plan, including its id.

Load is a vector (bytes in, bytes out, requests). A partition's score is the mean of its shares of
the three totals, so that no unit outweighs another. A node must be overloaded in *each* of the last
time windows: a single burst, or load that moves between nodes, causes no plan. After a plan there
is a pause, to measure the new placement.

A plan is advice: placement checks that it is still valid before it moves a partition. The key of a
record of ``__plans`` is the kind of the plan, so a newer plan replaces the older one of its
kind."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

from penstock.net.kafka_client.client import KafkaClient, KafkaRefused, Place
from penstock.record.batch import encode_batch
from penstock.record.compression import Codec
from penstock.record.record import encode_record
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)

TOPIC: Final = "__plans"
REBALANCE: Final = b"rebalance"
SCHEMA_HEADER: Final = (b"schema", b"plan/1")
_CREATE_TOPICS: Final = 19
OVER: Final = 1.2
GOAL: Final = 1.1
SPLIT_SHARE: Final = 0.5
WORTH: Final = 0.005  # of the mean: smaller moves have no effect
WINDOWS_MIN: Final = 3
PAUSE_MS: Final = 30 * 60_000
VALID_MS: Final = 5 * 60_000
MOVES_MAX: Final = 20
MOVE_BYTES_MAX: Final = 50 * 1_073_741_824


class PartitionId(NamedTuple):
    account: str
    region: str
    resource: str
    partition: int


class Load(NamedTuple):
    bytes_in: float = 0.0
    bytes_out: float = 0.0
    requests: float = 0.0


class Placed(NamedTuple):
    id: PartitionId
    node: str
    load: Load
    size_bytes: int = 0


class Action(StrEnum):
    MOVE = "move"
    SPLIT = "split"


@dataclass(frozen=True, slots=True)
class Step:
    seq: int
    action: Action
    account: str
    region: str
    resource: str
    partition: int
    source: str
    target: str
    gain: float  # decrease of the skew
    cost_bytes: int
    reason: str

    @property
    def id(self) -> PartitionId:
        return PartitionId(self.account, self.region, self.resource, self.partition)


@dataclass(frozen=True, slots=True)
class Plan:
    plan_id: str
    created_at_ms: int
    valid_until_ms: int
    skew_before: float  # the busiest node's load over the mean
    skew_after: float
    steps: tuple[Step, ...]

    def to_json(self) -> bytes:
        return json.dumps({"v": 1, **asdict(self)}, separators=(",", ":")).encode()


def plan(
    windows: Sequence[Sequence[Placed]],
    nodes: Iterable[str],
    *,
    now_ms: int,
    last_plan_at_ms: int | None = None,
    moves_max: int = MOVES_MAX,
    bytes_max: int = MOVE_BYTES_MAX,
) -> Plan | None:
    """Return a plan, or None if no move is needed. ``windows`` has the loads of the last time
    windows, oldest first. ``nodes`` includes idle nodes."""
    all_nodes = sorted(set(nodes))
    if len(all_nodes) < 2 or len(windows) < WINDOWS_MIN:
        return None
    if last_plan_at_ms is not None and now_ms - last_plan_at_ms < PAUSE_MS:
        return None
    scored = [_scores(window) for window in windows[-WINDOWS_MIN:]]
    over = set(all_nodes)
    for window, scores in zip(windows[-WINDOWS_MIN:], scored, strict=True):
        loads = _by_node(window, scores, all_nodes)
        mean = sum(loads.values()) / len(loads)
        over &= {node for node, load in loads.items() if mean > 0 and load > OVER * mean}
    if not over:
        return None
    drafting = _Draft(windows[-1], _mean(scored), all_nodes, moves_max, bytes_max)
    steps = drafting.steps(sorted(over))
    if not steps:
        return None
    text = json.dumps([asdict(step) for step in steps], sort_keys=True)
    return Plan(
        plan_id=hashlib.sha256(f"{now_ms} {text}".encode()).hexdigest()[:16],
        created_at_ms=now_ms,
        valid_until_ms=now_ms + VALID_MS,
        skew_before=round(drafting.skew_before, 4),
        skew_after=round(drafting.skew, 4),
        steps=tuple(steps),
    )


Scores = list[tuple[PartitionId, float]]


def _scores(window: Sequence[Placed]) -> Scores:
    names = Load._fields
    totals = {name: sum(getattr(placed.load, name) for placed in window) for name in names}
    used = {name: total for name, total in totals.items() if total > 0}
    return [
        (each.id, sum(getattr(each.load, n) / used[n] for n in used) / max(1, len(used)))
        for each in window
    ]


def _mean(scored: Sequence[Scores]) -> dict[PartitionId, float]:
    sums: dict[PartitionId, float] = {}
    for scores in scored:
        for partition, score in scores:
            sums[partition] = sums.get(partition, 0.0) + score / len(scored)
    return sums


def _by_node(window: Sequence[Placed], scores: Scores, nodes: Sequence[str]) -> dict[str, float]:
    loads = dict.fromkeys(nodes, 0.0)
    for placed, (_, score) in zip(window, scores, strict=True):
        loads[placed.node] = loads.get(placed.node, 0.0) + score
    return loads


def _skew(loads: Mapping[str, float]) -> float:
    mean = sum(loads.values()) / len(loads)
    return max(loads.values()) / mean if mean > 0 else 1.0


class _Draft:
    def __init__(
        self,
        window: Sequence[Placed],
        scores: Mapping[PartitionId, float],
        nodes: Sequence[str],
        moves_max: int,
        bytes_max: int,
    ) -> None:
        self._scores = scores
        self._homes = {placed.id: placed.node for placed in window}
        self._sizes = {placed.id: placed.size_bytes for placed in window}
        self._moves_left = moves_max
        self._bytes_left = bytes_max
        self._taken: set[PartitionId] = set()
        self._steps: list[Step] = []
        self.loads = dict.fromkeys(nodes, 0.0)
        for partition, node in self._homes.items():
            self.loads[node] = self.loads.get(node, 0.0) + scores[partition]
        self._mean = sum(self.loads.values()) / len(self.loads)
        self.skew_before = _skew(self.loads)

    @property
    def skew(self) -> float:
        return _skew(self.loads)

    def steps(self, over: Sequence[str]) -> list[Step]:
        while self._moves_left:
            giver = max(over, key=lambda node: (self.loads[node], node))
            if self.loads[giver] <= GOAL * self._mean:
                break
            others = [node for node in self.loads if node != giver]
            receiver = min(others, key=lambda node: (self.loads[node], node))
            if not (
                self._split(giver, receiver, above=GOAL)
                or self._move(giver, receiver)
                or self._split(giver, receiver, above=SPLIT_SHARE)
                or self._improve(giver, receiver)
            ):
                break
        return self._steps

    def _of(self, giver: str) -> list[PartitionId]:
        least = WORTH * self._mean
        found = [
            partition
            for partition, node in self._homes.items()
            if node == giver and partition not in self._taken and self._scores[partition] >= least
        ]
        return sorted(found, key=lambda partition: (-self._scores[partition], partition))

    def _movable(self, giver: str) -> list[PartitionId]:
        return [each for each in self._of(giver) if self._sizes[each] <= self._bytes_left]

    def _move(self, giver: str, receiver: str) -> bool:
        """Move the largest partition that fits on the receiving node without overloading it."""
        room = GOAL * self._mean - self.loads[receiver]
        fitting = [each for each in self._movable(giver) if self._scores[each] <= room]
        return bool(fitting) and self._add(Action.MOVE, fitting[0], giver, receiver)

    def _improve(self, giver: str, receiver: str) -> bool:
        """Move the partition that balances the two nodes best, if this is worth a move."""

        def most(each: PartitionId) -> float:
            score = self._scores[each]
            return max(self.loads[giver] - score, self.loads[receiver] + score)

        best = min(self._movable(giver), key=most, default=None)
        if best is None or most(best) >= (1 - WORTH) * self.loads[giver]:
            return False
        return self._add(Action.MOVE, best, giver, receiver)

    def _split(self, giver: str, receiver: str, *, above: float) -> bool:
        """Split the giver's largest partition if it has over ``above`` times the mean node load."""
        for partition in self._of(giver)[:1]:
            score = self._scores[partition]
            if score > above * self._mean and self.loads[receiver] + score / 2 < self.loads[giver]:
                return self._add(Action.SPLIT, partition, giver, receiver)
        return False

    def _add(self, action: Action, partition: PartitionId, giver: str, receiver: str) -> bool:
        is_move = action is Action.MOVE
        size = self._sizes[partition] if is_move else 0
        score = self._scores[partition] / (1 if is_move else 2)
        self._bytes_left -= size
        if is_move:
            self._homes[partition] = receiver
        before = self.skew
        reason = f"{giver} has {self.loads[giver] / self._mean:.2f} times the mean load"
        self.loads[giver] -= score
        self.loads[receiver] += score
        self._taken.add(partition)
        self._moves_left -= 1
        self._steps.append(
            Step(
                seq=len(self._steps) + 1,
                action=action,
                **partition._asdict(),
                source=giver,
                target=receiver,
                gain=round(before - self.skew, 4),
                cost_bytes=size,
                reason=reason,
            )
        )
        return True


def publish(client: KafkaClient, plan: Plan) -> int:
    client.retried(lambda: _make_topic(client))
    producer_id, epoch = client.producer_id()
    record = encode_record(
        offset_delta=0,
        timestamp_delta=0,
        key=REBALANCE,
        value=plan.to_json(),
        headers=(SCHEMA_HEADER,),
    )
    batch = encode_batch(
        [record],
        base_offset=0,
        leader_epoch=0,
        base_timestamp=plan.created_at_ms,
        max_timestamp=plan.created_at_ms,
        attributes=Codec.NONE,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=0,
    )
    place = Place(TOPIC, 0)
    return client.produce({place: batch}, is_repeatable=True)[place]


def _make_topic(client: KafkaClient) -> None:
    wanted = CreatableTopic(
        name=TOPIC,
        num_partitions=1,
        replication_factor=-1,
        configs=(CreatableTopicConfig("cleanup.policy", "compact"),),
    )
    reply: Any = client.call(_CREATE_TOPICS, CreateTopicsRequest(topics=(wanted,)))
    for topic in reply.topics:
        if topic.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            raise KafkaRefused(topic.error_code, topic.error_message or "", TOPIC)
