"""Settings for several nodes: addresses, roles, connections between nodes, the cluster, and where
the metadata is. ``config.py`` contains all other settings."""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import NamedTuple

from penstock.metadata.cluster_entries import NODE_ID_MAX
from penstock.model.levels import LEVEL_MAX
from penstock.node.configuration.settings import Section, option, path_option

ADDRESSES_MAX = 64


class NodeAddress(NamedTuple):
    host: str
    port: int
    name: str = ""  # if set, only a node of this name is accepted there

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_listen(text: str) -> tuple[str, int]:
    """Parse ``host:port`` or ``[IPv6 address]:port``."""
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
    """Parse addresses such as ``host:port,name=host:port``. Names are optional."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if len(parts) > ADDRESSES_MAX:
        raise ValueError(f"at most {ADDRESSES_MAX} nodes are allowed")
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
        raise ValueError("the same address is given twice")
    return addresses


def check_of(parse: Callable[[str], object]) -> Callable[[str], str | None]:
    """Return a function that returns why ``parse`` rejects a text, or None if it accepts it."""

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
    wrong = check_node_addresses(text)
    if wrong is not None:
        return wrong
    names = [member.name for member in parse_node_addresses(text)]
    if not all(names):
        return "expected name=host:port for each member"
    return None if len(set(names)) == len(names) else "two members have the same name"


class Role(StrEnum):
    """A role of a process. A process has all roles, only METADATA, or FRONTEND and BROKER."""

    FRONTEND = "frontend"
    BROKER = "broker"
    METADATA = "metadata"


ALL = ",".join(Role)
EVERYTHING = frozenset(Role)
SERVICE = frozenset({Role.METADATA})
ATTACHED = frozenset({Role.FRONTEND, Role.BROKER})


def parse_roles(text: str) -> frozenset[Role]:
    names = [part.strip() for part in text.split(",") if part.strip()]
    unknown = [name for name in names if name not in set(Role)]
    if unknown or not names:
        raise ValueError(f"expected one or more of {', '.join(Role)}")
    roles = frozenset(Role(name) for name in names)
    if roles not in (EVERYTHING, SERVICE, ATTACHED):
        raise ValueError("expected 'frontend,broker,metadata', 'frontend,broker' or 'metadata'")
    return roles


check_roles = check_of(parse_roles)


class InternalConfig(Section):
    listen: str = option(
        "",
        "Address where a metadata node or a cluster node listens for other nodes.",
        check=check_listen_or_empty,
    )
    advertised: str = option(
        "",
        "Address that other nodes use to reach this node; empty: the listen address.",
        check=check_listen_or_empty,
    )
    cluster: str = option(
        "penstock",
        "Name of the cluster; nodes with another name are rejected.",
        min_length=1,
        max_length=128,
    )
    certificate: str = path_option(
        "File with the certificate of this node and its chain, PEM, for connections to and from"
        " other nodes; it must contain node.name. Empty: no TLS between nodes, allowed only on"
        " a loopback address. A running node loads changed files."
    )
    key: str = path_option(
        "File with the private key of the certificate, PEM; empty: the certificate file."
    )
    ca: str = path_option(
        "File with the CA of the node certificates, PEM. This CA must sign nothing else."
    )


class ClusterConfig(Section):
    node: int = option(
        0,
        "Number of this node in its cluster, never reused for another machine; 0: a single node.",
        between=(0, NODE_ID_MAX),
    )
    etcd: str = option(
        "",
        "Addresses of the etcd that stores the metadata, host:port, separated by commas.",
        check=check_node_addresses,
        max_length=8_192,
    )
    etcd_ca: str = path_option("File with the CA of etcd, PEM; empty: no TLS.")
    etcd_certificate: str = path_option("File with the client certificate for etcd, PEM.")
    etcd_key: str = path_option("File with the private key of etcd_certificate, PEM.")
    replicas: int = option(
        3, "Number of replicas of a new partition; with fewer nodes, one per node.", between=(1, 9)
    )
    in_sync_min: int = option(
        2,
        "Smallest number of in-sync replicas, at most cluster.replicas; with fewer, new"
        " messages are rejected.",
        between=(1, 9),
    )
    rack: str = option(
        "", "Rack or zone of this node; replicas are placed in different racks.", max_length=128
    )
    lease_ms: int = option(
        6_000, "Time without contact after which a node is declared dead.", between=(1_000, 60_000)
    )
    feature_level_max: int = option(
        0,
        "Highest feature level of this node, to test an upgrade: the node behaves like an"
        " earlier version; 0: the highest level that it supports.",
        between=(0, LEVEL_MAX),
    )


class MetadataConfig(Section):
    service: str = option(
        "",
        "Addresses of the metadata nodes, host:port, or name=host:port to accept only the node"
        " of this name, separated by commas; empty: the metadata is in this process.",
        check=check_node_addresses,
        max_length=8_192,
    )
    members: str = option(
        "",
        "All metadata nodes, name=host:port, separated by commas; with more topics than"
        " whole_topics_max the topics are divided among them.",
        check=check_members,
        max_length=8_192,
    )
    whole_topics_max: int = option(
        50_000,
        "Number of topics up to which every metadata node has all topics; above it, each node"
        " has a part of them.",
        between=(1, 1_000_000),
    )
