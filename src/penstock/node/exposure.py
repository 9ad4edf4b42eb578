"""Who can reach this node, and what that asks of it. On a loopback address only this machine can,
and a newcomer should not need keys for a first try; anywhere else callers must prove who they are,
over TLS, unless somebody has said by name that they need not."""

import ipaddress
from collections.abc import Iterable
from pathlib import Path

from penstock.model.errors import USAGE, SetupError
from penstock.node.addresses import parse_listen, parse_places
from penstock.node.config import AuthMode, Config


class ExposureRefused(SetupError):
    """The configuration would serve other machines without protection."""

    def __init__(self, why: str, do: str) -> None:
        super().__init__(why, do, what="this would serve other machines unprotected", code=USAGE)


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name: nobody knows what it will resolve to tomorrow


def exposed_addresses(config: Config) -> list[str]:
    listens: Iterable[str] = (config.http.listen, config.kafka.listen, config.admin.listen)
    exposed = []
    for listen in listens:
        try:
            host, _ = parse_listen(listen)
        except ValueError:
            continue  # off, or empty: those defaults follow http.listen or are on loopback
        if not is_loopback(host):
            exposed.append(listen)
    return exposed


def is_auth_on(config: Config) -> bool:
    """Raises ExposureRefused when that would leave other machines' callers unprotected."""
    exposed = exposed_addresses(config)
    mode = config.auth.mode
    is_on = mode is AuthMode.ON or (mode is AuthMode.AUTO and bool(exposed))
    if exposed and not config.auth.insecure:
        if not config.tls.cert_file:
            raise ExposureRefused(
                f"{', '.join(exposed)} can be reached by other machines and there is no TLS",
                "make a certificate with 'penstock generate certs' and give --tls-cert and"
                " --tls-key, or say --insecure",
            )
        if not is_on:
            raise ExposureRefused(
                f"{', '.join(exposed)} can be reached by other machines and --auth is off: anybody"
                " there could do anything",
                "turn it on with --auth on, or say --insecure",
            )
    return is_on


def check_internal(config: Config) -> None:
    """Calls between nodes carry everything that is secret about a cluster but its messages, and
    whoever makes them may change all of it. Raises ExposureRefused."""
    check_etcd(config)
    internal = config.internal
    listens = [parse_listen(internal.listen)[0]] if internal.listen else []
    places = (*parse_places(config.metadata.service), *parse_places(config.metadata.members))
    exposed = [host for host in (*listens, *(one.host for one in places)) if not is_loopback(host)]
    if exposed and not internal.certificate and not config.auth.insecure:
        raise ExposureRefused(
            f"other nodes are talked to by way of {', '.join(exposed)} and there is no TLS between"
            " nodes",
            "make certificates with 'penstock generate certs --out nodes --name NODE' and give"
            " internal.certificate, internal.key and internal.ca, or say --insecure",
        )
    clients_ca = config.tls.client_ca_file
    if internal.ca and clients_ca and _is_same_file(internal.ca, clients_ca):
        raise ExposureRefused(
            "internal.ca and tls.client_ca_file are the same authority: every client that has a"
            " certificate could pass for a node",
            "give nodes an authority of their own: 'penstock generate certs --out nodes'",
        )


def check_etcd(config: Config) -> None:
    """Raise ExposureRefused if etcd is on another machine and is called without TLS: whoever can
    change those calls can change all metadata of the cluster."""
    cluster = config.cluster
    exposed = [str(one) for one in parse_places(cluster.etcd) if not is_loopback(one.host)]
    if exposed and not cluster.etcd_ca and not config.auth.insecure:
        raise ExposureRefused(
            f"etcd at {', '.join(exposed)} is on another machine and there is no TLS to it",
            "give cluster.etcd_ca, or say --insecure (setting auth.insecure)",
        )


def _is_same_file(one: str, other: str) -> bool:
    try:
        return Path(one).read_bytes() == Path(other).read_bytes()
    except OSError:
        return False  # whoever needs them says so


def reachable(address: str) -> str:
    """Where somebody on this machine reaches what is bound to ``address``, with or without a
    scheme: every interface is none that could be dialled."""
    for anywhere, here in (("0.0.0.0:", "127.0.0.1:"), ("[::]:", "[::1]:")):
        scheme, mark, rest = address.rpartition("://")
        if rest.startswith(anywhere):
            return f"{scheme}{mark}{here}{rest.removeprefix(anywhere)}"
    return address


def kafka_protocol(*, is_tls: bool, is_auth_on: bool) -> str:
    """What Kafka clients call a listener: their ``security.protocol``."""
    return ("SASL_" if is_auth_on else "") + ("SSL" if is_tls else "PLAINTEXT")
