"""The certificate by which a node proves itself to others, at both ends of a connection: as the one
that listens and as the one that calls. Both ends ask for the other's, signed by the nodes' own
authority; whether its name fits is ``certificate.py``'s to say.

Two contexts of the same files, renewed together and in place: a connection that is open goes on
under the old certificate, the next one has the new. Files that cannot be used are refused whole,
and the old ones stay in use.
"""

import ssl
from pathlib import Path

from penstock.net.tls import Certificates, CertificateUnusable, TlsFiles


class NodeCertificates:
    def __init__(self, certificate: Path, key: Path, ca: Path) -> None:
        """Raises CertificateUnusable."""
        self._files = (certificate, key, ca)
        self._listening = Certificates(TlsFiles(certificate, key, ca))
        self.listening = self._listening.context
        self.listening.minimum_version = ssl.TLSVersion.TLSv1_3  # both ends are ours
        self.calling = _calling_context()
        _load(self.calling, *self._files)

    @property
    def expires_at_ms(self) -> int:
        return self._listening.expires_at_ms

    def renew(self) -> bool:
        """Take over files that have changed; as ``net.tls.Certificates`` does."""
        if not self._listening.renew():
            return False
        _load(self.calling, *self._files)
        return True


def _calling_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # a node is known by its id, wherever it runs
    return context


def _load(context: ssl.SSLContext, certificate: Path, key: Path, ca: Path) -> None:
    try:
        context.load_cert_chain(certificate, key)
        context.load_verify_locations(ca)
    except (ssl.SSLError, OSError) as error:
        raise CertificateUnusable(
            f"{certificate}, {key} and {ca} cannot be used", str(error)
        ) from error
