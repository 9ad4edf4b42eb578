"""Lookups of endpoints: judged, kept, shared, and bounded in number and time."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from penstock.net.http.client_messages import FailureReason, RequestFailed
from penstock.push import resolver as module
from penstock.push.address_guard import AddressGuard, parse_rules
from penstock.push.resolver import Resolver, system_lookup
from penstock.wire.webhooks.endpoint_url import EndpointUrl, parse_endpoint_url

GUARD = AddressGuard()
URL = parse_endpoint_url("http://a.example/")


class Names:
    """A lookup function with given replies, a clock, and a door before which lookups wait."""

    def __init__(self) -> None:
        self.addresses: dict[str, Sequence[str]] = {"a.example": ["1.1.1.1"]}
        self.asked: list[str] = []
        self.now = 1_000.0
        self.door = threading.Event()
        self.door.set()

    def look_up(self, host: str) -> Sequence[str]:
        self.asked.append(host)
        self.door.wait()
        found = self.addresses.get(host)
        if found is None:
            raise OSError(-2, "Name or service not known")
        return found

    def resolver(self, guard: AddressGuard = GUARD) -> Resolver:
        return Resolver(guard, lookup=self.look_up, now=lambda: self.now)


@pytest.fixture
def names() -> Iterator[Names]:
    made = Names()
    yield made
    made.door.set()


async def find(
    resolver: Resolver, url: EndpointUrl = URL, *, tenant: str = "t", timeout_s: float = 60
) -> tuple[str, ...]:
    return await resolver.find(url, tenant=tenant, timeout_s=timeout_s)


async def reason(resolver: Resolver, url: EndpointUrl = URL, **rest: Any) -> FailureReason:
    with pytest.raises(RequestFailed) as caught:
        await find(resolver, url, **rest)
    assert not caught.value.is_sent
    return caught.value.reason


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


async def test_addresses_are_kept_for_thirty_seconds(names: Names) -> None:
    resolver = names.resolver()
    names.addresses["a.example"] = ["1.1.1.1", "::ffff:1.1.1.1", "2606:4700:0::1"]
    assert await find(resolver) == ("1.1.1.1", "2606:4700::1")
    names.addresses["a.example"] = ["8.8.8.8"]
    names.now += 29.9
    assert await find(resolver) == ("1.1.1.1", "2606:4700::1")
    names.now += 0.2
    assert await find(resolver) == ("8.8.8.8",)
    assert names.asked == ["a.example"] * 2
    resolver.close()


async def test_a_failure_is_kept_for_five_seconds(names: Names) -> None:
    resolver = names.resolver()
    names.addresses.clear()
    assert await reason(resolver) is FailureReason.DNS
    names.addresses["a.example"] = ["1.1.1.1"]
    names.now += 4.9
    assert await reason(resolver) is FailureReason.DNS
    names.now += 0.2
    assert await find(resolver) == ("1.1.1.1",)
    resolver.close()


@pytest.mark.parametrize(
    "error", [UnicodeError("label too long"), ValueError("embedded null"), OSError()]
)
async def test_every_error_of_a_lookup_is_a_failure(names: Names, error: Exception) -> None:
    def broken(_host: str) -> Sequence[str]:
        raise error

    resolver = Resolver(GUARD, lookup=broken)
    for host in ("a.example", "b.example"):  # the thread goes on
        url = parse_endpoint_url(f"http://{host}/")
        assert await reason(resolver, url) is FailureReason.DNS
    resolver.close()


async def test_a_name_that_moves_to_a_refused_address_is_refused_at_the_next_lookup(
    names: Names,
) -> None:
    resolver = names.resolver()
    assert await find(resolver) == ("1.1.1.1",)
    names.addresses["a.example"] = ["1.1.1.1", "169.254.169.254"]
    assert await find(resolver) == ("1.1.1.1",), "what was judged is what is used"
    names.now += 31
    assert await reason(resolver) is FailureReason.REFUSED_ADDRESS
    resolver.close()


async def test_all_addresses_are_judged_also_those_that_are_not_kept(names: Names) -> None:
    resolver = names.resolver()
    names.addresses["a.example"] = [f"1.1.1.{number}" for number in range(200)]
    assert len(await find(resolver)) == module.ADDRESSES_KEPT_MAX
    names.now += 31
    names.addresses["a.example"] = [*names.addresses["a.example"], "::1"]
    assert await reason(resolver) is FailureReason.REFUSED_ADDRESS
    names.now += 6
    names.addresses["a.example"] = ["1.1.1.1"] * (module.ADDRESSES_MAX + 1)
    assert await reason(resolver) is FailureReason.DNS
    resolver.close()


@pytest.mark.parametrize(
    "addresses", [[], ["fe80::1%eth0"], ["::1"], ["0.0.0.0"], ["::ffff:127.0.0.1"], ["what"]]
)
async def test_replies_that_name_nothing_public(names: Names, addresses: list[str]) -> None:
    resolver = names.resolver()
    names.addresses["a.example"] = addresses
    assert await reason(resolver) is FailureReason.REFUSED_ADDRESS
    resolver.close()


async def test_an_address_is_judged_without_a_lookup(names: Names) -> None:
    resolver = names.resolver()
    assert await find(resolver, parse_endpoint_url("http://1.1.1.1/")) == ("1.1.1.1",)
    url = parse_endpoint_url("http://[::ffff:8.8.8.8]/")
    assert await find(resolver, url) == ("8.8.8.8",)
    url = parse_endpoint_url("http://127.0.0.1/")
    assert await reason(resolver, url) is FailureReason.REFUSED_ADDRESS
    assert not names.asked


async def test_a_denied_name_is_not_looked_up(names: Names) -> None:
    resolver = names.resolver(AddressGuard(deny=parse_rules(["example"])))
    assert await reason(resolver) is FailureReason.REFUSED_ADDRESS
    url = parse_endpoint_url("http://b.test:25/")
    assert await reason(resolver, url) is FailureReason.REFUSED_ADDRESS
    assert not names.asked


async def test_a_new_guard_judges_what_is_kept(names: Names) -> None:
    resolver = names.resolver()
    await find(resolver)
    resolver.guard = AddressGuard(own=[("1.1.1.1", 80)])
    assert await reason(resolver) is FailureReason.REFUSED_ADDRESS
    resolver.guard = GUARD
    assert await find(resolver) == ("1.1.1.1",)
    resolver.close()


async def test_a_guard_that_changes_during_a_lookup_counts(names: Names) -> None:
    resolver = names.resolver()
    names.door.clear()
    call = asyncio.create_task(find(resolver))
    await until(lambda: bool(names.asked))
    resolver.guard = AddressGuard(deny=parse_rules(["1.1.1.1"]))
    names.door.set()
    with pytest.raises(RequestFailed):
        await call
    resolver.close()


async def test_requests_at_the_same_time_share_a_lookup(names: Names) -> None:
    resolver = names.resolver()
    names.door.clear()
    calls = [asyncio.create_task(find(resolver, tenant=str(n))) for n in range(100)]
    await until(lambda: bool(names.asked))
    calls[0].cancel()
    names.door.set()
    assert await asyncio.gather(*calls[1:]) == [("1.1.1.1",)] * 99
    assert names.asked == ["a.example"]
    resolver.close()


async def test_lookups_are_bounded_in_all_and_per_tenant(
    names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOKUP_SECONDS_MAX", 60.0)
    resolver = names.resolver()
    names.door.clear()
    urls = [parse_endpoint_url(f"http://n{number}.example/") for number in range(30)]
    names.addresses.update({url.host: ["1.1.1.1"] for url in urls})
    # One tenant gets half of the threads and half of the places to wait.
    calls = [asyncio.create_task(find(resolver, url, tenant="flood")) for url in urls[:12]]
    await until(lambda: len(names.asked) == 4)
    assert await reason(resolver, urls[-1], tenant="flood") is FailureReason.TIMEOUT
    # The others get the rest at once, though they came later.
    others = [asyncio.create_task(find(resolver, url, tenant=url.host)) for url in urls[12:24]]
    await until(lambda: len(names.asked) == 8)
    assert set(names.asked) == {url.host for url in (*urls[:4], *urls[12:16])}
    assert await reason(resolver, urls[-1], tenant="another") is FailureReason.TIMEOUT
    assert len(names.asked) == module.THREADS_MAX == resolver._thread_count
    names.door.set()
    assert set(await asyncio.gather(*calls, *others)) == {("1.1.1.1",)}
    # Neither bound is kept as a failure of the name, and all slots are free again.
    assert await find(resolver, urls[-1], tenant="flood") == ("1.1.1.1",)
    assert not resolver._busy
    assert not resolver._waiting
    resolver.close()


async def test_a_lookup_that_hangs_fails_and_is_not_started_twice(
    names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOKUP_SECONDS_MAX", 0.02)
    resolver = names.resolver()
    names.door.clear()
    assert await reason(resolver) is FailureReason.DNS
    await until(lambda: bool(names.asked))
    names.now += 6
    assert await reason(resolver) is FailureReason.DNS
    names.now += 6
    names.door.set()
    await until(lambda: not resolver._running)
    assert names.asked == ["a.example"]
    monkeypatch.undo()  # on a busy machine a lookup takes longer than that
    assert await find(resolver) == ("1.1.1.1",)
    resolver.close()


async def test_a_request_with_little_time_does_not_fail_the_name_for_others(names: Names) -> None:
    resolver = names.resolver()
    names.door.clear()
    assert await reason(resolver, timeout_s=0.01) is FailureReason.TIMEOUT
    names.door.set()
    assert await find(resolver) == ("1.1.1.1",)
    resolver.close()


async def test_kept_names_are_bounded(names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ENTRIES_MAX", 10)
    resolver = names.resolver()
    for number in range(30):
        await find(resolver, parse_endpoint_url(f"http://1.1.1.{number}/"))
    assert len(resolver._entries) == 10
    assert ("1.1.1.29", 80) in resolver._entries


async def test_closing_ends_the_threads(names: Names) -> None:
    before = threading.enumerate()
    resolver = names.resolver()
    await find(resolver)
    threads = [each for each in threading.enumerate() if each not in before]
    assert len(threads) == 1
    resolver.close()
    for thread in threads:
        await asyncio.to_thread(thread.join, 60)
        assert not thread.is_alive()


def test_the_system_knows_localhost() -> None:
    assert set(system_lookup("localhost")) <= {"127.0.0.1", "::1"}
