"""Divides offsets among tasks. Pure.

Ranges are split as in the Kafka connector, by a maximum of records per task and a minimum number of
tasks, which partitions get in proportion to their records. A limit is divided among partitions in
proportion to their records as well."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from penstock.net.kafka_client.client import Place


@dataclass(frozen=True, slots=True)
class Range:
    """Records of one partition from ``begin`` up to ``end``."""

    place: Place
    begin: int
    end: int

    @property
    def count(self) -> int:
        return max(0, self.end - self.begin)


def split(
    ranges: Sequence[Range], *, partitions_min: int | None, records_max: int | None
) -> list[Range]:
    wanted = [each for each in ranges if each.count]
    if records_max is not None:
        wanted = [part for each in wanted for part in _cut(each, -(-each.count // records_max))]
    if partitions_min is None or len(wanted) >= partitions_min:
        return wanted
    total = sum(each.count for each in wanted)
    return [
        part
        for each in wanted
        for part in _cut(each, max(1, round(each.count / total * partitions_min)))
    ]


def _cut(whole: Range, parts: int) -> list[Range]:
    parts = min(parts, whole.count)
    edges = [whole.begin + whole.count * number // parts for number in range(parts + 1)]
    return [replace(whole, begin=begin, end=end) for begin, end in pairwise(edges)]


def packed(ranges: Sequence[Range], *, records_max: int) -> list[tuple[Range, ...]]:
    """Group neighbouring ranges up to ``records_max`` records in all, because the start of a task
    costs as much as reading some thousand records."""
    packs: list[tuple[Range, ...]] = []
    room = 0
    for each in ranges:
        room -= each.count
        if packs and room >= 0:
            packs[-1] += (each,)
        else:
            packs.append((each,))
            room = records_max - each.count
    return packs


def limited_ends(
    begins: Mapping[Place, int], ends: Mapping[Place, int], limit: float
) -> dict[Place, int]:
    """Return ends that are at most ``limit`` records away in all. Each partition with records gets
    at least one record, so that large partitions do not starve small ones."""
    sizes = {place: max(0, ends[place] - begins[place]) for place in ends}
    total = sum(sizes.values())
    if total <= limit:
        return dict(ends)
    return {
        place: begins[place] + min(size, max(1, int(limit * size / total))) if size else ends[place]
        for place, size in sizes.items()
    }
