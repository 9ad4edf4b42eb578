"""What a watch makes of etcd's answers. Streams and members are the matter of the store suites and
of the tests with faults."""

from itertools import chain, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.metadata.etcd.links import EtcdConfig, Failed, open_link
from penstock.metadata.etcd.watch import Event, _Watch
from penstock.metadata.etcd.wire import Stored, WatchAnswer

ANSWER = WatchAnswer(
    revision=0,
    watch_id=0,
    is_created=False,
    is_cancelled=False,
    compacted=0,
    reason="",
    is_fragment=False,
    events=(),
)


def watch(from_revision: int = 1) -> _Watch:
    return _Watch(b"/", b"0", from_revision, 0.0)


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=12),
    cuts=st.sets(st.integers(1, 40)),
    ends=st.sets(st.integers(1, 12)),
    from_revision=st.integers(1, 15),
)
@settings(deadline=None)
def test_revisions_come_whole_and_once_however_they_are_cut(
    sizes: list[int], cuts: set[int], ends: set[int], from_revision: int
) -> None:
    """``sizes``: how many changes each revision has; ``cuts``: before which changes an answer is
    cut in fragments; ``ends``: after which revisions one answer ends and another begins."""
    events: list[Event] = []
    whole: set[int] = set()
    for revision, size in enumerate(sizes, 1):
        events += (
            (True, Stored(b"/%d/%d" % (revision, n), b"", revision, revision)) for n in range(size)
        )
        if revision in ends:
            whole.add(len(events))
    whole.add(len(events))
    following, batches, start = watch(from_revision), list[list[Event]](), 0
    for end in sorted({cut for cut in cuts if cut < len(events)} | whole):
        answer = ANSWER._replace(events=events[start:end], is_fragment=end not in whole)
        batches.append(list(following.take(answer)))
        start = end
    told = list(chain.from_iterable(batches))
    assert told == [one for one in events if one[1].version >= from_revision]
    for before, after in pairwise(batches):
        assert not {one[1].version for one in before} & {one[1].version for one in after}
    assert following.from_revision == max(from_revision, len(sizes) + 1)


def test_only_what_a_watch_itself_is_told_moves_it_on() -> None:
    following = watch(5)
    following.take(ANSWER._replace(revision=50, is_created=True))
    following.take(ANSWER._replace(revision=60, watch_id=-1))
    assert following.from_revision == 5
    following.take(ANSWER._replace(revision=70))
    assert following.from_revision == 71


def test_what_was_kept_back_is_forgotten_with_its_stream() -> None:
    following = watch()
    event: Event = (True, Stored(b"/a", b"", 3, 3))
    assert not following.take(ANSWER._replace(events=[event], is_fragment=True))
    following.begin()
    assert following.take(ANSWER._replace(events=[event])) == [event]


async def test_writing_to_a_stream_that_has_ended_is_a_failure_of_the_member() -> None:
    """The library raises InvalidStateError then, which once ended watches without a word."""
    link = open_link("127.0.0.1:1", EtcdConfig(endpoints=("127.0.0.1:1",)))
    stream = link.watch()
    stream.cancel()
    with pytest.raises(Failed):
        async with link.failing():
            await stream.write(b"")
    await link.channel.close()
