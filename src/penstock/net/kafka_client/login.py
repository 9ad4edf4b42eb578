"""Security settings of a Kafka client, TLS and the SASL login.

``Security`` can be pickled for a Spark worker. The properties have the names that librdkafka and
Kafka's own clients use.

    connect ── TLS ──► SaslHandshake (mechanism) ──► SaslAuthenticate (tokens) ──► any request"""

import re
import secrets
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.net.kafka_client.errors import KafkaRefused
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.scram import DIGESTS, SHA_512, ScramClient, ScramRefused

PLAIN: Final = "PLAIN"
MECHANISMS: Final = (PLAIN, *DIGESTS)
PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

_SASL_HANDSHAKE: Final = 17
_SASL_AUTHENTICATE: Final = 36
_NONCE_BYTES: Final = 24
_KEYS: Final = frozenset(
    {
        "security.protocol",
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.username",
        "sasl.password",
        "sasl.jaas.config",
        "ssl.ca.location",
        "ssl.certificate.location",
        "ssl.key.location",
        "ssl.endpoint.identification.algorithm",
    }
)
_FAMILIES: Final = ("security.", "sasl.", "ssl.")
_JAAS: Final = re.compile(r'\b(username|password)\s*=\s*"((?:[^"\\]|\\.)*)"')


class SecurityInvalid(ValueError): ...


@dataclass(frozen=True, slots=True)
class Security:
    protocol: str = "PLAINTEXT"
    mechanism: str = ""
    user: str = ""
    password: str = field(default="", repr=False)
    ca_file: str = ""  # empty: the authorities that the machine trusts
    certificate_file: str = ""  # certificate of the client, if the listener requires one
    key_file: str = ""  # empty: the key is in the file of the certificate
    is_hostname_checked: bool = True
    server_name: str = ""  # expected name in the certificate; empty: the host name

    def __post_init__(self) -> None:
        if self.protocol not in PROTOCOLS:
            raise SecurityInvalid(
                f"security protocol '{self.protocol}' is not one of {', '.join(PROTOCOLS)}"
            )
        if self.is_sasl:
            if self.mechanism not in MECHANISMS:
                raise SecurityInvalid(
                    f"SASL mechanism '{self.mechanism}' is not one of {', '.join(MECHANISMS)}"
                )
            if not self.user:
                raise SecurityInvalid(f"{self.protocol} needs a user name")
            if "\0" in self.user or "\0" in self.password:
                raise SecurityInvalid("the user name or the password contains a zero byte")
        if self.key_file and not self.certificate_file:
            raise SecurityInvalid("there is a key file without a certificate file")

    @property
    def is_tls(self) -> bool:
        return self.protocol in ("SSL", "SASL_SSL")

    @property
    def is_sasl(self) -> bool:
        return self.protocol.startswith("SASL_")

    def tls_context(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.ca_file or None)
        except OSError as error:
            raise SecurityInvalid(f"the CA file {self.ca_file} cannot be used: {error}") from None
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = self.is_hostname_checked
        if self.certificate_file:
            try:
                context.load_cert_chain(self.certificate_file, self.key_file or None)
            except OSError as error:
                raise SecurityInvalid(
                    f"the certificate {self.certificate_file} cannot be used: {error}"
                ) from None
        return context


def security_from(properties: Mapping[str, str]) -> Security:
    """Return the security settings in the properties of a Kafka client."""
    for key in properties:
        if key.startswith(_FAMILIES) and key not in _KEYS:
            raise SecurityInvalid(f"{key} is not supported; use one of {', '.join(sorted(_KEYS))}")
    protocol = properties.get("security.protocol", "PLAINTEXT").upper()
    mechanism = properties.get("sasl.mechanism") or properties.get("sasl.mechanisms") or SHA_512
    # The two options of a line like ``…ScramLoginModule required username="u" …;``.
    options = _JAAS.findall(properties.get("sasl.jaas.config", ""))
    jaas = {name: re.sub(r"\\(.)", r"\1", value) for name, value in options}
    check = properties.get("ssl.endpoint.identification.algorithm", "https").lower()
    if check not in ("https", "none", ""):
        raise SecurityInvalid("ssl.endpoint.identification.algorithm must be https or none")
    is_sasl = protocol.startswith("SASL_")
    return Security(
        protocol=protocol,
        mechanism=mechanism.upper() if is_sasl else "",
        user=properties.get("sasl.username") or jaas.get("username", "") if is_sasl else "",
        password=properties.get("sasl.password") or jaas.get("password", "") if is_sasl else "",
        ca_file=properties.get("ssl.ca.location", ""),
        certificate_file=properties.get("ssl.certificate.location", ""),
        key_file=properties.get("ssl.key.location", ""),
        is_hostname_checked=check == "https",
    )


def log_in(security: Security, call: Callable[[int, Any], Any]) -> int:
    """Log in. Returns the lifetime of the login in ms; 0 if it has no limit."""
    from penstock.wire.kafka.generated.sasl_handshake import SaslHandshakeRequest

    reply = call(_SASL_HANDSHAKE, SaslHandshakeRequest(security.mechanism))
    if reply.error_code:
        offered = ", ".join(reply.mechanisms) or "none"
        raise KafkaRefused(
            reply.error_code,
            f"the server does not support {security.mechanism}; it supports: {offered}",
        )
    if security.mechanism == PLAIN:
        token = f"\0{security.user}\0{security.password}".encode()
        return _sent(call, token)[1]
    nonce = secrets.token_urlsafe(_NONCE_BYTES)
    scram = ScramClient(security.mechanism, security.user, security.password, nonce=nonce)
    try:
        server_first, _ = _sent(call, scram.first)
        server_final, lifetime_ms = _sent(call, scram.final(server_first))
        scram.verify(server_final)
    except ScramRefused as error:
        raise KafkaRefused(ErrorCode.SASL_AUTHENTICATION_FAILED, str(error)) from None
    return lifetime_ms


def _sent(call: Callable[[int, Any], Any], token: bytes) -> tuple[bytes, int]:
    from penstock.wire.kafka.generated.sasl_authenticate import SaslAuthenticateRequest

    reply = call(_SASL_AUTHENTICATE, SaslAuthenticateRequest(token))
    if reply.error_code:
        raise KafkaRefused(reply.error_code, reply.error_message or "")
    return bytes(reply.auth_bytes), reply.session_lifetime_ms
