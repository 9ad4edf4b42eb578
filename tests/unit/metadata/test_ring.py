"""The ring as a property: who owns what, and what moves when a member comes or goes."""

import random
from bisect import bisect_right

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.metadata.serving.mirror import Ring, place_of

pytestmark = pytest.mark.slow
KEYS = [f"/topics/{n % 7:012d}/us-east-1/queue-{n}" for n in range(20_000)]
SOME = KEYS[:2_000]

ids = st.text("abcdefghijklmnopqrstuvwxyz0123456789-.#", min_size=1, max_size=12)
groups = st.lists(ids, min_size=2, max_size=12, unique=True)


def owners_of(ring: Ring, key: str, count: int) -> list[str]:
    """The owner and the members after it, each once, at most ``count``."""
    at = bisect_right(ring._places, place_of(key))
    after = ring._owners[at:] + ring._owners[:at]
    return list(dict.fromkeys(after))[:count]


def ring_of(*node_ids: str) -> Ring:
    return Ring(node_ids)


def shares(ring: Ring, keys: list[str]) -> dict[str, float]:
    counts = dict.fromkeys(ring.members, 0)
    for key in keys:
        counts[ring.owner_at(place_of(key))] += 1
    return {node_id: count / len(keys) for node_id, count in counts.items()}


@settings(max_examples=40, deadline=None)
@given(groups, st.randoms(use_true_random=False))
def test_the_order_in_which_members_are_learned_is_of_no_account(
    members: list[str], chance: random.Random
) -> None:
    one = ring_of(*members)
    shuffled = list(members)
    chance.shuffle(shuffled)
    other = ring_of(*shuffled)
    assert one.fingerprint == other.fingerprint
    for key in SOME[:500]:
        assert one.owner_at(place_of(key)) == other.owner_at(place_of(key))
        assert owners_of(one, key, 3) == owners_of(other, key, 3)


@settings(max_examples=40, deadline=None)
@given(groups)
def test_a_member_that_comes_takes_its_part_and_nothing_else_moves(members: list[str]) -> None:
    *before, new = members
    old_ring, new_ring = ring_of(*before), ring_of(*members)
    assert old_ring.fingerprint != new_ring.fingerprint
    moved = 0
    for key in SOME:
        was, now = old_ring.owner_at(place_of(key)), new_ring.owner_at(place_of(key))
        if was != now:
            assert now == new
            moved += 1
    # A share of 1/n within a fifth, and what a sample of this size is off by.
    part = len(SOME) / len(members)
    assert abs(moved - part) <= 0.2 * part + 4 * part**0.5


@settings(max_examples=40, deadline=None)
@given(groups, st.data())
def test_a_member_that_goes_leaves_only_its_own_keys_to_others(
    members: list[str], data: st.DataObject
) -> None:
    gone = data.draw(st.sampled_from(members))
    old_ring = ring_of(*members)
    new_ring = ring_of(*(one for one in members if one != gone))
    for key in SOME:
        was, now = old_ring.owner_at(place_of(key)), new_ring.owner_at(place_of(key))
        assert now != gone
        if was != gone:
            assert now == was
        else:
            assert now == owners_of(old_ring, key, 2)[1]  # the one that was next


@settings(max_examples=25, deadline=None)
@given(groups)
def test_shares_are_even_within_a_fifth(members: list[str]) -> None:
    ring = ring_of(*members)
    even = 1 / len(members)
    # The circle itself, without the chance of a sample: how much of it each member has.
    step = 2**64 // 20_000
    held = dict.fromkeys(members, 0)
    for n in range(20_000):
        held[ring.owner_at(n * step)] += 1
    for count in held.values():
        assert abs(count / 20_000 - even) <= 0.2 * even


def test_real_keys_are_spread_as_the_circle_is() -> None:
    for share in shares(ring_of("a", "b", "c", "d", "e"), KEYS).values():
        assert abs(share - 0.2) <= 0.04


@settings(max_examples=40, deadline=None)
@given(groups, st.integers(1, 15))
def test_owners_are_distinct_and_begin_with_the_owner(members: list[str], count: int) -> None:
    ring = ring_of(*members)
    for key in SOME[:100]:
        owners = owners_of(ring, key, count)
        assert owners[0] == ring.owner_at(place_of(key))
        assert len(owners) == len(set(owners)) == min(count, len(members))


def test_places_are_the_same_on_every_node_and_in_every_version() -> None:
    assert place_of("/topics/000000000000/us-east-1/q") == 4_667_791_713_337_680_777
    ring = ring_of("n1", "n2", "n3")
    found = [ring.owner_at(place_of(key)) for key in KEYS[:8]]
    assert found == ["n3", "n1", "n2", "n2", "n3", "n1", "n3", "n1"]
    assert ring.fingerprint == "b177a3dbd040ee7c"
