"""A connection of the blocking Kafka client to one node, and the client's security settings.

    connect ── TLS ──► ApiVersions ──► SaslHandshake, SaslAuthenticate ──► any request

The first call opens the connection. One deadline covers sending a request and reading the reply.
Any error in between, including Ctrl-C, closes the connection, because the remaining bytes of a
reply must not be read as the next reply. If the server has closed the connection, the next call
notices this before it sends its request, and opens a new connection.

``Security`` can be pickled for Spark workers. ``security_from`` reads properties with the names
that librdkafka and Kafka's own clients use."""

import re
import secrets
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from penstock.net.kafka_client import errors
from penstock.wire.kafka.apis import (
    API_VERSIONS,
    APIS,
    FETCH,
    LENGTH_BYTES,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    Api,
    encode_request_frame,
    parse_response_header,
)
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.primitives import Malformed
from penstock.wire.kafka.scram import DIGESTS, SHA_512, ScramClient, ScramRefused

REPLY_BYTES_MAX: Final = 256 * 1_048_576
_WAIT_MARGIN_S: Final = 5.0  # added to the time that the server may hold a request
_RENEW_AT: Final = 0.9  # fraction of a login's lifetime, because the clocks differ
PLAIN: Final = "PLAIN"
MECHANISMS: Final = (PLAIN, *DIGESTS)
PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

