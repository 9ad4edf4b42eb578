"""No heartbeat of a streams group keeps the event loop busy for more than 20 ms, at the largest
sizes that a group may have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from tests.attacks.frames import Wire
from tests.attacks.stalls import LoopServer
from tests.harness.patience import eventually

from penstock.frontend.kafka.configs.group_configs import STANDBYS_MAX
from penstock.model.limits import STREAMS_TASKS_MAX, STREAMS_TOPICS_MAX
from penstock.wire.kafka.generated.create_topics import CreatableTopic
from penstock.wire.kafka.generated.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
)
from penstock.wire.kafka.generated.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatRequestEndpoint,
    StreamsGroupHeartbeatRequestTaskIds,
    StreamsGroupHeartbeatResponse,
    Subtopology,
    TopicInfo,
    Topology,
)

GROUP = 32  # the type of a resource
MEMBERS = STANDBYS_MAX + 1  # each in a process of its own: every member has every task
WIDE = 500  # partitions of one topic
PARTS = STREAMS_TOPICS_MAX // 2  # subtopologies with a source and a changelog each
SECONDS_MAX = 60.0

Tasks = Sequence[StreamsGroupHeartbeatRequestTaskIds]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopServer]:
    with LoopServer(tmp_path_factory.mktemp("streams")) as running:
        create(running, [CreatableTopic("wide", WIDE, 1)])
        for begin in range(0, PARTS, 100):
            numbers = range(begin, begin + 100)
            create(running, [CreatableTopic(f"source-{n}", 1, 1) for n in numbers])
        yield running


def create(server: LoopServer, topics: Sequence[CreatableTopic]) -> None:
    with Wire(server) as wire:
        made = wire.ask("CreateTopics", 5, topics=topics, timeout_ms=60_000)
        assert {each.error_code for each in made.topics} == {0}


def configure(server: LoopServer, group: str, **configs: int) -> None:
    entries = [
        AlterableConfig(f"streams.{name.replace('_', '.')}", 0, str(value))
        for name, value in configs.items()
    ]
    with Wire(server) as wire:
        (found,) = wire.ask(
            "IncrementalAlterConfigs", 1, resources=[AlterConfigsResource(GROUP, group, entries)]
        ).responses
    assert found.error_code == 0, found.error_message


class Member:
    """Sends heartbeats that are watched, as Kafka Streams does: the tasks that it has are told
    when they have changed."""

    def __init__(self, server: LoopServer, group: str, name: str) -> None:
        self._server = server
        self._group = group
        self._name = name
        self._epoch = 0
        self._endpoints = -1
        self.active: Tasks = ()
        self.standby: Tasks = ()

    def join(self, topology: Topology) -> StreamsGroupHeartbeatResponse:
        return self._send(
            rebalance_timeout_ms=60_000,
            topology=topology,
            process_id=self._name,
            user_endpoint=StreamsGroupHeartbeatRequestEndpoint("here", 80),
            active_tasks=(),
            standby_tasks=(),
            warmup_tasks=(),
        )

    def beat(self) -> StreamsGroupHeartbeatResponse:
        return self._send(
            active_tasks=self.active,
            standby_tasks=self.standby,
            warmup_tasks=(),
        )

    def _send(self, **fields: Any) -> StreamsGroupHeartbeatResponse:
        request = StreamsGroupHeartbeatRequest(
            self._group, self._name, self._epoch, self._endpoints, **fields
        )
        with Wire(self._server) as wire, self._server.watch() as turns:
            wire.socket.settimeout(60)  # a join creates hundreds of topics
            found = wire.ask_for("StreamsGroupHeartbeat", 0, request)
        turns.check()
        assert isinstance(found, StreamsGroupHeartbeatResponse)
        assert found.error_code == 0, found.error_message
        self._epoch, self._endpoints = found.member_epoch, found.endpoint_information_epoch
        if found.active_tasks is not None:
            self.active = _asked(found.active_tasks)
            self.standby = _asked(found.standby_tasks)
        return found

    @property
    def task_count(self) -> int:
        return sum(len(each.partitions) for each in (*self.active, *self.standby))


def _asked(tasks: Any) -> Tasks:
    return [
        StreamsGroupHeartbeatRequestTaskIds(each.subtopology_id, each.partitions) for each in tasks
    ]


def wide_topology() -> Topology:
    """Few subtopologies with many tasks."""
    return Topology(
        0,
        [
            Subtopology(f"{n}", ["wide"], state_changelog_topics=[TopicInfo(f"wide-changes-{n}")])
            for n in range(STREAMS_TASKS_MAX // WIDE)
        ],
    )


def long_topology() -> Topology:
    """As many topics as there may be."""
    return Topology(
        0,
        [
            Subtopology(
                f"{n}", [f"source-{n}"], state_changelog_topics=[TopicInfo(f"long-changes-{n}")]
            )
            for n in range(PARTS)
        ],
    )


@pytest.mark.parametrize(
    ("group", "topology", "tasks"),
    [("wide", wide_topology(), STREAMS_TASKS_MAX), ("long", long_topology(), PARTS)],
    ids=["many-tasks", "many-topics"],
)
def test_a_large_group_is_assigned_without_a_stall(
    server: LoopServer, group: str, topology: Topology, tasks: int
) -> None:
    configure(server, group, num_standby_replicas=STANDBYS_MAX, initial_rebalance_delay_ms=0)
    members = [Member(server, group, f"{group}-{number}") for number in range(MEMBERS)]
    for member in members:
        member.join(topology)

    def all_have_all() -> bool:
        for member in members:
            member.beat()
        return all(member.task_count == tasks for member in members)

    eventually(all_have_all, seconds=SECONDS_MAX, what="every member has every task")
    with Wire(server) as wire, server.watch() as turns:
        (found,) = wire.ask("StreamsGroupDescribe", 0, group_ids=[group]).groups
    turns.check()
    assert (found.error_code, len(found.members)) == (0, MEMBERS)
    with Wire(server) as wire:  # the member's tasks go to the others
        leaving = StreamsGroupHeartbeatRequest(group, f"{group}-0", -1, -1)
        assert wire.ask_for("StreamsGroupHeartbeat", 0, leaving).error_code == 0
    members.pop(0)
    eventually(all_have_all, seconds=SECONDS_MAX, what="the rest has every task")
