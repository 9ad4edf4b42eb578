"""Roots and proofs of a Merkle tree."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.pipeline.merkle import Merkle, is_under, leaf, node, proof_of, root_of


def test_the_root_of_few_leaves_is_what_the_definition_says() -> None:
    a, b, c = (leaf(x) for x in (b"a", b"b", b"c"))
    assert root_of([b"a"]) == a
    assert root_of([b"a", b"b", b"c"]) == node(node(a, b), c)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=4), min_size=1, max_size=40), st.data())
def test_every_leaf_is_proven_under_the_root_and_no_other_is(
    items: list[bytes], data: st.DataObject
) -> None:
    index = data.draw(st.integers(0, len(items) - 1))
    root, proof = root_of(items), proof_of(items, index)
    asked: dict[str, Any] = {"index": index, "count": len(items), "proof": proof}
    assert is_under(root, items[index], **asked)
    assert not is_under(root, items[index] + b"!", **asked)
    assert not is_under(root, items[index], **asked | {"proof": [*proof, b""]})


def test_the_root_of_a_beginning_does_not_depend_on_what_follows() -> None:
    tree = Merkle()
    for number in range(20):
        tree.add(b"%d" % number)
        assert tree.root() == root_of([b"%d" % n for n in range(number + 1)])
