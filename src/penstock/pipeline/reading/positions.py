"""Converts a user's options to partitions, and to the offsets at which to begin and end in each.

Offsets given by the user are returned unchecked: a later read finds out whether they still exist.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock.net.kafka_client.client import EARLIEST, LATEST, KafkaClient, KafkaRefused, Place
from penstock.pipeline.client.option_values import OptionInvalid
from penstock.pipeline.client.read_options import Position, Subscription, TimestampStrategy
from penstock.wire.kafka.faults import ErrorCode

_GONE = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)


class TopicsMissing(Exception):
    """Topics that the user named do not exist."""

    def __init__(self, topics: Iterable[str]) -> None:
        self.topics = sorted(topics)
        super().__init__(self.topics)

    def __str__(self) -> str:
        return f"there is no topic {', '.join(self.topics)}"


@dataclass(frozen=True, slots=True)
class Found:
    """The partitions of a subscription, and the topics' ids, which change with re-creation."""

    places: tuple[Place, ...]
    ids: Mapping[str, str]
    missing: tuple[str, ...] = ()  # named topics or partitions that do not exist


def look_up(client: KafkaClient, subscription: Subscription) -> Found:
    """Find the subscription's partitions. A pattern never matches internal topics, as in Kafka's
    clients. Raises KafkaTrouble."""
    named = subscription.topics or sorted({place.topic for place in subscription.places})
    reply = client.retried(lambda: client.metadata(named or None))
    pattern = re.compile(subscription.pattern)
    places: list[Place] = []
    ids: dict[str, str] = {}
    missing = []
    for topic in reply.topics:
        if not named and (topic.is_internal or not pattern.fullmatch(topic.name)):
            continue
        if topic.error_code in _GONE:
            missing.append(topic.name)
            continue
        if topic.error_code:
            raise KafkaRefused(topic.error_code, subject=topic.name)
        ids[topic.name] = bytes(topic.topic_id).hex()
        places += [Place(topic.name, part.partition_index) for part in topic.partitions]
    if subscription.places:
        existing = set(places)
        missing += [str(place) for place in subscription.places if place not in existing]
        places = [place for place in subscription.places if place in existing]
    return Found(tuple(sorted(places)), ids, tuple(sorted(set(missing))))


def resolve(
    client: KafkaClient, position: Position, places: Iterable[Place], *, is_committed: bool
) -> dict[Place, int]:
    """Return the offset in each partition. Raises KafkaTrouble, OptionInvalid."""
    wanted = {place: _requested(position, place) for place in places}
    if position.by_place is not None:
        unknown = sorted(set(position.by_place) - set(wanted))
        if unknown:
            raise OptionInvalid(
                f"option {position.option} names {'; '.join(map(str, unknown))}: not subscribed"
            )
    fixed = {} if position.is_time else {at: to for at, to in wanted.items() if to >= 0}
    unresolved = {place: to for place, to in wanted.items() if place not in fixed}
    found = client.offsets(unresolved, is_committed=is_committed) if unresolved else {}
    too_old = [place for place, offset in found.items() if offset < 0]
    if too_old:
        if position.timestamp_strategy is TimestampStrategy.ERROR:
            raise OptionInvalid(
                f"option {position.option}: {'; '.join(map(str, too_old))} has no record so"
                " late (startingOffsetsByTimestampStrategy=latest starts at the end instead)"
            )
        found |= client.offsets(dict.fromkeys(too_old, LATEST), is_committed=is_committed)
    return fixed | found


def _requested(position: Position, place: Place) -> int:
    if position.by_place is None:
        assert position.everywhere is not None
        return position.everywhere
    if place not in position.by_place:
        raise OptionInvalid(
            f"option {position.option} has no offset for {place}: name every partition"
            + ("" if position.is_time else f", {EARLIEST} for earliest, {LATEST} for latest")
        )
    return position.by_place[place]
