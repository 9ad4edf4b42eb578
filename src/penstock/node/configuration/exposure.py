"""Checks that listeners which other machines can reach are protected: on any address that is not a
loopback address, TLS and authentication are required, unless ``auth.insecure`` is set."""

import ipaddress
from collections.abc import Iterable
from pathlib import Path

from penstock.model.errors import USAGE, SetupError
from penstock.node.configuration.cluster_config import parse_listen, parse_node_addresses
from penstock.node.configuration.config import AuthMode, Config


class ExposureRefused(SetupError):
    def __init__(self, why: str, do: str) -> None:
        super().__init__(why, do, what="this would serve other machines unprotected", code=USAGE)


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name, which may resolve to any address later


def exposed_addresses(config: Config) -> list[str]:
    listens: Iterable[str] = (config.http.listen, config.kafka.listen, config.admin.listen)
    exposed = []
    for listen in listens:
        try:
            host, _ = parse_listen(listen)
        except ValueError:
            continue  # off, or empty: the default follows http.listen or is a loopback address
        if not is_loopback(host):
            exposed.append(listen)
    return exposed


def is_auth_on(config: Config) -> bool:
    """Return whether clients must authenticate. Raises ExposureRefused if other machines could
    connect without TLS or authentication."""
    exposed = exposed_addresses(config)
    mode = config.auth.mode
    is_on = mode is AuthMode.ON or (mode is AuthMode.AUTO and bool(exposed))
    if exposed and not config.auth.insecure:
        if not config.tls.cert_file:
            raise ExposureRefused(
                f"{', '.join(exposed)} can be reached by other machines and there is no TLS",
                "create a certificate with 'penstock generate certs' and set --tls-cert and"
                " --tls-key, or set --insecure",
            )
        if not is_on:
            raise ExposureRefused(
                f"{', '.join(exposed)} can be reached by other machines and --auth is off",
                "turn authentication on with --auth on, or set --insecure",
            )
    return is_on


def check_internal(config: Config) -> None:
    """Raise ExposureRefused if connections between machines of a cluster would not use TLS."""
    check_etcd(config)
    internal = config.internal
    listens = [parse_listen(internal.listen)[0]] if internal.listen else []
    addresses = (
        *parse_node_addresses(config.metadata.service),
        *parse_node_addresses(config.metadata.members),
    )
    exposed = [
        host for host in (*listens, *(one.host for one in addresses)) if not is_loopback(host)
    ]
    if exposed and not internal.certificate and not config.auth.insecure:
        raise ExposureRefused(
            f"other nodes connect over {', '.join(exposed)} and there is no TLS between nodes",
            "create certificates with 'penstock generate certs --out nodes --name NODE' and set"
            " internal.certificate, internal.key and internal.ca, or set --insecure",
        )
    clients_ca = config.tls.client_ca_file
    if internal.ca and clients_ca and _is_same_file(internal.ca, clients_ca):
        raise ExposureRefused(
            "internal.ca and tls.client_ca_file are the same CA: every client with a certificate"
            " could act as a node",
            "use a separate CA for nodes: 'penstock generate certs --out nodes'",
        )


def check_etcd(config: Config) -> None:
    """Raise ExposureRefused if an etcd on another machine would be called without TLS."""
    cluster = config.cluster
    exposed = [str(one) for one in parse_node_addresses(cluster.etcd) if not is_loopback(one.host)]
    if exposed and not cluster.etcd_ca and not config.auth.insecure:
        raise ExposureRefused(
            f"etcd at {', '.join(exposed)} is on another machine and is called without TLS",
            "set cluster.etcd_ca, or --insecure (setting auth.insecure)",
        )


def _is_same_file(one: str, other: str) -> bool:
    try:
        return Path(one).read_bytes() == Path(other).read_bytes()
    except OSError:
        return False  # reported where the files are used


def reachable(address: str) -> str:
    """Return the address by which this machine reaches a listener: 0.0.0.0 becomes 127.0.0.1."""
    for anywhere, here in (("0.0.0.0:", "127.0.0.1:"), ("[::]:", "[::1]:")):
        scheme, mark, rest = address.rpartition("://")
        if rest.startswith(anywhere):
            return f"{scheme}{mark}{here}{rest.removeprefix(anywhere)}"
    return address


def kafka_protocol(*, is_tls: bool, is_auth_on: bool) -> str:
    return ("SASL_" if is_auth_on else "") + ("SSL" if is_tls else "PLAINTEXT")
