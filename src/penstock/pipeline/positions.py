"""Converts a user's options to partitions, and to the offsets at which to begin and end in each.

Offsets given by the user are returned unchecked: a later read finds out whether they still exist.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock.net.kafka_client import EARLIEST, LATEST, KafkaClient, KafkaRefused, Place
from penstock.pipeline.option_values import OptionInvalid
from penstock.pipeline.options import NoneSoNew, Position, Subscription
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
        there = set(places)
        missing += [str(place) for place in subscription.places if place not in there]
        places = [place for place in subscription.places if place in there]
    return Found(tuple(sorted(places)), ids, tuple(sorted(set(missing))))


def resolve(
    client: KafkaClient, position: Position, places: Iterable[Place], *, is_committed: bool
) -> dict[Place, int]:
    """Return the offset in each partition. Raises KafkaTrouble, OptionInvalid."""
    wanted = {place: _said(position, place) for place in places}
    if position.by_place is not None:
        unknown = sorted(set(position.by_place) - set(wanted))
        if unknown:
            raise OptionInvalid(
                f"option {position.option} names {'; '.join(map(str, unknown))}, which is not read"
            )
    fixed = {} if position.is_time else {at: to for at, to in wanted.items() if to >= 0}
    asked = {place: to for place, to in wanted.items() if place not in fixed}
    found = client.offsets(asked, is_committed=is_committed) if asked else {}
    none_so_new = [place for place, offset in found.items() if offset < 0]
    if none_so_new:
        if position.none_so_new is NoneSoNew.ERROR:
            raise OptionInvalid(
                f"option {position.option}: no record of {'; '.join(map(str, none_so_new))} is so"
                " new (startingOffsetsByTimestampStrategy=latest begins at the end instead)"
            )
        found |= client.offsets(dict.fromkeys(none_so_new, LATEST), is_committed=is_committed)
    return fixed | found


def _said(position: Position, place: Place) -> int:
    if position.by_place is None:
        assert position.everywhere is not None
        return position.everywhere
    if place not in position.by_place:
        raise OptionInvalid(
            f"option {position.option} does not say anything of {place}: name every partition"
            + ("" if position.is_time else f", {EARLIEST} for earliest, {LATEST} for latest")
        )
    return position.by_place[place]
