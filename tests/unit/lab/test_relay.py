"""A bad link loses, delays, reorders and doubles what it is asked to, and nothing else."""

from __future__ import annotations

from random import Random

from tests.lab.relay import HELD_MAX, Badness, Relay


def packet(number: int) -> bytes:
    return bytes([0x45]) + bytes(15) + bytes([10, 0, 0, 1]) + number.to_bytes(4, "big")


def sent(badness: Badness, count: int = 2_000) -> tuple[Relay, list[int]]:
    relay = Relay(badness, Random("seed"))
    out = []
    for number in range(count):
        relay.take(packet(number), number / 1_000)
        out += relay.due(number / 1_000)
    out += relay.due(count)
    assert all(destination == 0x0A000001 for destination, _ in out)
    return relay, [int.from_bytes(data[20:], "big") for _, data in out]


def test_a_good_link_passes_everything_in_order() -> None:
    _, numbers = sent(Badness())
    assert numbers == list(range(2_000))


def test_the_share_that_is_lost_is_the_share_that_was_asked_for() -> None:
    relay, numbers = sent(Badness(loss=0.1))
    assert len(numbers) == 2_000 - relay.done.lost
    assert 140 < relay.done.lost < 260
    assert numbers == sorted(numbers)


def test_jitter_lets_packets_overtake_each_other_and_loses_none() -> None:
    relay, numbers = sent(Badness(delay_ms=50, jitter_ms=50))
    assert sorted(numbers) == list(range(2_000))
    assert relay.done.overtaken > 100
    assert relay.done.held == 2_000


def test_doubled_packets_come_twice() -> None:
    relay, numbers = sent(Badness(twice=0.05))
    assert len(numbers) == 2_000 + relay.done.twice
    assert 50 < relay.done.twice < 160


def test_what_is_kept_back_is_bounded() -> None:
    relay = Relay(Badness(delay_ms=1_000), Random("seed"))
    for number in range(HELD_MAX + 10):
        relay.take(packet(number), 0.0)
    assert relay.done.lost == 10
    assert relay.wait_seconds(0.5) == 0.5


def test_what_is_no_packet_of_ours_is_not_passed_on() -> None:
    relay = Relay(Badness(), Random("seed"))
    relay.take(bytes([0x60]) + bytes(50), 0.0)
    assert relay.due(1.0) == []
