"""What may be deleted, and why the rest may not: a pure decision over stretches of logs.

A stretch goes when everything in it is done with. It stays, whatever else holds, when

- no policy speaks of its topic, or the topic cannot be cut (a queue, a compacted one);
- it is held;
- it has records younger than its policy keeps them;
- the archive is required and does not have it yet;
- a cursor still needs something of it, or nobody is known to read the topic and the policy does
  not say that nobody does;
- it is behind one that stays: a log has no holes.

What a cursor needs is the first offset that it is not done with. For a consumer group that is what
it has committed; for leases it is where the acknowledged records from its start on end, which
``acked_floor`` finds in any heap of ranges. A group that has read one partition of a topic needs
all of the others: it may just not have come to them.

A plan is a hint. Whoever carries it out asks for the facts again, and so does the server.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from penstock.net.kafka_client import Place
from penstock.pipeline.toml_tables import Given, read_text, tables_of

DELETE: Final = "delete"
KEEP: Final = "keep"


class PoliciesInvalid(Exception):
    """One line: which table, and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a log that goes or stays as a whole: offsets from ``base`` up to ``end``."""

    place: Place
    base: int
    end: int
    bytes: int
    max_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Policy:
    topics: str  # a name, or a pattern with * and ?
    keep_s: int
    groups: tuple[str, ...] | None = None  # None: whoever reads it; empty: nobody does
    is_archive_required: bool = True

    def speaks_of(self, topic: str) -> bool:
        return fnmatchcase(topic, self.topics)


@dataclass(frozen=True, slots=True)
class Hold:
    topics: str
    partition: int | None = None  # None: all
    from_offset: int = 0

    def covers(self, segment: Segment) -> bool:
        is_here = self.partition is None or self.partition == segment.place.partition
        return is_here and segment.end > self.from_offset and self.speaks_of(segment.place.topic)

    def speaks_of(self, topic: str) -> bool:
        return fnmatchcase(topic, self.topics)


@dataclass(frozen=True, slots=True)
class Facts:
    """How things stand at one moment."""

    segments: Sequence[Segment]
    needs: Mapping[Place, Mapping[str, int]] = field(default_factory=dict)  # cursor: first offset
    archived: Mapping[Place, int] = field(default_factory=dict)  # the archive's end
    uncuttable: Mapping[str, str] = field(default_factory=dict)  # topic: why


@dataclass(frozen=True, slots=True)
class Decision:
    segment: Segment
    action: str
    reason: str


def plan(
    facts: Facts, policies: Sequence[Policy], holds: Sequence[Hold], *, now_ms: int
) -> list[Decision]:
    """One decision for each segment. The first policy that speaks of a topic is its policy."""
    made: list[Decision] = []
    ordered = sorted(facts.segments, key=lambda each: (each.place, each.base))
    for place, segments in groupby(ordered, key=lambda each: each.place):
        policy = next((each for each in policies if each.speaks_of(place.topic)), None)
        is_behind = False
        for segment in segments:
            reason = _stays(segment, policy, holds, facts, now_ms=now_ms)
            if is_behind and not reason:
                reason = "behind one that stays"
            is_behind = is_behind or bool(reason)
            made.append(
                Decision(segment, KEEP, reason)
                if reason
                else Decision(segment, DELETE, "done with")
            )
    return made


def cuts(decisions: Iterable[Decision]) -> dict[Place, int]:
    """For each partition that loses something: the first offset to remain."""
    found: dict[Place, int] = {}
    for each in decisions:
        if each.action == DELETE:
            place = each.segment.place
            found[place] = max(found.get(place, 0), each.segment.end)
    return found


def _stays(
    segment: Segment,
    policy: Policy | None,
    holds: Sequence[Hold],
    facts: Facts,
    *,
    now_ms: int,
) -> str:
    """Why; empty: nothing keeps it."""
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
    return _needed(segment, policy, facts.needs.get(place, {}))


def _needed(segment: Segment, policy: Policy, needs: Mapping[str, int]) -> str:
    if policy.groups is None and not needs:
        return "nobody is known to read it"
    # Those that the policy names must have been there; whoever else reads is heard as well.
    for name in sorted({*(policy.groups or ()), *needs}):
        if needs.get(name, 0) < segment.end:
            return f"needed by {name}"
    return ""


def acked_floor(ranges: Iterable[tuple[int, int]], start: int) -> int:
    """The first offset from ``start`` on that no range (first, last) has. Ranges come in any order,
    overlap and repeat."""
    floor = start
    for first, last in sorted(ranges):
        if first > floor:
            break
        floor = max(floor, last + 1)
    return floor


def savings(decisions: Iterable[Decision]) -> dict[str, int]:
    """Bytes to be freed, by topic."""
    freed: dict[str, int] = {}
    for each in decisions:
        if each.action == DELETE:
            topic = each.segment.place.topic
            freed[topic] = freed.get(topic, 0) + each.segment.bytes
    return freed


# ── Policies as they are written ─────────────────────────────────────────────────────────────────


def read_policies(path: str | Path) -> tuple[list[Policy], list[Hold]]:
    """Raises PoliciesInvalid."""
    return parse_policies(read_text(path, PoliciesInvalid))


def parse_policies(text: str) -> tuple[list[Policy], list[Hold]]:
    """Raises PoliciesInvalid."""
    told = tables_of(text, ("policy", "hold"), PoliciesInvalid)
    policies = [_policy(number, table) for number, table in enumerate(told["policy"], 1)]
    return policies, [_hold(number, table) for number, table in enumerate(told["hold"], 1)]


def _policy(number: int, table: dict[str, Any]) -> Policy:
    given = Given(f"policy {number}", table, PoliciesInvalid)
    made = Policy(
        topics=given.text("topic"),
        keep_s=given.whole("keep_s"),
        groups=given.texts("groups") if "groups" in given else None,
        is_archive_required=given.flag("archive_required", default=True),
    )
    given.finish()
    return made


def _hold(number: int, table: dict[str, Any]) -> Hold:
    given = Given(f"hold {number}", table, PoliciesInvalid)
    made = Hold(
        topics=given.text("topic"),
        partition=given.whole("partition") if "partition" in given else None,
        from_offset=given.whole("from_offset", 0),
    )
    given.finish()
    return made
