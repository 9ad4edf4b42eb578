"""Decides which stretches of logs can be deleted, and the reason to keep each of the others. Pure.

A stretch is kept if any of these is true:

- its topic has no policy, or records cannot be deleted from it (a queue, a compacted topic);
- a hold covers the stretch;
- the stretch has records younger than its policy's age;
- the policy requires the archive, which does not have the stretch yet;
- a cursor still needs a record of the stretch; or the topic has no known reader, and the policy
  does not state that it has none;
- an earlier stretch is kept: a log has no holes.

A cursor needs all records from the first that it has not finished: for a consumer group this is its
committed offset, for leases the first offset without an ack (``ack_ranges``). A group that has
read one partition of a topic needs all others, which it may read later.

A plan is advice. The job collects the facts again before it deletes, and the server checks too."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from penstock.net.kafka_client.client import Place
from penstock.pipeline.toml_tables import TomlTable, read_text, tables_of

DELETE: Final = "delete"
KEEP: Final = "keep"


class PoliciesInvalid(Exception):
    """A policy is invalid. The text is one line with the table and the reason."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a log that is deleted or kept as a whole: offsets from ``base`` to ``end``."""

    place: Place
    base: int
    end: int
    bytes: int
    max_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Policy:
    topics: str  # a name, or a pattern with * and ?
    keep_s: int
    groups: tuple[str, ...] | None = None  # None: any reader; empty: the topic has no readers
    is_archive_required: bool = True

    def matches(self, topic: str) -> bool:
        return fnmatchcase(topic, self.topics)


@dataclass(frozen=True, slots=True)
class Hold:
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
    """The state of logs and readers at one moment."""

    segments: Sequence[Segment]
    needs: Mapping[Place, Mapping[str, int]] = field(default_factory=dict)  # cursor: first offset
    archived: Mapping[Place, int] = field(default_factory=dict)  # the archive's end
    uncuttable: Mapping[str, str] = field(default_factory=dict)  # topic: reason


@dataclass(frozen=True, slots=True)
class Decision:
    segment: Segment
    action: str
    reason: str


def plan(
    facts: Facts, policies: Sequence[Policy], holds: Sequence[Hold], *, now_ms: int
) -> list[Decision]:
    """Return one decision for each segment. A topic's policy is the first that matches its name."""
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
            made.append(
                Decision(segment, KEEP, reason)
                if reason
                else Decision(segment, DELETE, "no longer needed")
            )
    return made


def cuts(decisions: Iterable[Decision]) -> dict[Place, int]:
    """Return the first offset to keep, for each partition with records to delete."""
    found: dict[Place, int] = {}
    for each in decisions:
        if each.action == DELETE:
            place = each.segment.place
            found[place] = max(found.get(place, 0), each.segment.end)
    return found


def _reason_to_keep(
    segment: Segment,
    policy: Policy | None,
    holds: Sequence[Hold],
    facts: Facts,
    *,
    now_ms: int,
) -> str:
    """Return the reason to keep a segment, or "" if there is none."""
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
        return "no known reader"
    # Groups that the policy names must have committed; all other readers count as well.
    for name in sorted({*(policy.groups or ()), *needs}):
        if needs.get(name, 0) < segment.end:
            return f"needed by {name}"
    return ""


def savings(decisions: Iterable[Decision]) -> dict[str, int]:
    """Return the bytes to be freed, by topic."""
    freed: dict[str, int] = {}
    for each in decisions:
        if each.action == DELETE:
            topic = each.segment.place.topic
            freed[topic] = freed.get(topic, 0) + each.segment.bytes
    return freed


# ── Parsing of policies ──────────────────────────────────────────────────────────────────────────


def read_policies(path: str | Path) -> tuple[list[Policy], list[Hold]]:
    """Raises PoliciesInvalid."""
    return parse_policies(read_text(path, PoliciesInvalid))


def parse_policies(text: str) -> tuple[list[Policy], list[Hold]]:
    """Raises PoliciesInvalid."""
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
