"""Decides which parts of logs (segments) can be deleted, and why the others are kept
(``_reason_to_keep``). A log cannot have holes, so all segments after a kept segment are kept too.

A reader (cursor) needs all records from the first that it has not finished. For a consumer group,
this is the committed offset; for leases, it is the first offset without an ack (``ack_ranges``). A
group that has read one partition of a topic may read the others later, so it needs all their
records.

``gather`` reads the input of a plan from the server. Kafka's API does not show segments, so a log
is divided at the offsets where a decision can change: the first record that the policy keeps by
age, and the offsets of each cursor and of the archive. The size of a segment is estimated from its
share of the log's offsets. A plan is only advice: the job makes a second plan before it deletes."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import groupby, pairwise
from typing import Any, Final, NamedTuple

from penstock.model.names import is_bookkeeping_group
from penstock.net.kafka_client.client import (
    EARLIEST,
    LATEST,
    KafkaClient,
    KafkaRefused,
    Place,
    by_topic,
)
from penstock.net.kafka_client.group_offsets import committed_offsets, share_starts
from penstock.pipeline.toml_tables import TomlTable, tables_of
from penstock.wire.kafka.faults import ErrorCode

DELETE: Final = "delete"
KEEP: Final = "keep"


class PoliciesInvalid(Exception):
    """Raised if a policy is invalid. The text is one line with the TOML table and the reason."""


class Segment(NamedTuple):
    """A range of offsets, ``base`` to ``end`` (exclusive), that is deleted or kept as a whole."""

    place: Place
    base: int
    end: int
    bytes: int
    max_timestamp_ms: int


class Policy(NamedTuple):
    topics: str  # a name, or a pattern with * and ?
    keep_s: int
    groups: tuple[str, ...] | None = None  # None: any reader; empty: the topic has no readers
    is_archive_required: bool = True

    def matches(self, topic: str) -> bool:
        return fnmatchcase(topic, self.topics)


class Hold(NamedTuple):
    topics: str
    partition: int | None = None  # None: all
    from_offset: int = 0

    def covers(self, segment: Segment) -> bool:
        is_here = self.partition is None or self.partition == segment.place.partition
        return is_here and segment.end > self.from_offset and self.matches(segment.place.topic)

    def matches(self, topic: str) -> bool:
        return fnmatchcase(topic, self.topics)


@dataclass(frozen=True, slots=True)
class Facts:
    segments: Sequence[Segment]
    needs: Mapping[Place, Mapping[str, int]] = field(default_factory=dict)  # cursor: first offset
    archived: Mapping[Place, int] = field(default_factory=dict)  # end of the archive
    uncuttable: Mapping[str, str] = field(default_factory=dict)  # topic: reason to keep it


class Decision(NamedTuple):
    segment: Segment
    action: str
    reason: str


def plan(
    facts: Facts, policies: Sequence[Policy], holds: Sequence[Hold], *, now_ms: int
) -> list[Decision]:
    """Return a decision for each segment. A topic's policy is the first that matches its name."""
    made: list[Decision] = []
    ordered = sorted(facts.segments, key=lambda each: (each.place, each.base))
    for place, segments in groupby(ordered, key=lambda each: each.place):
        policy = next((each for each in policies if each.matches(place.topic)), None)
        is_after_kept = False
        for segment in segments:
            reason = _reason_to_keep(segment, policy, holds, facts, now_ms=now_ms)
            if is_after_kept and not reason:
                reason = "after records that are kept"
            is_after_kept = is_after_kept or bool(reason)
            action = KEEP if reason else DELETE
            made.append(Decision(segment, action, reason or "no longer needed"))
    return made


def cuts(decisions: Iterable[Decision]) -> dict[Place, int]:
    """Return the first offset to keep, for each partition that has records to delete."""
    found: dict[Place, int] = {}
    for each in decisions:
        if each.action == DELETE:
            place = each.segment.place
            found[place] = max(found.get(place, 0), each.segment.end)
    return found


