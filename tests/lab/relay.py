"""A bad link: packets between places go through this process, which loses some, keeps some for a
while, lets later ones overtake them, and sends some twice. The kernels of the machines this runs on
come without the queue discipline that does it (netem), so it is done here, a packet at a time.

Each place gets a TUN device; routes decide what goes through it (``network.Namespaces.relay``). One
process of its own, so that a busy test does not slow packets down and packets do not slow the
test. ``python -m tests.lab.relay '<json>'`` says ``ready`` when the devices are there, and what it
did to how many packets, as JSON, when its input ends."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import heapq
import ipaddress
import json
import os
import selectors
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import IO

import msgspec
from tests.lab.network import NETNS_FOLDER, Namespaces, run

DEVICE = "bad0"
PACKET_BYTES_MAX = 65_536
HELD_MAX = 20_000  # packets kept back at once; more are lost, as in any queue
END_SECONDS_MAX = 10.0
_TUNSETIFF = 0x400454CA
_IFF_TUN_NO_PI = 0x0001 | 0x1000
_CLONE_NEWNET = 0x40000000


class Badness(msgspec.Struct, frozen=True):
    loss: float = 0.0  # share of packets
    delay_ms: float = 0.0
    jitter_ms: float = 0.0  # more or less than the delay, evenly; makes packets overtake others
    twice: float = 0.0  # share of packets


class Asked(msgspec.Struct, frozen=True):
    seed: str
    badness: Badness
    places: dict[str, str]  # namespace → address


@dataclass
class Done:
    passed: int = 0
    lost: int = 0
    held: int = 0
    overtaken: int = 0
    twice: int = 0


class Relay:
    """The pure part: which packet goes where and when."""

    def __init__(self, badness: Badness, chance: Random) -> None:
        self.done = Done()
        self._badness = badness
        self._chance = chance
        self._held: list[tuple[float, int, int, bytes]] = []  # due, number, destination, packet
        self._number = 0
        self._highest = 0  # of those that have gone on

    def take(self, packet: bytes, now: float) -> None:
        if packet[0] >> 4 != 4 or len(packet) < 20:
            return  # not IPv4: nothing of ours
        if self._chance.random() < self._badness.loss or len(self._held) >= HELD_MAX:
            self.done.lost += 1
            return
        self._hold(packet, now)
        if self._chance.random() < self._badness.twice:
            self.done.twice += 1
            self._hold(packet, now)

    def _hold(self, packet: bytes, now: float) -> None:
        spread = self._chance.uniform(-self._badness.jitter_ms, self._badness.jitter_ms)
        due = now + max(0.0, self._badness.delay_ms + spread) / 1_000
        destination = int.from_bytes(packet[16:20], "big")
        self._number += 1
        self.done.held += due > now
        heapq.heappush(self._held, (due, self._number, destination, packet))

    def due(self, now: float) -> list[tuple[int, bytes]]:
        out = []
        while self._held and self._held[0][0] <= now:
            _, number, destination, packet = heapq.heappop(self._held)
            self.done.overtaken += number < self._highest
            self._highest = max(self._highest, number)
            self.done.passed += 1
            out.append((destination, packet))
        return out

    def wait_seconds(self, now: float) -> float | None:
        return max(0.0, self._held[0][0] - now) if self._held else None


class BadLinks:
    """The relay's process as a test sees it."""

    def __init__(
        self, net: Namespaces, pairs: Sequence[tuple[str, str]], badness: Badness, *, seed: str
    ) -> None:
        self._net = net
        names = sorted({name for pair in pairs for name in pair})
        asked = Asked(
            seed, badness, {f"{net.prefix}-{name}": net.at(name).address for name in names}
        )
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.lab.relay", msgspec.json.encode(asked).decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._pipe.readline() == "ready\n", "the relay did not come up"
        for name in names:
            place = net.at(name)
            run(*place.enter, "ip", "link", "set", DEVICE, "mtu", "1500", "up")
        for one, two in pairs:
            net.relay(one, two, DEVICE)

    @property
    def _pipe(self) -> IO[str]:
        assert self._process.stdout is not None
        return self._process.stdout

    def end(self) -> Done:
        """Packets go the straight way again."""
        self._net.end_relays()
        out, _ = self._process.communicate("", timeout=END_SECONDS_MAX)
        return Done(**json.loads(out.splitlines()[-1]))


def _open_device(namespace: str) -> int:
    """A TUN device inside a namespace; this process enters it for that and stays there."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path(NETNS_FOLDER / namespace).open("rb") as handle:
        if libc.setns(handle.fileno(), _CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), namespace)
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH", DEVICE.encode(), _IFF_TUN_NO_PI))
    return device


def main(argument: str) -> None:
    asked = msgspec.json.decode(argument, type=Asked)
    devices = {
        int(ipaddress.IPv4Address(address)): _open_device(namespace)
        for namespace, address in asked.places.items()
    }
    relay = Relay(asked.badness, Random(asked.seed))
    selector = selectors.DefaultSelector()
    for device in devices.values():
        selector.register(device, selectors.EVENT_READ)
    selector.register(sys.stdin, selectors.EVENT_READ)
    print("ready", flush=True)
    while True:
        for ready, _ in selector.select(relay.wait_seconds(time.monotonic())):
            if ready.fileobj is sys.stdin:
                print(json.dumps(asdict(relay.done)), flush=True)
                return
            _read_all(int(ready.fd), relay)
        for destination, packet in relay.due(time.monotonic()):
            device = devices.get(destination, -1)
            if device >= 0:
                with suppress(BlockingIOError, OSError):
                    os.write(device, packet)


def _read_all(device: int, relay: Relay) -> None:
    for _ in range(64):  # then others have their turn
        try:
            packet = os.read(device, PACKET_BYTES_MAX)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EBADFD, errno.EIO):
                return  # nothing more, or the device is not up yet
            raise
        relay.take(packet, time.monotonic())


if __name__ == "__main__":
    main(sys.argv[1])
