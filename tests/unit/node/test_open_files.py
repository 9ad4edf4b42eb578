"""The limit on open files: how many partitions it is good for, and what is said when it is not."""

import resource

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import SetupError
from penstock.node.process.resources import (
    FILES_PER_PARTITION,
    check_room,
    limit_now,
    partitions_max,
    raise_limit,
)


@given(st.integers(256, 2**30))
def test_as_many_as_a_node_takes_can_be_opened_again(limit: int) -> None:
    count = partitions_max(limit)
    assert count * FILES_PER_PARTITION <= limit * 3 // 4
    check_room(count, limit)


def test_what_does_not_fit_is_told_with_the_way_out() -> None:
    check_room(59, 300)
    with pytest.raises(SetupError) as caught:
        check_room(100, 300)
    assert str(caught.value) == (
        "the limit of 300 open files is too low: 100 partitions need 464: raise it with"
        " `ulimit -n 1024` or LimitNOFILE=1024 in the unit file"
    )


def test_the_limit_is_raised_as_far_as_is_allowed() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = before
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
        assert raise_limit() == limit_now() >= min(soft, 512)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
