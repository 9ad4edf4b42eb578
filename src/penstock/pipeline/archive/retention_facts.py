"""Collects from the server the facts that a retention plan needs: start, end and size of logs,
offsets of readers, and topics from which no records can be deleted.

Kafka's API has no segments. A log is therefore divided into stretches at the offsets where a
decision can change: the first record that the policy keeps by age, and the offsets of each cursor
and of the archive. The bytes of a stretch are estimated by its share of the log's offsets."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from penstock.model.names import is_bookkeeping_group
from penstock.net.kafka_client.client import (
    EARLIEST,
    LATEST,
    KafkaClient,
    KafkaRefused,
    Place,
    by_topic,
)
from penstock.net.kafka_client.group_offsets import committed_offsets
from penstock.pipeline.archive.retention_plan import Facts, Hold, Policy, Segment
from penstock.wire.kafka.faults import ErrorCode

_LIST_GROUPS, _DELETE_RECORDS = 16, 21
_DESCRIBE_CONFIGS, _DESCRIBE_LOG_DIRS, _DESCRIBE_SHARE_OFFSETS = 32, 35, 90
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
    """Collect the facts. ``acked``: first offsets needed by cursors that the server does not know.
    Raises KafkaTrouble."""
    places = _places(client, policies)
    needs = _joined(_committed(client, places), acked)
    firsts = client.offsets(dict.fromkeys(places, EARLIEST)) if places else {}
    ends = client.offsets(dict.fromkeys(places, LATEST), is_committed=True) if places else {}
    kept_ms = {place: now_ms - 1_000 * _keep_s(policies, place.topic) for place in places}
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
    """Return the partitions of topics that have a policy, without internal topics."""
    found = []
    for topic in client.retried(client.metadata).topics:
        is_ours = not topic.is_internal and not topic.name.startswith("__")
        if is_ours and any(policy.matches(topic.name) for policy in policies):
            found += [Place(topic.name, part.partition_index) for part in topic.partitions]
    return sorted(found)


def _keep_s(policies: Sequence[Policy], topic: str) -> int:
    return next(policy.keep_s for policy in policies if policy.matches(topic))


def _joined(
    one: Mapping[Place, Mapping[str, int]], other: Mapping[Place, Mapping[str, int]]
) -> dict[Place, dict[str, int]]:
    """Merge the needs; if both have a cursor, the lower offset counts."""
    found = {place: dict(needs) for place, needs in one.items()}
    for place, needs in other.items():
        into = found.setdefault(place, {})
        for cursor, offset in needs.items():
            into[cursor] = min(offset, into.get(cursor, offset))
    return found


# ── Offsets of readers ───────────────────────────────────────────────────────────────────────────


def _committed(client: KafkaClient, places: Sequence[Place]) -> dict[Place, dict[str, int]]:
    needs: dict[Place, dict[str, int]] = {}
    for name, kind in _groups(client):
        offsets = _share_starts(client, name) if kind == _SHARE else _group_offsets(client, name)
        topics = {place.topic for place in offsets}
        for place in places:
            if place.topic in topics:  # a partition without a committed offset is needed from 0
                needs.setdefault(place, {})[name] = offsets.get(place, 0)
    return needs


def _groups(client: KafkaClient) -> list[tuple[str, str]]:
    from penstock.wire.kafka.generated.list_groups import ListGroupsRequest

    found: dict[str, str] = {}
    for node in client.nodes():
        reply = client.call(_LIST_GROUPS, ListGroupsRequest(), node=node)
        _check(reply.error_code, "groups")
        found |= {
            each.group_id: each.group_type.lower()
            for each in reply.groups
            if not is_bookkeeping_group(each.group_id)
        }
    return sorted(found.items())


def _group_offsets(client: KafkaClient, group: str) -> dict[Place, int]:
    return {place: each.offset for place, each in committed_offsets(client, group).items()}


def _share_starts(client: KafkaClient, group: str) -> dict[Place, int]:
    from penstock.wire.kafka.generated import describe_share_group_offsets as api

    request = api.DescribeShareGroupOffsetsRequest(
        groups=[api.DescribeShareGroupOffsetsRequestGroup(group, None)]
    )
    reply = client.call(_DESCRIBE_SHARE_OFFSETS, request, node=client.coordinator(group))
    found = {}
    for each in reply.groups:
        _check(each.error_code, f"group {group}")
        for topic in each.topics:
            for part in topic.partitions:
                _check(part.error_code, f"group {group}")
                # A share group has no start before its first record: then it needs all records.
                found[Place(topic.topic_name, part.partition_index)] = max(0, part.start_offset)
    return found


# ── Topics ───────────────────────────────────────────────────────────────────────────────────────


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
    """Delete all records below these offsets. Return for each partition the server's error, or ""
    for success. The server itself checks whether records of the topic may be deleted."""
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
