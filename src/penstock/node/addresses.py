"""Addresses as a configuration writes them: one to listen on, or a list of nodes to call."""

from collections.abc import Sequence
from typing import NamedTuple

PLACES_MAX = 64


class Place(NamedTuple):
    """Where another node listens; with a name, who must answer there."""

    host: str
    port: int
    name: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_listen(text: str) -> tuple[str, int]:
    """``host:port`` with an IPv6 host in brackets. Raises ValueError with the reason."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ValueError("expected host:port with a port from 0 to 65535")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError("an IPv6 address stands in brackets, as in [::1]:9324")
    if not host or any(character.isspace() for character in host):
        raise ValueError("expected host:port; 0.0.0.0 is every IPv4 address of this machine")
    return host, int(port)


def parse_places(text: str) -> Sequence[Place]:
    """``host:port,host:port``, each with ``name=`` before it or not. Raises ValueError."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if len(parts) > PLACES_MAX:
        raise ValueError(f"at most {PLACES_MAX} nodes")
    places = []
    for part in parts:
        name, found, address = part.rpartition("=")
        host, port = parse_listen(address)
        if not port:
            raise ValueError(f"{address}: the port of another node is known")
        if found and not name.strip():
            raise ValueError(f"{part}: a name stands before the =")
        places.append(Place(host, port, name.strip()))
    if len({(place.host, place.port) for place in places}) != len(places):
        raise ValueError("a node is named once")
    return places


def check_places(text: str) -> str | None:
    try:
        parse_places(text)
    except ValueError as error:
        return str(error)
    return None


def check_members(text: str) -> str | None:
    """As ``check_places``, and each has a name of its own."""
    wrong = check_places(text)
    if wrong is not None:
        return wrong
    names = [place.name for place in parse_places(text)]
    if not all(names):
        return "expected name=host:port for each"
    return None if len(set(names)) == len(names) else "two members have one name"
