"""Addresses in a configuration: one to listen on, or a list of nodes to call."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

ADDRESSES_MAX = 64


class NodeAddress(NamedTuple):
    host: str
    port: int
    name: str = ""  # if set, only a node of this name is accepted there

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_listen(text: str) -> tuple[str, int]:
    """Parse ``host:port``, an IPv6 host in brackets. Raises ValueError with the reason."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ValueError("expected host:port with a port from 0 to 65535")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError("an IPv6 address must be in brackets: [::1]:9324")
    if not host or any(character.isspace() for character in host):
        raise ValueError("expected host:port; 0.0.0.0 means all IPv4 addresses of this machine")
    return host, int(port)


def parse_node_addresses(text: str) -> Sequence[NodeAddress]:
    """Parse ``host:port,name=host:port,...``; names are optional. Raises ValueError."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if len(parts) > ADDRESSES_MAX:
        raise ValueError(f"at most {ADDRESSES_MAX} nodes")
    addresses: list[NodeAddress] = []
    for part in parts:
        name, found, address = part.rpartition("=")
        host, port = parse_listen(address)
        if not port:
            raise ValueError(f"{address}: port 0 is not allowed here")
        if found and not name.strip():
            raise ValueError(f"{part}: the name before = is empty")
        addresses.append(NodeAddress(host, port, name.strip()))
    if len({(one.host, one.port) for one in addresses}) != len(addresses):
        raise ValueError("an address occurs twice")
    return addresses


def check_of(parse: Callable[[str], object]) -> Callable[[str], str | None]:
    """Return the check of a setting: it returns why ``parse`` rejects a text, or None."""

    def check(text: str) -> str | None:
        try:
            parse(text)
        except ValueError as error:
            return str(error)
        return None

    return check


check_listen = check_of(parse_listen)
check_node_addresses = check_of(parse_node_addresses)


def check_listen_or_empty(text: str) -> str | None:
    return check_listen(text) if text else None


def check_members(text: str) -> str | None:
    """Check a list of addresses in which each has a different name."""
    wrong = check_node_addresses(text)
    if wrong is not None:
        return wrong
    names = [member.name for member in parse_node_addresses(text)]
    if not all(names):
        return "expected name=host:port for each"
    return None if len(set(names)) == len(names) else "two members have the same name"
