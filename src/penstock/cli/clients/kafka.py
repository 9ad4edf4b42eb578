"""The Kafka client of the commands, and the conversion of its errors to Failures.

The address of a listener may start with a protocol, such as ``SASL_SSL://HOST:PORT``. Otherwise TLS
is used if the SQS endpoint uses TLS. SASL is used if an access key is set and the listener requires
a log-in: such a listener closes the connection when it receives a request without log-in."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from types import ModuleType
from typing import Any

from penstock.cli.clients.credentials import ca_file, found_credentials
from penstock.cli.terminal.failure import ExitCode, Failure, Misuse, timed_out
from penstock.net.kafka_client import client as net
from penstock.net.kafka_client.client import (
    KafkaClient,
    KafkaRefused,
    KafkaTrouble,
    Place,
    Security,
)
from penstock.net.kafka_client.node import PROTOCOLS
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.scram import SHA_512

ADDRESS_DEFAULT = "127.0.0.1:9092"
CLIENT_ID = "penstock-cli"

_FAULTS: Mapping[ExitCode, str] = {
    ExitCode.NOT_FOUND: "UNKNOWN_TOPIC_OR_PARTITION UNKNOWN_TOPIC_ID GROUP_ID_NOT_FOUND"
    " RESOURCE_NOT_FOUND",
    ExitCode.CONFLICT: "TOPIC_ALREADY_EXISTS NON_EMPTY_GROUP UNKNOWN_MEMBER_ID",
    ExitCode.DENIED: "TOPIC_AUTHORIZATION_FAILED GROUP_AUTHORIZATION_FAILED"
    " CLUSTER_AUTHORIZATION_FAILED TRANSACTIONAL_ID_AUTHORIZATION_FAILED"
    " SASL_AUTHENTICATION_FAILED UNSUPPORTED_SASL_MECHANISM",
    ExitCode.TIMEOUT: "REQUEST_TIMED_OUT",
}
_EXIT_CODES = {int(ErrorCode[one]): code for code, all_ in _FAULTS.items() for one in all_.split()}
_ASK = "ask an administrator of the tenant for permission; see `penstock policy test`"
_FIXES: Mapping[int, str] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "list topics with `penstock topic list`",
    ErrorCode.GROUP_ID_NOT_FOUND: "list groups with `penstock group list`",
    ErrorCode.TOPIC_ALREADY_EXISTS: "change it with `penstock topic set`, or choose another name",
    ErrorCode.SASL_AUTHENTICATION_FAILED: "check PENSTOCK_KEY_ID and PENSTOCK_SECRET, or"
    " AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: _ASK,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: _ASK,
    ErrorCode.NON_EMPTY_GROUP: "stop its members first; list them with `penstock group show`",
    ErrorCode.UNKNOWN_MEMBER_ID: "stop its members first; list them with `penstock group show`",
}


def refused(what: str, code: int, message: str | None = None) -> Failure:
    error = KafkaRefused(code, message or "")
    exit_code = _EXIT_CODES.get(code)
    if exit_code is None:
        exit_code = ExitCode.UNREACHABLE if error.is_passing else ExitCode.FAILED
    fix = _FIXES.get(code, "")
    if not fix and exit_code is ExitCode.UNREACHABLE:
        fix = "retry in a moment, or check the server with `penstock doctor`"
    return Failure(what, str(error), fix, exit_code=exit_code)


def check(reply: Any) -> None:
    if reply.error_code:
        raise KafkaRefused(reply.error_code, getattr(reply, "error_message", None) or "")


def failure_of(trouble: KafkaTrouble, what: str = "") -> Failure:
    if isinstance(trouble, net.TimedOut):
        return timed_out(trouble.address, trouble.waited_s)
    if isinstance(trouble, KafkaRefused):
        is_named = f"'{trouble.subject.removeprefix('group ')}'" in what
        parts = (what, "" if is_named else trouble.subject)
        about = ": ".join(filter(None, parts)) or "the request was rejected"
        return refused(about, trouble.code, trouble.message)
    assert isinstance(trouble, net.Unreachable)
    fix = "is `penstock serve` running with --kafka? set the address with --kafka HOST:PORT or"
    if isinstance(trouble, net.NotKafka):
        fix = "check PENSTOCK_CA_FILE, and the address in --kafka HOST:PORT or"
    return Failure(
        f"cannot reach {trouble.address}",
        trouble.reason,
        f"{fix} PENSTOCK_KAFKA",
        exit_code=ExitCode.UNREACHABLE,
    )


@contextmanager
def failing(what: str = "") -> Iterator[None]:
    try:
        yield
    except KafkaTrouble as trouble:
        raise failure_of(trouble, what) from trouble


class Kafka(KafkaClient):
    def __init__(self, address: str, *, timeout_s: float, security: Security | None = None) -> None:
        self.address = address
        self.security = security or Security()
        try:
            super().__init__(address, security=security, timeout_s=timeout_s, client_id=CLIENT_ID)
        except net.SecurityInvalid as error:
            raise Misuse(
                f"cannot connect to {address} with TLS",
                str(error),
                "set PENSTOCK_CA_FILE to the certificate file of the CA (ca.pem)",
            ) from error
        except ValueError:
            raise Misuse(
                f"'{address}' is not a valid address",
                "the address of a Kafka listener is HOST:PORT",
                f"write an address like {ADDRESS_DEFAULT}",
            ) from None

    def ask(
        self, api: ModuleType, *, node: int | None = None, most: int | None = None, **fields: Any
    ) -> Any:
        """Send a request and return the reply. ``api`` is a module of ``wire/kafka/generated``, and
        ``most`` is the highest version of that API to use."""
        return self.call(api.API_KEY, api.Request(**fields), node=node, version_max=most)

    def bounds(
        self, places: Iterable[Place], *, is_committed: bool = False
    ) -> tuple[dict[Place, int], dict[Place, int]]:
        places = list(places)
        if not places:
            return {}, {}
        starts = self.offsets(dict.fromkeys(places, net.EARLIEST))
        return starts, self.offsets(dict.fromkeys(places, net.LATEST), is_committed=is_committed)


def connected(listener: str, *, is_tls: bool, timeout_s: float) -> Kafka:
    """Return a client of the listener ``[PROTOCOL://]HOST:PORT``. If no protocol is given,
    ``is_tls`` says whether to use TLS."""
    protocol, mark, address = listener.rpartition("://")
    if mark and protocol.upper() not in PROTOCOLS:
        raise Misuse(
            f"'{listener}' is not a valid address",
            f"the protocol {protocol} is unknown; allowed: {', '.join(PROTOCOLS)}",
            f"write an address like {ADDRESS_DEFAULT} or SASL_SSL://{ADDRESS_DEFAULT}",
        )
    protocol = protocol.upper()
    if not protocol:
        protocol = "SSL" if is_tls else "PLAINTEXT"
        if found_credentials() is not None:
            with closing(_kafka(address, protocol, timeout_s)) as probe, failing():
                try:
                    probe.nodes()
                except net.HungUp:  # the listener requires a log-in
                    protocol = f"SASL_{protocol}"
    return _kafka(address, protocol, timeout_s)


def _kafka(address: str, protocol: str, timeout_s: float) -> Kafka:
    authority = (ca_file() or "") if protocol.endswith("SSL") else ""
    if protocol.startswith("SASL_"):
        found = found_credentials()
        if found is None:
            raise Failure(
                f"{address} requires authentication",
                "neither PENSTOCK_KEY_ID nor AWS_ACCESS_KEY_ID is set",
                "set PENSTOCK_KEY_ID and PENSTOCK_SECRET to an access key and its secret",
                exit_code=ExitCode.DENIED,
            )
        security = Security(protocol, SHA_512, found.key_id, found.secret, authority)
    else:
        security = Security(protocol, ca_file=authority)
    return Kafka(address, timeout_s=timeout_s, security=security)
