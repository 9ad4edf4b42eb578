import hypothesis.strategies as st
from hypothesis import given, settings

from penstock.cursor.groups.assignors import (
    ASSIGNORS,
    MemberSpec,
    Partitions,
    assign_range,
    assign_uniform,
)

TOPICS = ["a", "b", "c"]


@st.composite
def groups(draw: st.DrawFn) -> tuple[list[MemberSpec], dict[str, int]]:
    # In an order that does not depend on how strings are hashed: examples are to be the same.
    topics = {t: draw(st.integers(0, 7)) for t in sorted(draw(st.sets(st.sampled_from(TOPICS))))}
    members = []
    for index in range(draw(st.integers(0, 5))):
        subscribed = frozenset(draw(st.sets(st.sampled_from(TOPICS))))
        current = draw(st.sets(st.tuples(st.sampled_from(TOPICS), st.integers(0, 7))))
        members.append(MemberSpec(f"m{index}", subscribed, frozenset(current)))
    return members, topics


@given(groups(), st.sampled_from(sorted(ASSIGNORS)))
@settings(max_examples=150)
def test_every_subscribed_partition_has_exactly_one_member_that_wants_it(
    group: tuple[list[MemberSpec], dict[str, int]], name: str
) -> None:
    members, topics = group
    shares = ASSIGNORS[name](members, topics)
    assert shares.keys() == {m.member_id for m in members}
    given_out = [tp for share in shares.values() for tp in share]
    assert len(given_out) == len(set(given_out))
    wanted = {t for m in members for t in m.topic_ids}
    assert set(given_out) == {(t, p) for t, n in topics.items() if t in wanted for p in range(n)}
    for member in members:
        assert {t for t, _ in shares[member.member_id]} <= member.topic_ids


@given(groups(), st.sampled_from(sorted(ASSIGNORS)), st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_the_order_of_members_and_topics_says_nothing(
    group: tuple[list[MemberSpec], dict[str, int]], name: str, random: object
) -> None:
    members, topics = group
    shuffled, names = list(members), list(topics)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    random.shuffle(names)  # type: ignore[attr-defined]
    assign = ASSIGNORS[name]
    assert assign(shuffled, {n: topics[n] for n in names}) == assign(members, topics)


def same(count: int, shares: dict[str, Partitions] | None = None) -> list[MemberSpec]:
    shares = shares or {}
    return [
        MemberSpec(f"m{i}", frozenset("a"), shares.get(f"m{i}", frozenset())) for i in range(count)
    ]


@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 60))
@settings(max_examples=100)
def test_uniform_is_even_and_moves_no_more_than_it_must(
    before: int, after: int, count: int
) -> None:
    first = assign_uniform(same(before), {"a": count})
    second = assign_uniform(same(after, first), {"a": count})
    sizes = [len(share) for share in second.values()]
    assert max(sizes) - min(sizes) <= 1
    for member_id in first.keys() & second.keys():
        if after >= before:
            assert second[member_id] <= first[member_id]  # only newcomers get anything
        else:
            assert second[member_id] >= first[member_id]  # who stays keeps everything


def test_uniform_settles() -> None:
    members = [
        MemberSpec("m0", frozenset("ab")),
        MemberSpec("m1", frozenset("a")),
        MemberSpec("m2", frozenset("b")),
    ]
    topics = {"a": 6, "b": 6}
    shares = assign_uniform(members, topics)
    assert sorted(len(share) for share in shares.values()) == [4, 4, 4]
    again = [MemberSpec(m.member_id, m.topic_ids, shares[m.member_id]) for m in members]
    assert assign_uniform(again, topics) == shares


def test_uniform_levels_members_with_different_topics() -> None:
    members = [
        MemberSpec("m0", frozenset("ab"), frozenset(("a", p) for p in range(6))),
        MemberSpec("m1", frozenset("ab")),
        MemberSpec("m2", frozenset("b")),
    ]
    # m0 gives to m1, which reads the same topic; nothing m0 has could go to m2.
    shares = assign_uniform(members, {"a": 6, "b": 3})
    assert {m: len(share) for m, share in shares.items()} == {"m0": 4, "m1": 3, "m2": 2}
    assert shares["m0"] < members[0].current


def test_range_gives_contiguous_stretches_alike_over_topics() -> None:
    members = [MemberSpec(f"m{i}", frozenset("ab")) for i in range(2)]
    shares = assign_range(members, {"a": 5, "b": 5})
    assert shares["m0"] == {(t, p) for t in "ab" for p in (0, 1, 2)}
    assert shares["m1"] == {(t, p) for t in "ab" for p in (3, 4)}


def test_range_keeps_the_stretch_of_a_static_member_that_came_back() -> None:
    members = [
        MemberSpec("x", frozenset("a"), instance_id="i0"),
        MemberSpec("y", frozenset("a"), instance_id="i1"),
    ]
    before = assign_range(members, {"a": 4})
    members[0] = MemberSpec("zz", frozenset("a"), instance_id="i0")
    assert assign_range(members, {"a": 4})["zz"] == before["x"]
