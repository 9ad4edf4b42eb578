"""How long idle connections of the HTTP client are kept, and how many of them."""

import asyncio

from penstock.net.http import client_pool
from penstock.net.http.client_connection import ClientConnection
from penstock.net.http.client_pool import ConnectionPool


class Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True


def connection() -> ClientConnection:
    made = ClientConnection()
    made.connection_made(Transport())
    return made


def filled(pool: ConnectionPool, key: str, count: int) -> list[ClientConnection]:
    made = [connection() for _ in range(count)]
    for each in made:
        pool.put(each, key)
    return made


async def test_the_connection_used_last_is_taken_first() -> None:
    pool = ConnectionPool()
    made = filled(pool, "a", 3)
    assert [pool.take("a") for _ in range(4)] == [*reversed(made), None]
    assert pool.take("b") is None
    assert len(pool) == 0
    pool.close()


async def test_a_connection_that_was_lost_is_not_taken() -> None:
    pool = ConnectionPool()
    first, second = filled(pool, "a", 2)
    second.connection_lost(None)
    assert pool.take("a") is first
    assert len(pool) == 0
    pool.close()


async def test_idle_connections_expire() -> None:
    pool = ConnectionPool()
    old, new = filled(pool, "a", 2)
    old.idle_since -= client_pool.IDLE_SECONDS_MAX + 1
    new.idle_since -= client_pool.IDLE_SECONDS_MAX - 1
    pool.sweep()
    assert (old.is_open, new.is_open) == (False, True)
    assert len(pool) == 1
    pool.close()
    assert not new.is_open


async def test_spare_connections_of_a_burst_expire_early_and_eight_stay() -> None:
    pool = ConnectionPool()
    made = filled(pool, "a", 20)
    others = filled(pool, "b", 8)
    pool.sweep()
    assert len(pool) == 28
    for each in (*made, *others):
        each.idle_since -= client_pool.BURST_SECONDS + 1
    pool.sweep()
    assert [each.is_open for each in made] == [False] * 12 + [True] * 8
    assert all(each.is_open for each in others)
    pool.close()


async def test_the_oldest_of_all_makes_room() -> None:
    pool = ConnectionPool()
    (oldest,) = filled(pool, "first", 1)
    for number in range(client_pool.IDLE_MAX - 1):
        filled(pool, str(number), 1)
    assert oldest.is_open
    filled(pool, "another", 1)
    assert not oldest.is_open
    assert len(pool) == client_pool.IDLE_MAX
    assert pool.take("first") is None
    pool.close()
    assert len(pool) == 0


async def test_the_pool_sweeps_by_itself_while_it_has_connections() -> None:
    client_pool_seconds = client_pool.SWEEP_SECONDS
    pool = ConnectionPool()
    (made,) = filled(pool, "a", 1)
    made.idle_since -= client_pool.IDLE_SECONDS_MAX + 1
    async with asyncio.timeout(60 * client_pool_seconds):
        while len(pool):
            await asyncio.sleep(0.05)
    assert not made.is_open
