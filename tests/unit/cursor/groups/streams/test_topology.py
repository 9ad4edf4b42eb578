"""Topologies: how many partitions internal topics get, and what is said of topics that differ."""

from collections.abc import Mapping

import hypothesis.strategies as st
import pytest
from hypothesis import given as cases
from hypothesis import settings
from tests.unit.cursor.groups.streams.streams_topologies import COUNTING, internal, part, topology

from penstock.cursor.groups.records import Subtopology, TopologyValue
from penstock.cursor.groups.streams.streams_requests import (
    InvalidTopology,
    StatusCode,
    check,
    configure,
    read_by,
    readers_of,
    topic_names,
)
from penstock.model.limits import STREAMS_TASKS_MAX

JOIN = topology(
    part("0", "a", sinks=("r",)),
    part("1", "b", repartitions={"r": 0}, changelogs=("c",), copartitions=(("b", "r"),)),
)


def test_a_repartition_topic_is_as_wide_as_what_its_writer_reads() -> None:
    found = configure(COUNTING, {"lines": 4})
    assert found.counts == {"by-word": 4, "counts": 4}
    assert found.tasks == {"0": 4, "1": 4}
    assert [(topic.name, topic.partition_count) for topic in found.missing] == [
        ("by-word", 4),
        ("counts", 4),
    ]
    assert found.missing[0].configs == internal("x").configs
    assert found.status is not None
    assert found.status.code is StatusCode.MISSING_INTERNAL_TOPICS
    assert found.status.detail == "Internal topics are missing: by-word, counts"


def test_a_topology_with_all_topics_is_ready() -> None:
    found = configure(COUNTING, {"lines": 4, "by-word": 4, "counts": 4, "other": 9})
    assert (found.is_ready, found.missing, found.tasks) == (True, (), {"0": 4, "1": 4})


def test_a_given_number_of_partitions_is_kept() -> None:
    given = topology(
        part("0", "a", sinks=("r",)), part("1", repartitions={"r": 7}, changelogs=("c",))
    )
    assert configure(given, {"a": 2}).counts == {"r": 7, "c": 7}


def test_counts_follow_through_a_chain_of_subtopologies() -> None:
    chain = topology(
        part("0", repartitions={"r2": 0}, changelogs=("c",)),
        part("1", repartitions={"r1": 0}, sinks=("r2",)),
        part("2", "a", sinks=("r1",)),
    )
    check(chain)
    assert configure(chain, {"a": 5}).counts == {"r1": 5, "r2": 5, "c": 5}


def test_a_subtopology_takes_what_is_known_by_its_turn() -> None:
    """As in Kafka: the order of the subtopologies decides."""
    first = topology(
        part("0", "b", repartitions={"r": 0}, sinks=("s",)),
        part("1", "a", sinks=("r",)),
        part("2", repartitions={"s": 0}),
    )
    assert configure(first, {"a": 8, "b": 2}).counts == {"r": 8, "s": 2}
    last = topology(
        part("0", "a", sinks=("r",)),
        part("1", "b", repartitions={"r": 0}, sinks=("s",)),
        part("2", repartitions={"s": 0}),
    )
    assert configure(last, {"a": 8, "b": 2}).counts == {"r": 8, "s": 8}


@st.composite
def topologies(draw: st.DrawFn) -> TopologyValue:
    count = draw(st.integers(1, 6))
    parts = []
    for number in range(count):
        read = draw(st.sets(st.sampled_from([f"r{n}" for n in range(count)]), max_size=2))
        sources = draw(st.sets(st.sampled_from("abc"), max_size=2))
        parts.append(
            part(
                f"{number}",
                *sorted(sources),
                repartitions={name: draw(st.sampled_from([0, 0, 0, 5])) for name in sorted(read)},
                sinks=(f"r{number}",),
            )
        )
    return topology(*parts)


def in_rounds(given: TopologyValue, sources: Mapping[str, int]) -> dict[str, int] | None:
    """The same by going through all subtopologies until nothing changes; None: that fails."""
    parts = given.subtopologies
    counts = {
        topic.name: topic.partition_count
        for each in parts
        for topic in each.repartition_sources
        if topic.partition_count
    }
    is_new = True
    while is_new:
        is_new = False
        for each in parts:
            read = [*each.sources, *(topic.name for topic in each.repartition_sources)]
            known = [counts.get(name) or sources.get(name) for name in read]
            widths = [count for count in known if count]
            for sink in each.repartition_sinks:
                if widths and sink not in counts:
                    counts[sink] = max(widths)
                    is_new = True
    needed = {sink for each in parts for sink in each.repartition_sinks}
    needed |= {topic.name for each in parts for topic in each.repartition_sources}
    return counts if needed <= counts.keys() else None


