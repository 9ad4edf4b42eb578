"""Which hosts, addresses and ports a subscription may call. Pure: the resolver looks names up.

A tenant chooses URLs that this server calls from inside a network, so everything that is not public
is refused: other services of the network, metadata services of clouds, this cluster itself.

    deny ──► own addresses ──► public? ──► allow, development ──► refused

Some IPv6 addresses contain an IPv4 address that a gateway or the kernel connects to instead. Both
addresses are judged."""

import ipaddress
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

PORTS: Final = ((80, 80), (443, 443), (1_024, 65_535))  # other low ports are mail, SSH, databases


class Kind(StrEnum):
    """Why an address is not public."""

    LOOPBACK = "loopback"
    PRIVATE = "private"
    SHARED = "shared (carrier NAT)"
    LINK_LOCAL = "link-local"
    METADATA = "cloud metadata"
    UNSPECIFIED = "unspecified"
    MULTICAST = "multicast"
    DOCUMENTATION = "documentation"
    BENCHMARK = "benchmark"
    RESERVED = "reserved"


# From the special-purpose registries of IANA. Not ``ipaddress.is_global``, whose answers change
# between releases of Python. The first network that contains an address counts.
_SPECIAL: Final = tuple(
    (ipaddress.ip_network(network), kind)
    for kind, networks in (
        (Kind.LOOPBACK, "127.0.0.0/8 ::1/128"),
        (Kind.UNSPECIFIED, "0.0.0.0/8 ::/128"),
        (Kind.PRIVATE, "10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 fc00::/7"),
        (Kind.SHARED, "100.64.0.0/10"),
        (Kind.LINK_LOCAL, "169.254.0.0/16 fe80::/10"),
        (Kind.METADATA, "168.63.129.16/32"),  # of Azure; the others are in refused networks
        (Kind.MULTICAST, "224.0.0.0/4 ff00::/8"),
        (Kind.DOCUMENTATION, "192.0.2.0/24 198.51.100.0/24 203.0.113.0/24"),
        (Kind.DOCUMENTATION, "2001:db8::/32 3fff::/20"),
        (Kind.BENCHMARK, "198.18.0.0/15 2001:2::/48"),
        (Kind.RESERVED, "192.0.0.0/24 192.88.99.0/24 240.0.0.0/4"),
        (Kind.RESERVED, "2001::/23 3ffe::/16"),  # among others Teredo
    )
    for network in networks.split()
)
_PUBLIC_V6: Final = ipaddress.IPv6Network("2000::/3")  # everything else is reserved
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_LOCAL_NAT64: Final = ipaddress.IPv6Network("64:ff9b:1::/48")
_V4_COMPATIBLE: Final = ipaddress.IPv6Network("::/96")
_V4_BITS: Final = 0xFFFF_FFFF

_DEVELOPMENT: Final = frozenset((Kind.LOOPBACK, Kind.PRIVATE))
# What a name can be allowed to lead to. Loopback and link-local addresses belong to this machine,
# and need a network in ``allow``: the zone of a name may be in other hands than this machine.
_BY_NAME: Final = frozenset((Kind.PRIVATE, Kind.SHARED))


class Rules(NamedTuple):
    """``push.allow`` or ``push.deny``: networks, and host suffixes such as ``corp.example``."""

    networks: tuple[Network, ...] = ()
    suffixes: tuple[str, ...] = ()

    def has_address(self, address: Address) -> bool:
        return any(address in network for network in self.networks)

    def has_host(self, host: str) -> bool:
        return any(host == each or host.endswith(f".{each}") for each in self.suffixes)


_NO_RULES: Final = Rules()


def parse_rules(texts: Iterable[str]) -> Rules:
    """Parse entries of ``push.allow`` or ``push.deny``. Raises ValueError."""
    networks, suffixes = [], []
    for text in texts:
        entry = text.strip().lower()
        if "/" in entry or ":" in entry or entry.replace(".", "").isdigit():
            networks.append(ipaddress.ip_network(entry))
        elif entry.strip("."):
            suffixes.append(entry.strip("."))
        else:
            raise ValueError("an entry is neither a network nor a host suffix")
    return Rules(tuple(networks), tuple(suffixes))


