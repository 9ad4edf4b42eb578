"""The Kafka client of commands: the client of ``net/``, with errors for a person at a terminal.

Each call states its purpose in ``what``; an error becomes a ``Failure`` with that sentence, the
name of the server's error code, an exit code and, where there is one, a fix."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from penstock.cli.failure import ExitCode, Failure, timed_out
from penstock.net.kafka_client import (
    EARLIEST,
    LATEST,
    KafkaClient,
    KafkaRefused,
    KafkaTrouble,
    NotKafka,
    Place,
    Security,
    SecurityInvalid,
    TimedOut,
    Unreachable,
    by_topic,
    parse_addresses,
)
from penstock.wire.kafka.faults import ErrorCode

__all__ = [
    "ADDRESS_DEFAULT",
    "EARLIEST",
    "LATEST",
    "Kafka",
    "Place",
    "by_topic",
    "check",
    "failure_of",
    "parse_address",
    "refused",
    "told",
]

ADDRESS_DEFAULT = "127.0.0.1:9092"
CLIENT_ID = "penstock-cli"

_EXIT_CODES: Mapping[int, ExitCode] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ExitCode.NOT_FOUND,
    ErrorCode.UNKNOWN_TOPIC_ID: ExitCode.NOT_FOUND,
    ErrorCode.GROUP_ID_NOT_FOUND: ExitCode.NOT_FOUND,
    ErrorCode.RESOURCE_NOT_FOUND: ExitCode.NOT_FOUND,
    ErrorCode.TOPIC_ALREADY_EXISTS: ExitCode.CONFLICT,
    ErrorCode.NON_EMPTY_GROUP: ExitCode.CONFLICT,
    ErrorCode.UNKNOWN_MEMBER_ID: ExitCode.CONFLICT,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: ExitCode.DENIED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: ExitCode.DENIED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: ExitCode.DENIED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: ExitCode.DENIED,
    ErrorCode.SASL_AUTHENTICATION_FAILED: ExitCode.DENIED,
    ErrorCode.UNSUPPORTED_SASL_MECHANISM: ExitCode.DENIED,
    ErrorCode.REQUEST_TIMED_OUT: ExitCode.TIMEOUT,
}
_FIXES: Mapping[int, str] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "list topics with `penstock topic list`",
    ErrorCode.GROUP_ID_NOT_FOUND: "list groups with `penstock group list`",
    ErrorCode.TOPIC_ALREADY_EXISTS: "change it with `penstock topic set`, or pick another name",
    ErrorCode.SASL_AUTHENTICATION_FAILED: "check PENSTOCK_KEY_ID and PENSTOCK_SECRET, or"
    " AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "ask an administrator of the tenant; see"
    " `penstock policy test`",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "ask an administrator of the tenant; see"
    " `penstock policy test`",
    ErrorCode.NON_EMPTY_GROUP: "stop its members first; `penstock group show` names them",
    ErrorCode.UNKNOWN_MEMBER_ID: "stop its members first; `penstock group show` names them",
}


def refused(what: str, code: int, message: str | None = None) -> Failure:
    known = code in ErrorCode._value2member_map_
    name = ErrorCode(code).name if known else f"code {code}"
    text = message or (ErrorCode(code).message if known else "")
    exit_code = _EXIT_CODES.get(code)
    if exit_code is None:
        again = known and ErrorCode(code).is_retriable
        exit_code = ExitCode.UNREACHABLE if again else ExitCode.FAILED
    fix = _FIXES.get(code, "")
    if not fix and exit_code is ExitCode.UNREACHABLE:
        fix = "try again in a moment; `penstock doctor` checks the server"
    return Failure(what, f"{text} ({name})" if text else name, fix, exit_code=exit_code)


def check(what: str, code: int, message: str | None = None) -> None:
    if code != ErrorCode.NONE:
        raise refused(what, code, message)


def parse_address(text: str) -> tuple[str, int]:
    try:
        return parse_addresses(text)[0]
    except ValueError:
        raise Failure(
            f"'{text}' is not an address to talk to",
            "a Kafka listener is HOST:PORT",
            f"write it like {ADDRESS_DEFAULT}",
            exit_code=ExitCode.USAGE,
        ) from None


def failure_of(trouble: KafkaTrouble, what: str = "") -> Failure:
    """Return the error as a Failure. ``what`` did not happen; default: the error's own subject."""
    if isinstance(trouble, TimedOut):
        return timed_out(trouble.address, trouble.waited_s)
    if isinstance(trouble, KafkaRefused):
        about = ": ".join(filter(None, (what, trouble.subject))) or "the server refused"
        return refused(about, trouble.code, trouble.message)
    assert isinstance(trouble, Unreachable)
    fix = "is `penstock serve` running, and with --kafka? another address: --kafka HOST:PORT or"
    if isinstance(trouble, NotKafka):
        fix = "check the address, and PENSTOCK_CA_FILE for a certificate: --kafka HOST:PORT or"
    return Failure(
        f"cannot reach {trouble.address}",
        trouble.reason,
        f"{fix} PENSTOCK_KAFKA",
        exit_code=ExitCode.UNREACHABLE,
    )


