"""Where the lab's processes stand: every node, every etcd member and the clients in a network
namespace of their own, joined by one bridge. Between any two of them the way can be taken out, in
one direction or both, without either end being told: packets leave for a hardware address that
nobody has. That is what a cable does; a route or a filter that answers would be another fault.

All names begin with a prefix that holds the number of this process. Whoever comes later finds what
a process that died left behind, and removes it: what is running in such a namespace, the namespace,
the bridge and mounted disks. Nothing without the prefix is touched. Without root there are no
namespaces, and everything stands on the loopback address (``Loopback``)."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

PROGRAM_SECONDS_MAX = 30
NETNS_FOLDER = Path("/run/netns")
BLKIO = Path("/sys/fs/cgroup/blkio")
NOWHERE = "02:00:00:00:de:ad"  # a hardware address that no interface here has
SUBNETS = tuple(f"198.18.{number}" for number in range(1, 255))  # set aside for laboratories
HUB = 254  # the bridge's own address, by which this process reaches everybody
PREFIX = "plab"
_OURS = re.compile(rf"{PREFIX}([0-9a-z]+)-")
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class Place:
    name: str
    address: str
    enter: tuple[str, ...] = ()  # what to put before a command that shall run there


class Net(Protocol):
    """Either kind of network."""

    lacking: str | None  # why no network fault can be made here

    def place(self, name: str) -> Place: ...
    def close(self) -> None: ...


def unavailable() -> str | None:
    """Why no namespaces can be had here; None when they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program in ("ip", "nsenter", "ss"):
        if shutil.which(program) is None:
            return f"{program} is not installed (Debian: iproute2, util-linux)"
    if not Path("/dev/net/tun").exists():
        return "no /dev/net/tun on this machine"
    return None


class Loopback:
    """One address for all: processes and disks can be broken, ways between them cannot."""

    def __init__(self, lacking: str) -> None:
        self.lacking: str | None = lacking

    def place(self, name: str) -> Place:
        return Place(name, "127.0.0.1")

    def close(self) -> None:
        pass


