"""The measurement of the stall tests itself: a long turn is found, short ones are not added up."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from tests.attacks.stalls import LoopServer, Stalled

TURN_MS = 12.0  # two of them in one turn are too long


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopServer]:
    with LoopServer(tmp_path_factory.mktemp("open")) as running:
        yield running


def work(ms: float) -> None:
    until = time.thread_time() + ms / 1_000
    while time.thread_time() < until:
        pass


def run_turns(server: LoopServer, count: int, ms: float) -> None:
    """Keep the loop busy for some turns, one after the other."""
    ended = threading.Event()

    def turn(left: int) -> None:
        work(ms)
        if left > 1:
            server.loop.call_soon(turn, left - 1)
        else:
            ended.set()

    server.loop.call_soon_threadsafe(turn, count)
    assert ended.wait(30)


def test_a_long_turn_is_found(server: LoopServer) -> None:
    with server.watch() as turns:
        threading.Event().wait(0.02)  # the loop has nothing to do
        run_turns(server, 1, 30.0)
    assert turns.longest_ms >= 30.0
    with pytest.raises(Stalled):
        turns.check()


def test_short_turns_are_not_added_up(server: LoopServer) -> None:
    with server.watch() as turns:
        threading.Event().wait(0.02)
        run_turns(server, 10, TURN_MS)
    turns.check()
    assert turns.longest_ms >= TURN_MS
    assert turns.total_ms >= 10 * TURN_MS
