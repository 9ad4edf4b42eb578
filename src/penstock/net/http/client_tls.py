"""TLS contexts of the HTTP client. Certificates of endpoints are always checked, by name and chain.

Loading the certificates that the machine trusts takes 30 ms, so contexts are built in a thread and
kept. A request that names its own CA trusts only that CA."""

import asyncio
import os
import ssl
from pathlib import Path
from typing import Final

import msgspec

CONTEXTS_MAX: Final = 64  # each holds some hundred certificates of authorities
PEM_CHARS_MAX: Final = 65_536  # a chain with its key has about 8,000


class TlsInvalid(ValueError):
    """Certificates or keys cannot be used. The text says which, and contains no key."""


class TlsIdentity(msgspec.Struct, frozen=True):
    """What a subscription sets about TLS, as PEM text; an empty text stands for the default."""

    ca: str = ""  # certificates of the only authorities to trust
    certificate: str = ""  # certificate of the client, with its chain
    key: str = ""  # private key of ``certificate``, not encrypted

    def __repr__(self) -> str:
        return "TlsIdentity(...)"  # without the private key


class TlsContexts:
    def __init__(self, *, ca_file: Path | None = None) -> None:
        """``ca_file`` has certificates to trust beside those that the machine trusts."""
        self._ca_file = ca_file
        self._contexts: dict[TlsIdentity, ssl.SSLContext] = {}  # the least recently used is first

    async def get(self, identity: TlsIdentity) -> ssl.SSLContext:
        """Return the context of an identity. Raises TlsInvalid."""
        context = self._contexts.pop(identity, None)
        if context is not None:
            self._contexts[identity] = context  # the last one now
        else:
            built = await asyncio.to_thread(build_context, identity, self._ca_file)
            # The first of two contexts built at the same time counts: connections belong to it.
            context = self._contexts.setdefault(identity, built)
            if len(self._contexts) > CONTEXTS_MAX:
                del self._contexts[next(iter(self._contexts))]
        return context


def build_context(identity: TlsIdentity, ca_file: Path | None = None) -> ssl.SSLContext:
    # Not ``ssl.create_default_context``, which writes session keys to a file if the environment
    # asks for it.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    if max(map(len, (identity.ca, identity.certificate, identity.key))) > PEM_CHARS_MAX:
        raise TlsInvalid(f"a PEM text exceeds {PEM_CHARS_MAX} characters")
    if identity.ca:
        try:
            context.load_verify_locations(cadata=identity.ca)
        except (ssl.SSLError, ValueError, TypeError):  # TypeError: a text that is not ASCII
            raise TlsInvalid("the CA must be one or more certificates in PEM format") from None
    else:
        _load_trusted(context, ca_file)
    if identity.certificate or identity.key:
        _load_client_certificate(context, identity)
    return context


def _load_trusted(context: ssl.SSLContext, ca_file: Path | None) -> None:
    paths = ssl.get_default_verify_paths()
    if paths.cafile is None and paths.capath is None:
        context.load_default_certs()
    else:
        # Unlike ``load_default_certs`` this lets other threads run meanwhile.
        context.load_verify_locations(cafile=paths.cafile, capath=paths.capath)
    if ca_file is not None:
        try:
            context.load_verify_locations(cafile=ca_file)
        except OSError as error:
            reason = error.strerror or str(error)
            raise TlsInvalid(f"the CA file {ca_file} cannot be used: {reason}") from None


def _load_client_certificate(context: ssl.SSLContext, identity: TlsIdentity) -> None:
    """Load certificate and key from a file in memory: the ssl module reads only files, and a key
    must not reach a disk."""
    pem = f"{identity.certificate}\n{identity.key}\n".encode("utf-8", "replace")
    number = os.memfd_create("client certificate")
    try:
        os.write(number, pem)
        # A password, even an empty one, keeps OpenSSL from asking for one on the terminal.
        context.load_cert_chain(f"/proc/self/fd/{number}", password="")
    except (ssl.SSLError, OSError):
        raise TlsInvalid(
            "the client certificate must be a PEM certificate with its unencrypted private key"
        ) from None
    finally:
        os.close(number)