def _reason_to_keep(
    segment: Segment, policy: Policy | None, holds: Sequence[Hold], facts: Facts, *, now_ms: int
) -> str:
    place = segment.place
    if policy is None:
        return "no policy"
    if place.topic in facts.uncuttable:
        return facts.uncuttable[place.topic]
    if any(hold.covers(segment) for hold in holds):
        return "held"
    if segment.max_timestamp_ms > now_ms - policy.keep_s * 1_000:
        return "within retention"
    if policy.is_archive_required and facts.archived.get(place, 0) < segment.end:
        return "not archived"
    needs = facts.needs.get(place, {})
    if policy.groups is None and not needs:
        return "no known reader"
    # Groups that the policy names must have committed; all other readers count as well.
    for name in sorted({*(policy.groups or ()), *needs}):
        if needs.get(name, 0) < segment.end:
            return f"needed by {name}"
    return ""


def savings(decisions: Iterable[Decision]) -> dict[str, int]:
    freed: Counter[str] = Counter()
    for each in decisions:
        if each.action == DELETE:
            freed[each.segment.place.topic] += each.segment.bytes
    return freed


def parse_policies(text: str) -> tuple[list[Policy], list[Hold]]:
    tables = tables_of(text, ("policy", "hold"), PoliciesInvalid)
    policies = [_policy(number, table) for number, table in enumerate(tables["policy"], 1)]
    return policies, [_hold(number, table) for number, table in enumerate(tables["hold"], 1)]


def _policy(number: int, table: dict[str, Any]) -> Policy:
    given = TomlTable(f"policy {number}", table, PoliciesInvalid)
    made = Policy(
        topics=given.text("topic"),
        keep_s=given.whole("keep_s"),
        groups=given.texts("groups") if "groups" in given else None,
        is_archive_required=given.flag("archive_required", default=True),
    )
    given.finish()
    return made


def _hold(number: int, table: dict[str, Any]) -> Hold:
    given = TomlTable(f"hold {number}", table, PoliciesInvalid)
    made = Hold(
        topics=given.text("topic"),
        partition=given.whole("partition") if "partition" in given else None,
        from_offset=given.whole("from_offset", 0),
    )
    given.finish()
    return made


_DELETE_RECORDS, _DESCRIBE_CONFIGS, _DESCRIBE_LOG_DIRS = 21, 32, 35
_TOPIC: Final = 2  # resource type in config requests
_SHARE: Final = "share"
A_QUEUE: Final = "a queue: it deletes acked messages itself"
COMPACTED: Final = "compacted: compaction deletes its records"


def gather(
    client: KafkaClient,
    policies: Sequence[Policy],
    holds: Sequence[Hold],
    *,
    now_ms: int,
    archived: Mapping[Place, int],
    acked: Mapping[Place, Mapping[str, int]],
) -> Facts:
    places = _places(client, policies)
    needs = _needs(client, places, acked)
    firsts = client.offsets(dict.fromkeys(places, EARLIEST)) if places else {}
    ends = client.offsets(dict.fromkeys(places, LATEST), is_committed=True) if places else {}
    kept_ms = {
        place: now_ms - 1_000 * next(p.keep_s for p in policies if p.matches(place.topic))
        for place in places
    }
    young = client.offsets({place: max(0, at) for place, at in kept_ms.items()}) if places else {}
    sizes = log_bytes(client, places)
    segments: list[Segment] = []
    for place in places:
        first, end = firsts[place], ends[place]
        old_end = end if young[place] < 0 else young[place]  # -1: all records are older
        edges = {old_end, archived.get(place, 0), *needs.get(place, {}).values()}
        edges |= {hold.from_offset for hold in holds if hold.matches(place.topic)}
        cut = sorted({first, end, *(edge for edge in edges if first < edge < end)})
        for base, until in pairwise(cut):
            share = (until - base) * sizes.get(place, 0) // max(1, end - first)
            at_ms = kept_ms[place] - 1 if until <= old_end else now_ms
            segments.append(Segment(place, base, until, share, at_ms))
    uncuttable = _uncuttable(client, sorted({place.topic for place in places}))
    return Facts(segments, needs, archived, uncuttable)


