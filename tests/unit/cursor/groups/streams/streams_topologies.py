"""Topologies and heartbeats of streams groups, for tests."""

from collections.abc import Mapping

from tests.unit.cursor.groups.harness import SECOND, Shell, topics_of

from penstock.cursor import coordinator_calls as calls
from penstock.cursor.groups.records import InternalTopic, Subtopology, TopologyValue
from penstock.cursor.groups.streams.streams_requests import StreamsHeartbeat, StreamsReply
from penstock.cursor.groups.streams.task_assignor import Task, Tasks
from penstock.cursor.patterns.matches import Topics


def internal(name: str, count: int = 0) -> InternalTopic:
    return InternalTopic(name, count, 0, (("cleanup.policy", "compact"),))


def part(
    name: str,
    *sources: str,
    repartitions: Mapping[str, int] | None = None,
    sinks: tuple[str, ...] = (),
    changelogs: tuple[str, ...] = (),
    copartitions: tuple[tuple[str, ...], ...] = (),
) -> Subtopology:
    return Subtopology(
        name,
        sources,
        tuple(internal(topic, count) for topic, count in (repartitions or {}).items()),
        sinks,
        tuple(internal(topic) for topic in changelogs),
        copartitions,
    )


def topology(*parts: Subtopology, epoch: int = 0) -> TopologyValue:
    return TopologyValue(epoch, parts)


# Words are counted: one subtopology writes a repartition topic, the other one counts.
COUNTING = topology(
    part("0", "lines", sinks=("by-word",)),
    part("1", repartitions={"by-word": 0}, changelogs=("counts",)),
)
COUNTED = topics_of(**{"lines": 3, "by-word": 3, "counts": 3})
ALL_TASKS = frozenset((name, number) for name in "01" for number in range(3))


def tasks(name: str, *numbers: int) -> Tasks:
    return frozenset((name, number) for number in numbers)


def beat(
    shell: Shell,
    member: str,
    epoch: int,
    *,
    topics: Topics = COUNTED,
    group: str = "g",
    active: Tasks | None = None,
    standby: Tasks | None = None,
    **fields: object,
) -> StreamsReply:
    """A join says what it has to; otherwise both kinds of tasks are said or none."""
    is_join = epoch == 0
    values: dict[str, object] = {
        "rebalance_ms": 30 * SECOND if is_join else -1,
        "topology": COUNTING if is_join else None,
        "process_id": f"process-{member}" if is_join else None,
        **fields,
    }
    nothing: frozenset[Task] = frozenset()
    is_said = is_join or active is not None or standby is not None
    request = StreamsHeartbeat(
        member,
        epoch,
        active=(active or nothing) if is_said else None,
        standby=(standby or nothing) if is_said else None,
        warmup=nothing if is_said else None,
        client_id="client",
        client_host="/host",
        **values,  # type: ignore[arg-type]
    )
    ticket = shell.decide(shell.groups.beat, calls.BeatStreams(group, request), topics)
    return shell.reply(ticket, StreamsReply)