class Namespaces:
    """``with Namespaces() as net: net.place("n1")``. Ways between places are open until cut."""

    lacking: str | None = None

    def __init__(self) -> None:
        self.prefix = run_prefix()
        self._bridge = f"{self.prefix}br"
        self._places: dict[str, Place] = {}
        self._cuts: set[tuple[str, str]] = set()
        self._relayed: set[tuple[str, str]] = set()
        sweep()
        self._subnet = _free_subnet()
        run("ip", "link", "add", self._bridge, "type", "bridge")
        run("ip", "addr", "add", f"{self._subnet}.{HUB}/24", "dev", self._bridge)
        run("ip", "link", "set", self._bridge, "up")

    def __enter__(self) -> Namespaces:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def place(self, name: str) -> Place:
        """A new namespace with an address, joined to all others."""
        assert name not in self._places, f"{name} is there already"
        host = len(self._places) + 1
        namespace, veth = f"{self.prefix}-{name}", f"{self.prefix}{name}"
        place = Place(
            name, f"{self._subnet}.{host}", ("nsenter", f"--net={NETNS_FOLDER / namespace}")
        )
        run("ip", "netns", "add", namespace)
        run("ip", "link", "add", veth, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        run("ip", "link", "set", veth, "master", self._bridge, "up")
        run(*place.enter, "ip", "addr", "add", f"{place.address}/24", "dev", "eth0")
        run(*place.enter, "ip", "link", "set", "eth0", "up")
        run(*place.enter, "ip", "link", "set", "lo", "up")
        self._places[name] = place
        return place

    def at(self, name: str) -> Place:
        return self._places[name]

    # ── Ways that end ────────────────────────────────────────────────────────────────────────

    def cut_one_way(self, sender: str, receiver: str) -> None:
        """What the first sends to the second is not heard of any more."""
        place, other = self._places[sender], self._places[receiver]
        neighbour = ("ip", "neigh", "replace", other.address, "lladdr", NOWHERE)
        run(*place.enter, *neighbour, "nud", "permanent", "dev", "eth0")
        self._cuts.add((sender, receiver))

    def cut(self, one: str, two: str) -> None:
        self.cut_one_way(one, two)
        self.cut_one_way(two, one)

    def is_cut(self, sender: str, receiver: str) -> bool:
        """As the kernel has it, not as we remember it."""
        place, other = self._places[sender], self._places[receiver]
        shown = run(*place.enter, "ip", "neigh", "show", other.address, "dev", "eth0")
        return NOWHERE in shown

    def heal(self) -> None:
        """Every way is open again."""
        for sender, receiver in tuple(self._cuts):
            place, other = self._places[sender], self._places[receiver]
            run(*place.enter, "ip", "neigh", "del", other.address, "dev", "eth0")
            self._cuts.discard((sender, receiver))

    def reset_connections(self, name: str) -> int:
        """Every TCP connection of a place is broken off with a reset to both ends. How many."""
        shown = run(*self._places[name].enter, "ss", "-H", "-t", "-n", "-K", "state", "established")
        return len(shown.splitlines())

    # ── Ways by a detour ─────────────────────────────────────────────────────────────────────

    def relay(self, one: str, two: str, device: str) -> None:
        """From now on, what these two send each other leaves by this device of theirs."""
        for sender, receiver in ((one, two), (two, one)):
            place, other = self._places[sender], self._places[receiver]
            way = (f"{other.address}/32", "dev", device, "src", place.address)
            run(*place.enter, "ip", "route", "replace", *way)
            self._relayed.add((sender, receiver))

    def end_relays(self) -> None:
        for sender, receiver in tuple(self._relayed):
            place, other = self._places[sender], self._places[receiver]
            run(*place.enter, "ip", "route", "del", f"{other.address}/32", is_tried=True)
            self._relayed.discard((sender, receiver))

    def close(self) -> None:
        _remove(self.prefix)


def run_prefix(pid: int | None = None) -> str:
    """Of all names that a run gives to things outside its folder."""
    number, digits = os.getpid() if pid is None else pid, ""
    while number:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return PREFIX + digits


def sweep() -> None:
    """Remove what runs left behind whose process is gone."""
    names = [*_namespaces(), *(path.parent.name for path in _mounts())]
    names += [path.name for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*-*")]
    for found in {match.group(1) for name in names if (match := _OURS.match(name))}:
        if not _is_alive(int(found, 36)):
            _remove_left(PREFIX + found)


def _is_alive(pid: int) -> bool:
    """Not so when it has ended and nobody has asked how (Z)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def _remove(prefix: str) -> None:
    """Everything of one run, whatever state it is in."""
    for namespace in _namespaces():
        if namespace.startswith(f"{prefix}-"):
            for pid in run("ip", "netns", "pids", namespace, is_tried=True).split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            run("ip", "netns", "del", namespace, is_tried=True)
    run("ip", "link", "del", f"{prefix}br", is_tried=True)
    for mount in _mounts():
        if mount.parent.name.startswith(f"{prefix}-"):
            run("umount", "--lazy", str(mount), is_tried=True)
    for group in BLKIO.glob(f"{prefix}-*"):
        with suppress(OSError):
            group.rmdir()


def _remove_left(prefix: str) -> None:
    """What a run would have removed itself, had it lived."""
    _remove(prefix)
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}-*"):
        shutil.rmtree(folder, ignore_errors=True)


def _namespaces() -> list[str]:
    return sorted(path.name for path in NETNS_FOLDER.glob(f"{PREFIX}*-*"))


def _mounts() -> Iterator[Path]:
    """Mounted disks of runs: ``…/<prefix>-<node>/disk``."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        path = Path(line.split()[1])
        if _OURS.match(path.parent.name):
            yield path


def _free_subnet() -> str:
    taken = {
        address["local"].rpartition(".")[0]
        for link in _addresses()
        for address in link.get("addr_info", ())
    }
    start = os.getpid() % len(SUBNETS)
    for subnet in (*SUBNETS[start:], *SUBNETS[:start]):
        if subnet not in taken:
            return subnet
    raise AssertionError("every network set aside for laboratories is taken")


def _addresses() -> Sequence[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run("ip", "-json", "addr"))
    return found


def run(*command: str, is_tried: bool = False) -> str:
    """What a program wrote. It must succeed, unless it is only tried."""
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=PROGRAM_SECONDS_MAX
    )
    if done.returncode != 0 and not is_tried:
        raise AssertionError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