@contextlib.contextmanager
def told(what: str = "") -> Iterator[None]:
    try:
        yield
    except KafkaTrouble as trouble:
        raise failure_of(trouble, what) from trouble


class Kafka:
    """A client of the cluster that is reached at one address."""

    def __init__(self, address: str, *, timeout_s: float, security: Security | None = None) -> None:
        parse_address(address)
        self.address = address
        self.security = security or Security()
        try:
            self.client = KafkaClient(
                address, security=security, timeout_s=timeout_s, client_id=CLIENT_ID
            )
        except SecurityInvalid as error:
            raise Failure(
                f"cannot talk to {address} as asked",
                str(error),
                "name the authority's certificate, ca.pem, in PENSTOCK_CA_FILE",
                exit_code=ExitCode.USAGE,
            ) from error

    @property
    def timeout_ms(self) -> int:
        return self.client.timeout_ms

    def call(
        self,
        key: int,
        request: Any,
        *,
        node: int | None = None,
        wait_s: float = 0.0,
        version_max: int | None = None,
    ) -> Any:
        with told():
            return self.client.call(key, request, node=node, wait_s=wait_s, version_max=version_max)

    def metadata(self, topics: Iterable[str] | None = None) -> Any:
        """Return metadata of these topics, or of all. Also learns the leaders of partitions."""
        with told():
            return self.client.metadata(topics)

    def topic(self, name: str, *, what: str) -> Any:
        """Return one topic of the metadata. Raises Failure, with ``what``, if there is none."""
        (topic,) = self.metadata([name]).topics
        check(what, topic.error_code)
        return topic

    def places(self, topic: str, *, what: str) -> list[Place]:
        found = self.topic(topic, what=what)
        return sorted(Place(topic, part.partition_index) for part in found.partitions)

    def offsets(
        self, wanted: Mapping[Place, int], *, what: str, is_committed: bool = False
    ) -> dict[Place, int]:
        """Return the offset of each partition at a time, at EARLIEST or at LATEST; -1: no record is
        that new. ``is_committed``: LATEST is the start of the first open transaction."""
        with told(what):
            return self.client.offsets(wanted, is_committed=is_committed)

    def at_leaders(
        self,
        key: int,
        places: Sequence[Place],
        request: Callable[[Sequence[Place]], Any],
        *,
        what: str,
        wait_s: float = 0.0,
        version_max: int | None = None,
    ) -> list[Any]:
        """Send a request to each leader, about the partitions that it leads."""
        with told(what):
            return self.client.at_leaders(
                key, places, request, wait_s=wait_s, version_max=version_max
            )

    def has_one_leader(self, places: Iterable[Place]) -> bool:
        return self.client.has_one_leader(places)

    def coordinator(self, group: str, *, what: str) -> int:
        """Return the node that coordinates a group."""
        with told(what):
            return self.client.coordinator(group)

    def nodes(self) -> list[int]:
        with told():
            return self.client.nodes()

    def close(self) -> None:
        self.client.close()
