"""Finds where a query without a checkpoint begins: after the records that its table has.

A tracked table of the lake knows its end offsets, so it replaces a checkpoint that was lost.
Partitions that the table does not know begin at their first record, and so does a partition whose
log begins after the table's end: the job itself must notice the missing records.
"""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.net.kafka_client import EARLIEST, KafkaClient, Place
from penstock.pipeline.job import NotFound
from penstock.pipeline.lake import Ends
from penstock.pipeline.option_values import Options
from penstock.pipeline.options import Subscription, parse_connection
from penstock.pipeline.positions import look_up

if TYPE_CHECKING:
    from penstock.pipeline.job import JobContext


def client_of(context: "JobContext") -> KafkaClient:
    """Return a client for requests without Spark; the caller closes it. Raises OptionInvalid."""
    connection = parse_connection(Options(context.read_options))
    return KafkaClient(
        connection.addresses,
        security=connection.security,
        timeout_s=connection.timeout_s,
        client_id=connection.client_id,
    )


def check_topics(context: "JobContext", topics: Sequence[str]) -> None:
    """Raise NotFound unless the server has all of these topics, and KafkaTrouble if the server is
    not available. Without topics only the server is checked."""
    with client_of(context) as client:
        if not topics:
            client.nodes()
            return
        missing = look_up(client, Subscription(topics=tuple(topics))).missing
    if missing:
        raise NotFound(f"there is no topic {', '.join(missing)}", "penstock topic list")


def starting_offsets(client: KafkaClient, topics: Sequence[str], ends: Ends) -> str:
    """Return a value for the option ``startingOffsets``. Raises KafkaTrouble."""
    if not any(ends.get(topic) for topic in topics):
        return "earliest"
    places = [place for topic in topics for place in client.places(topic)]
    firsts = client.offsets(dict.fromkeys(places, EARLIEST))
    begins: dict[str, dict[str, int]] = {}
    for place in places:
        begins.setdefault(place.topic, {})[str(place.partition)] = _begin(place, ends, firsts)
    return json.dumps(begins)


def _begin(place: Place, ends: Ends, firsts: Mapping[Place, int]) -> int:
    end = ends.get(place.topic, {}).get(place.partition)
    return EARLIEST if end is None or end < firsts[place] else end
