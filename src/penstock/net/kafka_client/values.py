"""Arguments and results of the blocking Kafka client."""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from penstock.wire.kafka.fetch import AbortedTransaction, FetchPartitionResponse

_NO_RECORDS: Final = memoryview(b"")


class Place(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}, {self.partition}"


class Fetched(NamedTuple):
    """The fetched batches of one partition."""

    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    records: memoryview  # batches; the last one may be incomplete
    aborted: Sequence[AbortedTransaction]  # skipped by readers of committed records


def parse_addresses(text: str) -> list[tuple[str, int]]:
    """Parse ``HOST:PORT`` separated by commas. Raises ValueError."""
    return [_address(part.strip()) for part in text.split(",")]


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536:
        raise ValueError(f"'{text}' is not HOST:PORT")
    return host.strip("[]"), int(port)


def fetched_of(part: FetchPartitionResponse) -> Fetched:
    records = [piece for piece in part.records if isinstance(piece, memoryview)]
    return Fetched(
        part.error_code,
        part.high_watermark,
        part.last_stable_offset,
        part.log_start_offset,
        records[0] if records else _NO_RECORDS,
        part.aborted or (),
    )


def by_topic(places: Iterable[Place]) -> dict[str, list[int]]:
    grouped: dict[str, list[int]] = {}
    for place in places:
        grouped.setdefault(place.topic, []).append(place.partition)
    return grouped