_NONCE_BYTES: Final = 24
_KEYS: Final = (
    "sasl.jaas.config",
    "sasl.mechanism",
    "sasl.mechanisms",
    "sasl.password",
    "sasl.username",
    "security.protocol",
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.endpoint.identification.algorithm",
    "ssl.key.location",
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
            raise SecurityInvalid("a key file is set without a certificate file")

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
    for key in properties:
        if key.startswith(_FAMILIES) and key not in _KEYS:
            raise SecurityInvalid(f"{key} is not supported; use one of {', '.join(_KEYS)}")
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
    """Log in. Return the lifetime of the login in ms, or 0 if it has no limit."""
    from penstock.wire.kafka.generated.sasl_handshake import SaslHandshakeRequest

    reply = call(SASL_HANDSHAKE, SaslHandshakeRequest(security.mechanism))
    if reply.error_code:
        offered = ", ".join(reply.mechanisms) or "none"
        raise errors.KafkaRefused(
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
        raise errors.KafkaRefused(ErrorCode.SASL_AUTHENTICATION_FAILED, str(error)) from None
    return lifetime_ms


def _sent(call: Callable[[int, Any], Any], token: bytes) -> tuple[bytes, int]:
    from penstock.wire.kafka.generated.sasl_authenticate import SaslAuthenticateRequest

    reply = call(SASL_AUTHENTICATE, SaslAuthenticateRequest(token))
    if reply.error_code:
        raise errors.KafkaRefused(reply.error_code, reply.error_message or "")
    return bytes(reply.auth_bytes), reply.session_lifetime_ms


class Dialling(NamedTuple):
    security: Security
    tls: ssl.SSLContext | None
    timeout_s: float
    client_id: str


class KafkaNode:
    def __init__(self, host: str, port: int, dialling: Dialling) -> None:
        self.host = host
        self._port = port
        self.name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._dialling = dialling
        self._socket: socket.socket | None = None
        self._renew_at = float("inf")
        self._correlation_id = 0
        self._answer_count = 0  # replies on this connection
        self._versions: dict[int, int] = {}  # API key → newest version that both sides support

    def call(
        self, key: int, request: Any, *, wait_s: float = 0.0, version_max: int | None = None
    ) -> Any:
        """Send a request and return the reply. The server may wait ``wait_s`` before it replies."""
        self.open()
        timeout_s = max(self._dialling.timeout_s, wait_s + _WAIT_MARGIN_S)
        return self._ask(key, request, timeout_s, version_max)

    def open(self) -> None:
        if self._socket is not None and (self._is_dead() or time.monotonic() >= self._renew_at):
            self.close()
        if self._socket is not None:
            return
        timeout_s = self._dialling.timeout_s
        try:
            self._socket = self._connected(timeout_s)
            self._versions = self._ask_versions(timeout_s)
            if self._dialling.security.is_sasl:
                lifetime_ms = log_in(
                    self._dialling.security, lambda key, request: self._ask(key, request, timeout_s)
                )
                if lifetime_ms > 0:
                    self._renew_at = time.monotonic() + lifetime_ms / 1_000 * _RENEW_AT
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._renew_at = float("inf")
        self._answer_count = 0
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connected(self, timeout_s: float) -> socket.socket:
        try:
            plain = socket.create_connection((self.host, self._port), timeout=timeout_s)
        except TimeoutError:
            raise errors.TimedOut(self.name, timeout_s) from None
        except ConnectionRefusedError:
            reason = "connection refused: nothing listens there"
            raise errors.Unreachable(self.name, reason) from None
        except (OSError, UnicodeError) as error:  # UnicodeError: an invalid host name
            raise errors.Unreachable(self.name, str(error) or type(error).__name__) from None
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        dialling = self._dialling
        if dialling.tls is None:
            return plain
        try:
            server_name = dialling.security.server_name or self.host
            return dialling.tls.wrap_socket(plain, server_hostname=server_name)
        except (OSError, ValueError) as error:
            plain.close()
            if isinstance(error, TimeoutError):
                raise errors.TimedOut(self.name, timeout_s) from None
            reason = f"the TLS handshake failed: {_reason(error)}"
            if isinstance(error, ssl.SSLCertVerificationError):
                reason = f"its certificate is not trusted: {error.verify_message}"
            elif isinstance(error, ConnectionError | ssl.SSLEOFError):
                reason = "the server closed the connection; does the listener speak TLS?"
                raise errors.HungUp(self.name, reason) from None
            raise errors.NotKafka(self.name, reason) from None

    def _ask_versions(self, timeout_s: float) -> dict[int, int]:
        from penstock.wire.kafka.generated.api_versions import ApiVersionsRequest

        reply = self._exchange(APIS[API_VERSIONS], 0, ApiVersionsRequest(), timeout_s)
        if reply.error_code:
            raise errors.KafkaRefused(reply.error_code, subject=self.name)
        return {
            row.api_key: min(row.max_version, APIS[row.api_key].version_max)
            for row in reply.api_keys
            if row.api_key in APIS and row.min_version <= APIS[row.api_key].version_max
        }

    def _is_dead(self) -> bool:
        """Return whether the server has closed the connection or sent unexpected bytes."""
        assert self._socket is not None
        try:
            self._socket.setblocking(False)
            self._socket.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            return False
        except OSError:
            return True
        return True  # the connection has ended, or there is a reply without a request

    def _ask(self, key: int, request: Any, timeout_s: float, version_max: int | None = None) -> Any:
        api = APIS[key]
        version = self._versions.get(key, -1)
        if version_max is not None:
            version = min(version, version_max)
        if version < api.version_min:
            raise errors.KafkaRefused(
                ErrorCode.UNSUPPORTED_VERSION,
                "The server and this client have no version of this API in common.",
                f"{self.name} and this client have no version of {api.name} in common",
            )
        return self._exchange(api, version, request, timeout_s)

    def _exchange(self, api: Api, version: int, request: Any, timeout_s: float) -> Any:
        codec = api.codec()
        self._correlation_id = (self._correlation_id + 1) & 0x7FFF_FFFF
        frame = encode_request_frame(
            api,
            version,
            correlation_id=self._correlation_id,
            client_id=self._dialling.client_id,
            body=codec.encode_request(request, version),
        )
        try:
            data = self._round_trip(frame, timeout_s)
            found, at = parse_response_header(data, api.response_header_version(version))
            if found != self._correlation_id:
                raise Malformed("the reply belongs to another request")
            # Records are views of the buffer; values of other replies are copied.
            whole = data if api.key == FETCH else bytes(data)
            self._answer_count += 1
            return codec.decode_response(whole, at, version)
        except BaseException as error:
            hint = self._hint()
            self.close()
            if isinstance(error, TimeoutError):
                raise errors.TimedOut(self.name, timeout_s) from None
            if isinstance(error, Malformed):
                reason = f"it does not reply like a Kafka listener: {error}"
                raise errors.NotKafka(self.name, reason) from None
            if isinstance(error, ConnectionError | ssl.SSLEOFError):
                raise errors.HungUp(self.name, f"the server closed the connection{hint}") from None
            if isinstance(error, OSError):
                raise errors.Unreachable(self.name, _reason(error)) from None
            raise

    def _hint(self) -> str:
        security = self._dialling.security
        if self._answer_count == 0 and not security.is_tls:
            return "; does the listener need TLS?"
        if self._answer_count == 1 and not security.is_sasl:
            return "; does the listener need a login?"
        return ""

    def _round_trip(self, frame: bytes, timeout_s: float) -> bytearray:
        assert self._socket is not None
        ends_at = time.monotonic() + timeout_s
        self._socket.settimeout(timeout_s)
        self._socket.sendall(frame)
        length = int.from_bytes(self._read(LENGTH_BYTES, ends_at), "big", signed=True)
        if not 0 < length <= REPLY_BYTES_MAX:
            raise Malformed(f"the reply has an invalid length of {length} bytes")
        return self._read(length, ends_at)

    def _read(self, count: int, ends_at: float) -> bytearray:
        assert self._socket is not None
        data = bytearray(count)
        view = memoryview(data)
        at = 0
        while at < count:
            left_s = ends_at - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            self._socket.settimeout(left_s)
            size = self._socket.recv_into(view[at:])
            if not size:
                raise ConnectionResetError
            at += size
        return data


def _reason(error: BaseException) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).replace("_", " ").lower()
    return str(error) or type(error).__name__