@settings(max_examples=300)
@cases(topologies())
def test_counts_are_those_of_a_simple_iteration(given: TopologyValue) -> None:
    sources = {"a": 2, "b": 3, "c": 4}
    expected = in_rounds(given, sources)
    if expected is None or any(not read_by(each) for each in given.subtopologies):
        with pytest.raises(InvalidTopology):
            check(given)
    else:
        check(given)
        assert configure(given, sources).counts == expected


def test_missing_sources_are_named() -> None:
    wide = topology(part("0", "a", "b", "c", "d", "e"))
    found = configure(wide, {"b": 1})
    assert found.status is not None
    assert found.status.code is StatusCode.MISSING_SOURCE_TOPICS
    assert found.status.detail == "Source topics a, c, d and 1 additional topics are missing."
    assert (found.missing, found.tasks) == ((), {})


def test_a_repartition_topic_is_copartitioned_with_the_topic_it_is_joined_with() -> None:
    assert configure(JOIN, {"a": 3, "b": 8}).counts == {"r": 8, "c": 8}


@pytest.mark.parametrize(
    ("given", "existing", "detail"),
    [
        (
            topology(part("0", "a", "b", copartitions=(("a", "b"),))),
            {"a": 2, "b": 3},
            "Following topics do not have the same number of partitions: [{a=2, b=3}]",
        ),
        (
            topology(
                part("0", "a", sinks=("r",)),
                part("1", "b", repartitions={"r": 2}, copartitions=(("b", "r"),)),
            ),
            {"a": 1, "b": 3},
            (
                "Number of partitions [2] of repartition topic [r] doesn't match number of"
                " partitions [3] of the source topic."
            ),
        ),
        (
            topology(
                part("0", "a", sinks=("r", "s")),
                part("1", repartitions={"r": 2, "s": 3}, copartitions=(("r", "s"),)),
            ),
            {"a": 1},
            "Following topics do not have the same number of partitions: [{r=2, s=3}]",
        ),
        (
            COUNTING,
            {"lines": 4, "by-word": 4, "counts": 2},
            "Existing topic counts has different number of partitions: expected 4, found 2",
        ),
    ],
)
def test_topics_that_do_not_fit_are_told(
    given: TopologyValue, existing: dict[str, int], detail: str
) -> None:
    found = configure(given, existing)
    assert found.status is not None
    assert (found.status.code, found.status.detail) == (
        StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
        detail,
    )


def test_flexible_repartition_topics_of_a_group_get_the_number_of_the_fixed_one() -> None:
    given = topology(
        part("0", "a", sinks=("r", "s")),
        part("1", repartitions={"r": 0, "s": 6}, copartitions=(("r", "s"),)),
    )
    assert configure(given, {"a": 1}).counts == {"r": 6, "s": 6}


def test_only_repartition_topics_get_the_largest_number() -> None:
    given = topology(
        part("0", "a", sinks=("r",)),
        part("1", "b", sinks=("s",)),
        part("2", repartitions={"r": 0, "s": 0}, copartitions=(("r", "s"),)),
    )
    assert configure(given, {"a": 2, "b": 5}).counts == {"r": 5, "s": 5}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (topology(part("0")), "No source topics found for subtopology 0"),
        (topology(part("0", "a"), part("1", repartitions={"r": 0})), "never used as a sink"),
        (
            topology(
                part("0", repartitions={"r": 0}, sinks=("s",)),
                part("1", repartitions={"s": 0}, sinks=("r",)),
            ),
            "loops in the topology",
        ),
        (
            topology(Subtopology("0", ("a",), (), (), (internal("c", 3),), ())),
            "must have an undefined partition count, but it is set to 3",
        ),
    ],
)
def test_topologies_that_cannot_work_are_invalid(given: TopologyValue, text: str) -> None:
    with pytest.raises(InvalidTopology, match=text):
        check(given)


def test_the_number_of_tasks_has_a_bound() -> None:
    parts = [part(f"{number}", "a") for number in range(5)]
    count = STREAMS_TASKS_MAX // 5
    assert configure(topology(*parts), {"a": count}).is_ready
    found = configure(topology(*parts), {"a": count + 1})
    assert found.status is not None
    assert "2,005 tasks, but only 2,000 are allowed" in found.status.detail


def test_topics_are_found_by_name() -> None:
    assert topic_names(JOIN) == {"a", "b", "r", "c"}
    assert readers_of(JOIN) == {"a": "0", "b": "1", "r": "1"}
    shared = topology(part("0", "a"), part("1", "a"))
    assert readers_of(shared) == {"a": "0"}