def _places(client: KafkaClient, policies: Sequence[Policy]) -> list[Place]:
    found = []
    for topic in client.retried(client.metadata).topics:
        is_ours = not topic.is_internal and not topic.name.startswith("__")
        if is_ours and any(policy.matches(topic.name) for policy in policies):
            found += [Place(topic.name, part.partition_index) for part in topic.partitions]
    return sorted(found)


def _needs(
    client: KafkaClient, places: Sequence[Place], acked: Mapping[Place, Mapping[str, int]]
) -> dict[Place, dict[str, int]]:
    needs = {place: dict(cursors) for place, cursors in acked.items()}
    for name, kind in _groups(client):
        if kind == _SHARE:
            offsets = {place: max(0, at) for place, at in share_starts(client, name).items()}
        else:
            found = committed_offsets(client, name)
            offsets = {place: each.offset for place, each in found.items()}
        topics = {place.topic for place in offsets}
        for place in places:
            if place.topic in topics:  # a partition without a committed offset is needed from 0
                of_place, offset = needs.setdefault(place, {}), offsets.get(place, 0)
                of_place[name] = min(offset, of_place.get(name, offset))
    return needs


def _groups(client: KafkaClient) -> list[tuple[str, str]]:
    found = {each.name: each.type for each in client.groups()}
    return sorted(each for each in found.items() if not is_bookkeeping_group(each[0]))


def log_bytes(client: KafkaClient, places: Sequence[Place]) -> dict[Place, int]:
    from penstock.wire.kafka.generated import describe_log_dirs as api

    topics = [api.DescribableLogDirTopic(name, parts) for name, parts in by_topic(places).items()]
    found: dict[Place, int] = {}
    if not topics:
        return found
    for node in client.nodes():
        reply = client.call(_DESCRIBE_LOG_DIRS, api.DescribeLogDirsRequest(topics), node=node)
        _check(reply.error_code, "sizes of logs")
        for folder in reply.results:
            for topic in folder.topics:
                for part in topic.partitions:
                    place = Place(topic.name, part.partition_index)
                    found[place] = max(part.partition_size, found.get(place, 0))
    return found


def _uncuttable(client: KafkaClient, topics: Sequence[str]) -> dict[str, str]:
    from penstock.wire.kafka.generated import describe_configs as api

    if not topics:
        return {}
    resources = [api.DescribeConfigsResource(_TOPIC, name, None) for name in topics]
    found = {}
    for each in client.call(_DESCRIBE_CONFIGS, api.DescribeConfigsRequest(resources)).results:
        _check(each.error_code, f"configs of {each.resource_name}")
        configs = {config.name: config.value for config in each.configs}
        if configs.get("penstock.queue") == "true":
            found[each.resource_name] = A_QUEUE
        elif "delete" not in (configs.get("cleanup.policy") or "delete"):
            found[each.resource_name] = COMPACTED
    return found


def delete_records(client: KafkaClient, cuts: Mapping[Place, int]) -> dict[Place, str]:
    """Delete the records before these offsets. Return each partition's error ("" for success)."""
    from penstock.wire.kafka.generated import delete_records as api

    def request(places: Sequence[Place]) -> Any:
        topics = [
            api.DeleteRecordsTopic(
                name, [api.DeleteRecordsPartition(part, cuts[Place(name, part)]) for part in parts]
            )
            for name, parts in by_topic(places).items()
        ]
        return api.DeleteRecordsRequest(topics, client.timeout_ms)

    errors: dict[Place, str] = {}
    for reply in client.at_leaders(_DELETE_RECORDS, sorted(cuts), request) if cuts else ():
        for topic in reply.topics:
            for part in topic.partitions:
                place = Place(topic.name, part.partition_index)
                errors[place] = "" if not part.error_code else str(KafkaRefused(part.error_code))
    return {place: errors.get(place, "no reply") for place in cuts}


def _check(code: int, subject: str) -> None:
    if code != ErrorCode.NONE:
        raise KafkaRefused(code, subject=subject)
