"""Where two histories part is found from epochs and offsets alone."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.replication.epochs import NO_EPOCH, EpochHistory

logs = st.lists(st.integers(0, 3), max_size=30).map(
    lambda steps: [sum(steps[: at + 1]) for at in range(len(steps))]
)


def history_of(log: list[int]) -> EpochHistory:
    """A log as the epoch of each of its records."""
    history = EpochHistory()
    for offset, epoch in enumerate(log):
        history.append(epoch, offset)
    return history


@given(logs, st.integers(-1, 40))
def test_the_end_of_an_epoch_is_where_a_later_one_begins(log: list[int], epoch: int) -> None:
    found, end = history_of(log).end_of(epoch, end_offset=len(log))
    upto = [each for each in log if each <= epoch]
    assert found == (upto[-1] if upto else NO_EPOCH)
    assert end == len(upto)


@given(logs, st.integers(0, 30))
def test_a_history_that_is_cut_is_that_of_the_cut_log(log: list[int], to: int) -> None:
    history = history_of(log)
    history.truncate(min(to, len(log)))
    assert list(history) == list(history_of(log[:to]))
    assert history.last == (log[:to][-1] if log[:to] else NO_EPOCH)


@given(logs, st.integers(0, 30), st.integers(-1, 40))
def test_a_trimmed_history_says_the_same_of_what_is_left(
    log: list[int], start: int, epoch: int
) -> None:
    start = min(start, len(log))
    history = history_of(log)
    history.trim(start)
    found, end = history.end_of(epoch, end_offset=len(log))
    left = [each for each in log[start:] if each <= epoch]
    if left:
        assert (found, end) == (left[-1], start + len(left))
    assert len(history) <= len(history_of(log))


@given(st.lists(st.integers(0, 5), max_size=12), st.lists(st.integers(0, 5), max_size=12))
def test_rounds_of_comparing_end_where_the_logs_part(one: list[int], other: list[int]) -> None:
    """As R15 and R17 do it: ask with the last epoch, cut to what both agree on, ask again."""
    leader, follower = sorted(one), sorted(other)
    # Logs that share an epoch at an offset share all before it: that is what elections ensure.
    common = 0
    while common < min(len(leader), len(follower)) and leader[common] == follower[common]:
        common += 1
    follower = follower[:common] + [each for each in follower[common:] if each not in leader]
    theirs = history_of(leader)
    for _ in range(20):
        mine = history_of(follower)
        epoch, end = theirs.end_of(mine.last, end_offset=len(leader))
        if epoch == mine.last and end >= len(follower):
            break
        _, own = mine.end_of(epoch, end_offset=len(follower))
        assert min(end, own) < len(follower), "every round cuts something"
        follower = follower[: min(end, own)]
    assert follower == leader[: len(follower)]
    assert len(follower) >= common or follower == leader[:common][: len(follower)]
