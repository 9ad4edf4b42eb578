"""The certificate of a node, for both ends of a connection, and the check of the other node's.

Both ends require a certificate signed by the nodes' own authority, which only says that a node
belongs to the cluster. So the id of the node must be in it too: as a DNS name or URI among the
alternative names, or as the common name.
"""

import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from penstock.net.tls import Certificates, CertificateUnusable, TlsFiles
from penstock.wire.internal.faults import HelloRefused

Certificate = Mapping[str, Any]  # as returned by ``ssl.SSLSocket.getpeercert``
# Called with the id of a peer and its certificate, None if it showed none. Raises HelloRefused.
PeerCheck = Callable[[str, Certificate | None], None]


def names_in(certificate: Certificate) -> frozenset[str]:
    subject = (pair for group in certificate.get("subject", ()) for pair in group)
    names = {value for kind, value in subject if kind == "commonName"}
    names.update(
        value for kind, value in certificate.get("subjectAltName", ()) if kind in ("DNS", "URI")
    )
    return frozenset(names)


def name_in_certificate(node_id: str, certificate: Certificate | None) -> None:
    if not certificate:
        raise HelloRefused(f"Node {node_id} showed no certificate.")
    if node_id not in names_in(certificate):
        raise HelloRefused(f"The certificate shown by node {node_id} is for another node.")


class NodeCertificates:
    """Two contexts of the same files; see ``net.tls.Certificates``."""

    def __init__(self, certificate: Path, key: Path, ca: Path) -> None:
        self._files = (certificate, key, ca)
        self._listening = Certificates(TlsFiles(certificate, key, ca))
        self.listening = self._listening.context
        self.calling = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.calling.check_hostname = False  # a node is identified by its id
        for context in (self.listening, self.calling):
            context.minimum_version = ssl.TLSVersion.TLSv1_3
        self._load_calling()

    @property
    def expires_at_ms(self) -> int:
        return self._listening.expires_at_ms

    def renew(self) -> bool:
        is_changed = self._listening.renew()
        if is_changed:
            self._load_calling()
        return is_changed

    def _load_calling(self) -> None:
        certificate, key, ca = self._files
        try:
            self.calling.load_cert_chain(certificate, key)
            self.calling.load_verify_locations(ca)
        except (ssl.SSLError, OSError) as error:
            what = f"{certificate}, {key} and {ca} cannot be used"
            raise CertificateUnusable(what, str(error)) from error
