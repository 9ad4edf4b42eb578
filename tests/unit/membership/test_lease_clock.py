"""R20: a node gives its lease up before the store does, and counts from before it asked."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.membership.registration import LeaseClock, LeaseClockConfig, boot_ms
from penstock.metadata.sqlite import LeaseTimes, SqliteStore
from penstock.metadata.store import LeaseGone

QUICK = LeaseClockConfig(ttl_ms=4_000, every_ms=50, retry_ms=10)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(tmp_path / "metadata.db")
    yield store
    await store.close()


class Late(SqliteStore):
    """A real store whose keep-alives take a while to be answered, or are not."""

    delay_seconds = 0.0
    answered: asyncio.Event

    async def keep_alive(self, lease: int) -> int:
        left_ms = await super().keep_alive(lease)
        await asyncio.sleep(self.delay_seconds)
        self.answered.set()
        return left_ms


async def test_r20_the_deadline_is_counted_from_before_the_question(tmp_path: Path) -> None:
    store = await Late.open(tmp_path / "metadata.db")
    assert isinstance(store, Late)
    store.answered = asyncio.Event()
    store.delay_seconds = 0.1
    clock = LeaseClock(store, config=QUICK)
    await clock.start()
    first = clock.deadline_ms
    await store.answered.wait()
    await asyncio.sleep(0)
    assert clock.deadline_ms > first
    assert clock.deadline_ms <= boot_ms() - 100 + QUICK.ttl_ms * 80 // 100
    await clock.stop()
    await store.close()


@pytest.mark.slow
async def test_r20_a_lease_that_is_kept_is_held_and_one_given_back_is_not(
    store: SqliteStore,
) -> None:
    clock = LeaseClock(store, config=QUICK)
    assert not clock.is_good
    lease = await clock.start()
    await store.txn(puts=(("/nodes/1", b""),), lease=lease)
    for _ in range(15):
        await asyncio.sleep(QUICK.ttl_ms / 10_000)
        assert clock.is_good
    assert await store.get("/nodes/1") is not None
    await clock.stop()
    assert not clock.is_good
    assert await store.get("/nodes/1") is None
    with pytest.raises(LeaseGone):
        await store.keep_alive(lease)


async def test_r20_time_alone_ends_it_whatever_the_task_has_noticed(store: SqliteStore) -> None:
    now_ms = 1_000_000
    clock = LeaseClock(store, config=LeaseClockConfig(ttl_ms=6_000), clock_ms=lambda: now_ms)
    await clock.start()
    assert clock.deadline_ms == 1_000_000 + 4_800
    now_ms += 4_799
    assert clock.is_good
    now_ms += 1  # the machine slept, say: nothing here has run
    assert not clock.is_good
    await clock.stop()


async def test_who_holds_it_hears_that_the_store_has_ended_it(store: SqliteStore) -> None:
    gone = asyncio.Event()
    clock = LeaseClock(store, config=QUICK, on_gone=gone.set)
    lease = await clock.start()
    await store.revoke(lease)
    async with asyncio.timeout(10):
        await gone.wait()
    assert not clock.is_good
    again = await clock.start()
    assert again not in (0, lease)
    assert clock.is_good
    await clock.stop()


async def test_what_a_watch_has_seen_ends_it_at_once(store: SqliteStore) -> None:
    gone: list[bool] = []
    clock = LeaseClock(store, config=QUICK, on_gone=lambda: gone.append(clock.is_good))
    await clock.start()
    clock.ended()
    clock.ended()
    assert gone == [False]
    assert not clock.is_good
    await clock.start()
    assert clock.is_good
    await clock.stop()
    clock.ended()
    assert gone == [False]


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["begin", "renew", "wait", "forget"]),
            st.integers(1, 4),
            st.integers(0, 50),
        ),
        max_size=60,
    )
)
@settings(deadline=None)
def test_lease_times_are_those_of_a_table_of_deadlines(
    steps: list[tuple[str, int, int]],
) -> None:
    times, model, now_ms = LeaseTimes(), dict[int, tuple[int, int]](), 0
    for step, lease, number in steps:
        if step == "begin" and lease not in model:
            times.begin(lease, ttl_ms=number + 1, now_ms=now_ms)
            model[lease] = (number + 1, now_ms + number + 1)
        elif step == "wait":
            now_ms += number
        elif step == "forget":
            times.pop(lease, None)
            model.pop(lease, None)
        elif step == "renew":
            ttl_ms, ends_at_ms = model.get(lease, (0, 0))
            if ends_at_ms <= now_ms:
                with pytest.raises(LeaseGone):
                    times.renew(lease, now_ms=now_ms)
            else:
                assert times.renew(lease, now_ms=now_ms) == ttl_ms
                model[lease] = (ttl_ms, now_ms + ttl_ms)
        ended = times.ended(now_ms=now_ms)
        assert set(ended) == {one for one, (_, at_ms) in model.items() if at_ms <= now_ms}
        assert [model[one][1] for one in ended] == sorted(model[one][1] for one in ended)
        assert times.next_end_ms() == min((at for _, at in model.values()), default=None)
        assert len(times) == len(model)
