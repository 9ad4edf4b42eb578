"""Who can reach this node, and what that asks of it. On a loopback address only this machine can,
and a newcomer should not need keys for a first try; anywhere else callers must prove who they are,
over TLS, unless somebody has said by name that they need not."""

import ipaddress
from collections.abc import Iterable

from penstock.model.errors import PenstockError
from penstock.node.config import AuthMode, Config, parse_listen


class ExposureRefused(PenstockError):
    """The configuration would serve other machines without protection."""


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
                f"{', '.join(exposed)} can be reached by other machines and there is no TLS: make "
                "a certificate with 'penstock generate certs' and give --tls-cert and --tls-key, "
                "or say --insecure"
            )
        if not is_on:
            raise ExposureRefused(
                f"{', '.join(exposed)} can be reached by other machines and --auth is off: anybody "
                "there could do anything; turn it on, or say --insecure"
            )
    return is_on
