"""Recent batches in memory: within the log's bound, and within the node's."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.log.batch_cache import BatchCache, BatchCacheBudget


def put(tail: BatchCache, offset: int, size: int = 10) -> None:
    tail.append(offset, offset + 1, b"x" * size)


def test_the_log_that_was_appended_to_longest_ago_gives_up_first() -> None:
    budget = BatchCacheBudget(100)
    old, busy = BatchCache(1_000, budget), BatchCache(1_000, budget)
    for offset in range(4):
        put(old, offset)
    for offset in range(9):
        put(busy, offset)
    assert not old.holds(0)
    assert busy.holds(0)
    assert budget.used_bytes == 90
    put(old, 4)
    assert old.holds(4)
    assert not old.holds(3), "what it gave up stays on disk"
    assert old.read(4, bytes_max=100, up_to=5) == [b"x" * 10]


def test_the_only_busy_log_keeps_to_its_own_bound() -> None:
    tail = BatchCache(50, BatchCacheBudget(0))
    for offset in range(10):
        put(tail, offset)
    assert tail.holds(5)
    assert not tail.holds(4)


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["put", "drop", "clear"]), st.integers(0, 3), st.integers(1, 60)),
        max_size=200,
    )
)
def test_the_budget_knows_what_is_held_whatever_happens(
    steps: list[tuple[str, int, int]],
) -> None:
    budget = BatchCacheBudget(200)
    tails = [BatchCache(100, budget) for _ in range(4)]
    ends = [0, 0, 0, 0]
    for step, which, size in steps:
        tail = tails[which]
        if step == "put":
            put(tail, ends[which], size)
            ends[which] += 1
        elif step == "drop":
            tail.drop_before(max(0, ends[which] - size % 5))
        else:
            tail.clear()
        held = [
            sum(
                len(tails[n].read(offset, bytes_max=0, up_to=offset + 1)[0])
                for offset in range(ends[n])
                if tails[n].holds(offset)
            )
            for n in range(4)
        ]
        assert sum(held) == budget.used_bytes
        assert budget.used_bytes <= 200 or max(held) == budget.used_bytes
