"""The certificates of a node, for clients and for other nodes. Changed files are loaded while the
node runs; if they are unusable, that is logged and the old certificate stays in use."""

import asyncio
import logging
import ssl
from collections.abc import Iterable
from pathlib import Path

from penstock.calls.internal.connection import NodeCertificates
from penstock.model.troubles import CERTIFICATE_WARN_DAYS, Trouble, certificate_ending
from penstock.net.tls import Certificates, CertificateUnusable, TlsFiles
from penstock.node.configuration.cluster_config import InternalConfig
from penstock.node.configuration.config import TlsConfig
from penstock.telemetry import families
from penstock.telemetry.exposition import Sample
from penstock.telemetry.families import Family

log_ = logging.getLogger(__name__)

CHECK_SECONDS = 5.0


class CertificateKeeper:
    def __init__(self, tls: TlsConfig, internal: InternalConfig) -> None:
        """Raises CertificateUnusable."""
        self._clients = _for_clients(tls)
        self.nodes = _for_nodes(internal)

    @property
    def context(self) -> ssl.SSLContext | None:
        """The TLS context of listeners for clients; None: no TLS."""
        return None if self._clients is None else self._clients.context

    @property
    def has_any(self) -> bool:
        return self._clients is not None or self.nodes is not None

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            self.renew()

    def renew(self) -> None:
        for certificates in (self._clients, self.nodes):
            try:
                if certificates is not None and certificates.renew():
                    log_.info("certificate renewed")
            except CertificateUnusable as error:
                log_.error("certificate not renewed", extra={"reason": str(error)})

    def troubles(self, *, now_ms: int) -> Iterable[Trouble]:
        for users, one in (("clients", self._clients), ("other nodes", self.nodes)):
            if one is not None:
                days_left = (one.expires_at_ms - now_ms) // 86_400_000
                if days_left < CERTIFICATE_WARN_DAYS:
                    yield certificate_ending(users, days_left)

    def samples(self) -> Iterable[tuple[Family, Sample]]:
        if self._clients is not None:
            yield families.TLS_EXPIRY, ((), self._clients.expires_at_ms / 1_000)
        if self.nodes is not None:
            yield families.INTERNAL_TLS_EXPIRY, ((), self.nodes.expires_at_ms / 1_000)


def _for_clients(tls: TlsConfig) -> Certificates | None:
    if not tls.cert_file:
        return None
    client_ca = Path(tls.client_ca_file) if tls.client_ca_file else None
    key = Path(tls.key_file or tls.cert_file)  # one file may contain both
    return Certificates(TlsFiles(Path(tls.cert_file), key, client_ca))


def _for_nodes(internal: InternalConfig) -> NodeCertificates | None:
    if not internal.certificate:
        return None
    return NodeCertificates(
        Path(internal.certificate), Path(internal.key or internal.certificate), Path(internal.ca)
    )