class AddressGuard:
    """Immutable. When an address of the cluster or a setting changes, make a new one."""

    def __init__(
        self,
        *,
        allow: Rules = _NO_RULES,
        deny: Rules = _NO_RULES,
        ports: Sequence[tuple[int, int]] = PORTS,
        own: Iterable[tuple[str, int]] = (),
        local: Iterable[str] = (),
        is_development: bool = False,
    ) -> None:
        """``own`` lists host and port of the cluster's listeners and of etcd, ``local`` the
        addresses of this machine."""
        self._allow = allow
        self._deny = deny
        self._ports = tuple(ports)
        self._allowed_kinds = _DEVELOPMENT if is_development else frozenset()
        self._local = frozenset(map(ipaddress.ip_address, local))
        self._own: set[tuple[Address, int]] = set()
        self._own_names: set[tuple[str, int]] = set()
        self._machine_ports: set[int] = set()  # of listeners on all or on loopback addresses
        self._named_ports: set[int] = set()  # of listeners whose addresses are not known
        for host, port in own:
            self._add_own(host.lower(), port)

    def _add_own(self, host: str, port: int) -> None:
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            self._own_names.add((host, port))
            self._named_ports.add(port)
            return
        if address.is_unspecified or address.is_loopback:
            self._machine_ports.add(port)
        self._own.add((address, port))

    def refusal(self, host: str, port: int, addresses: Sequence[str]) -> str | None:
        """Return why a host with these addresses must not be called, or None if it may. All
        addresses must be allowed: a name with one bad address may be an attempt to get there."""
        reason = self.host_refusal(host, port)
        if reason is None and not addresses:
            reason = "the name has no address"
        for address in addresses if reason is None else ():
            reason = self._address_refusal(address, host, port)
            if reason is not None:
                break
        return reason

    def host_refusal(self, host: str, port: int) -> str | None:
        """Return why a host must not be called, whatever its addresses are."""
        if (reason := self.port_refusal(port)) is not None:
            return reason
        if self._deny.has_host(host):
            return f"{host} is in push.deny"
        if (host, port) in self._own_names:
            return f"{host} port {port} is an address of this cluster"
        return None

    def port_refusal(self, port: int) -> str | None:
        if any(low <= port <= high for low, high in self._ports):
            return None
        return f"port {port} is not in push.ports"

    def _address_refusal(self, text: str, host: str, port: int) -> str | None:
        try:
            faces = _faces(ipaddress.ip_address(text))
        except ValueError:
            return f"{text} is not an address"
        for face in faces:
            if self._deny.has_address(face):
                return f"{text} is in push.deny"
            kind = kind_of(face)
            if self._is_own(face, port, kind):
                return f"{text} port {port} is an address of this cluster"
            if not (
                kind is None
                or kind in self._allowed_kinds
                or self._allow.has_address(face)
                or (kind in _BY_NAME and self._allow.has_host(host))
            ):
                return f"{text} is a {kind} address"
        return None

    def _is_own(self, address: Address, port: int, kind: Kind | None) -> bool:
        if (address, port) in self._own:
            return True
        if port in self._machine_ports and (
            kind in (Kind.LOOPBACK, Kind.UNSPECIFIED) or address in self._local
        ):
            return True
        # A listener that is known by name only can have any address that is not public.
        return port in self._named_ports and kind is not None


def kind_of(address: Address) -> Kind | None:
    """Return None for a public address."""
    for network, kind in _SPECIAL:
        if address in network:
            return kind
    is_public = isinstance(address, ipaddress.IPv4Address) or address in _PUBLIC_V6
    return None if is_public or address in _NAT64 else Kind.RESERVED


def plain_address(text: str) -> str:
    """Return an address in canonical form; the IPv4 address of one that is mapped into IPv6."""
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(address)


def _faces(address: Address) -> tuple[Address, ...]:
    """Return an address and the IPv4 addresses inside it."""
    if isinstance(address, ipaddress.IPv4Address):
        return (address,)
    if address.ipv4_mapped is not None:
        return (address.ipv4_mapped,)  # the kernel connects to this one
    if address.sixtofour is not None:
        return (address, address.sixtofour)
    if address.teredo is not None:
        return (address, *address.teredo)
    if address.is_unspecified or address.is_loopback:
        return (address,)  # not 0.0.0.0 and 0.0.0.1 in the v4-compatible form
    if any(address in network for network in (_NAT64, _LOCAL_NAT64, _V4_COMPATIBLE)):
        return (address, ipaddress.IPv4Address(int(address) & _V4_BITS))
    return (address,)
