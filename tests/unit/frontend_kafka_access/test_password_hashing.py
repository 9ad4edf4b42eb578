"""PasswordHashing of passwords: one thread per payer, payers in turn, whatever clients do."""

import asyncio
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from penstock.frontend.kafka.login.passwords import PasswordHashing
from penstock.model.limits import DERIVATIONS_MAX

SECONDS_MAX = 30.0


class Gate:
    """Work that a test lets end one by one."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self._open: dict[str, threading.Event] = {}

    def work(self, name: str) -> bytes:
        self.started.append(name)
        assert self._open.setdefault(name, threading.Event()).wait(SECONDS_MAX)
        return name.encode()

    def end(self, *names: str) -> None:
        for name in names:
            self._open.setdefault(name, threading.Event()).set()


class Logins:
    def __init__(self, gate: Gate) -> None:
        self.derivations = PasswordHashing()
        self.gate = gate
        self.tasks: dict[str, asyncio.Task[bytes]] = {}

    async def begin(self, payer: str, *names: str) -> None:
        for name in names:
            run = self.derivations.run(payer, partial(self.gate.work, name))
            self.tasks[name] = asyncio.create_task(run)
        await asyncio.sleep(0)

    async def ended(self, name: str) -> None:
        self.gate.end(name)
        assert await self.tasks[name] == name.encode()
        await self.settled()

    async def settled(self) -> None:
        """Wait until each thread that was started has begun its work."""
        async with asyncio.timeout(SECONDS_MAX):
            while len(self.gate.started) < len(self.tasks) - self.waiting_count():
                await asyncio.sleep(0.001)

    def waiting_count(self) -> int:
        return sum(map(len, self.derivations._waiting.values()))


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.end(*gate.started)


async def test_one_payer_has_one_thread(gate: Gate) -> None:
    logins = Logins(gate)
    await logins.begin("b", "b1", "b2", "b3")
    await logins.begin("a", "a1")
    await logins.settled()
    assert gate.started == ["b1", "a1"]
    await logins.ended("a1")
    for name in ("b1", "b2", "b3"):
        await logins.ended(name)
    assert gate.started == ["b1", "a1", "b2", "b3"]
    assert logins.derivations._waiting == {}
    assert logins.derivations._running == set()


async def test_payers_take_turns(gate: Gate) -> None:
    """On the one thread that the others leave: one login of each payer before b's next."""
    logins = Logins(gate)
    others = [f"p{number}" for number in range(DERIVATIONS_MAX - 1)]
    for name in others:
        await logins.begin(name, name)
    await logins.begin("b", "b1", "b2", "b3")
    await logins.begin("c", "c1", "c2")
    await logins.begin("a", "a1")
    await logins.settled()
    assert sorted(gate.started) == ["b1", *others]
    for name in ("b1", "b2", "c1", "a1", "b3", "c2", *others):
        await logins.ended(name)
    assert gate.started[DERIVATIONS_MAX:] == ["b2", "c1", "a1", "b3", "c2"]


async def test_a_client_that_hangs_up_keeps_its_turn_until_the_thread_ends(gate: Gate) -> None:
    """Otherwise connecting and hanging up would start any number of threads."""
    logins = Logins(gate)
    await logins.begin("b", "b1", "b2", "b3")
    await logins.settled()
    for name in ("b1", "b3"):
        logins.tasks[name].cancel()
        with pytest.raises(asyncio.CancelledError):
            await logins.tasks[name]
    assert logins.waiting_count() == 1, "b3 does not wait any more"
    assert gate.started == ["b1"]
    gate.end("b1", "b2")
    assert await logins.tasks["b2"] == b"b2"
    assert gate.started == ["b1", "b2"]
    assert logins.derivations._running == set()


async def test_work_that_fails_ends_the_turn(gate: Gate) -> None:
    logins = Logins(gate)

    def fail() -> bytes:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await logins.derivations.run("b", fail)
    await logins.begin("b", "b1")
    await logins.ended("b1")
