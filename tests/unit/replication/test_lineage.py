"""Two logs that may have parted anywhere, and of either of which the beginning may have been
dropped: asking and being answered ends with the one contained in the other, whatever it takes, and
costs nothing that is committed (R15, R17)."""

from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.replication.epochs import EpochHistory
from penstock.replication.leader import Leader
from penstock.replication.replica import Halt, Replica, Restart, Step, Truncate
from penstock.replication.row import PartitionRow, View

ROUNDS_MAX = 12
EPOCH = 40
ROW = PartitionRow((1, 2), frozenset((1,)), leader=1, leader_incarnation=5, epoch=EPOCH)
VIEW = View(9, 9, ROW)


class Parted(NamedTuple):
    """Records by the epoch they were written in; the same epochs are the same records, up to
    where the two logs part."""

    ours: list[int]
    theirs: list[int]
    ours_from: int
    theirs_from: int
    committed: int  # as far as the follower knows


@st.composite
def parted(draw: st.DrawFn) -> Parted:
    common = sorted(draw(st.lists(st.integers(1, 8), max_size=8)))
    last = common[-1] if common else 1
    # An epoch has one leader: behind the fork each epoch is on one side only.
    sides = draw(st.lists(st.tuples(st.integers(last, 12), st.booleans()), max_size=8))
    owner = dict(sides)
    ours = common + sorted(epoch for epoch, _ in sides if owner[epoch])
    theirs = common + sorted(epoch for epoch, _ in sides if not owner[epoch])
    fork = len(common)
    settled = draw(st.integers(0, fork))  # committed: on both sides, and the bound of what may go
    return Parted(
        ours,
        theirs,
        ours_from=draw(st.integers(0, settled)),
        theirs_from=draw(st.integers(0, settled)),
        committed=settled,
    )


def history_of(epochs: list[int], start: int) -> EpochHistory:
    history = EpochHistory()
    for offset in range(start, len(epochs)):
        history.append(epochs[offset], offset)
    return history


@given(parted())
@settings(max_examples=300, deadline=None)
def test_R17_whatever_parted_comes_together_and_nothing_committed_is_cut(logs: Parted) -> None:
    end = len(logs.ours)
    leader = Replica(
        1,
        5,
        history=history_of(logs.ours, logs.ours_from),
        start_offset=logs.ours_from,
        end_offset=end,
        durable_offset=end,
        high_watermark=logs.committed,
    )
    led = Leader(leader, VIEW, now_ms=0)
    follower = Replica(
        2,
        6,
        history=history_of(logs.theirs, logs.theirs_from),
        start_offset=logs.theirs_from,
        end_offset=len(logs.theirs),
        durable_offset=len(logs.theirs),
        high_watermark=max(logs.theirs_from, logs.committed),
    )
    follower.see(VIEW, now_ms=0)
    held = logs.theirs
    for _ in range(ROUNDS_MAX):
        asked = follower.next_fetch()
        assert asked is not None
        answer = led.fetched(asked, now_ms=0)
        if answer is None:
            break
        step: Step[str] | None = follower.apply_reply(answer)
        assert not isinstance(step, Halt), step
        if isinstance(step, Truncate):
            assert step.to >= logs.committed
            follower.truncated(step.to)
        else:
            assert isinstance(step, Restart)
            assert step.at >= logs.committed or logs.ours_from >= step.at
            follower.restarted(step.at)
    else:
        raise AssertionError("they go on for ever")
    assert logs.ours_from <= follower.end_offset <= end
    start = max(follower.start_offset, logs.ours_from)
    assert held[start : follower.end_offset] == logs.ours[start : follower.end_offset]
    if follower.end_offset > follower.start_offset:
        fork = next((n for n, (a, b) in enumerate(zip(logs.ours, held)) if a != b), len(held))  # noqa: B905
        assert follower.end_offset <= fork, "what stands before the leader's beginning counts too"
