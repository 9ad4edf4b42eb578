"""Finds address, protocol and credentials of the Kafka listener for a command.

The address is given (``--kafka``, PENSTOCK_KAFKA), or the endpoint reports it with its protocol. An
address may start with the protocol as Kafka writes it, ``SASL_SSL://HOST:PORT``. Without a
protocol, TLS is used if the endpoint uses it, and one request without log-in shows whether the
listener requires a log-in: such a listener closes the connection.

Log-ins use the same key as the SQS API, with SCRAM, which never sends the secret."""

from typing import NamedTuple

from penstock.cli.client import as_seen_from
from penstock.cli.credentials import ca_file, found_credentials
from penstock.cli.failure import ExitCode, Failure
from penstock.cli.kafka_client import ADDRESS_DEFAULT, Kafka, failure_of
from penstock.cli.session import Session
from penstock.net.kafka_client import HungUp, KafkaTrouble, Security
from penstock.net.kafka_login import PROTOCOLS
from penstock.wire.kafka.scram import SHA_512


class Listener(NamedTuple):
    address: str
    protocol: str  # empty: not known


def dialled(session: Session) -> Kafka:
    listener = _listener(session)
    protocol = listener.protocol
    if not protocol:
        is_tls = session.settings.endpoint.startswith("https:")
        protocol = "SSL" if is_tls else "PLAINTEXT"
        if found_credentials() is not None and _wants_log_in(session, listener.address, protocol):
            protocol = f"SASL_{protocol}"
    return _kafka(session, listener.address, protocol)


def _listener(session: Session) -> Listener:
    settings = session.settings
    if settings.kafka is not None:
        return parse_listener(settings.kafka)
    if settings.admin is None:
        told = session.sqs.info().get("kafka")
        if told:
            return parse_listener(as_seen_from(settings.endpoint, str(told)))
    info = session.admin.info()
    address = str((info.get("endpoints") or {}).get("kafka") or ADDRESS_DEFAULT)
    return Listener(as_seen_from(session.admin.url, address), str(info.get("kafka_protocol") or ""))


def parse_listener(text: str) -> Listener:
    """Parse ``HOST:PORT``, or ``PROTOCOL://HOST:PORT``."""
    protocol, mark, address = text.rpartition("://")
    if mark and protocol.upper() not in PROTOCOLS:
        raise Failure(
            f"'{text}' is not an address to talk to",
            f"{protocol} is none of {', '.join(PROTOCOLS)}",
            f"write it like {ADDRESS_DEFAULT} or SASL_SSL://{ADDRESS_DEFAULT}",
            exit_code=ExitCode.USAGE,
        )
    return Listener(address, protocol.upper())


def _wants_log_in(session: Session, address: str, protocol: str) -> bool:
    """Return True if a request without log-in is refused by closing the connection."""
    kafka = _kafka(session, address, protocol)
    try:
        kafka.client.nodes()
    except HungUp:
        return True
    except KafkaTrouble as error:
        raise failure_of(error) from error
    finally:
        kafka.close()
    return False


def _kafka(session: Session, address: str, protocol: str) -> Kafka:
    timeout_s = session.settings.timeout_s
    authority = (ca_file() or "") if protocol.endswith("SSL") else ""
    if not protocol.startswith("SASL_"):
        security = Security(protocol, ca_file=authority)
        return Kafka(address, timeout_s=timeout_s, security=security)
    found = found_credentials()
    if found is None:
        raise Failure(
            f"{address} wants to know who you are",
            "neither PENSTOCK_KEY_ID nor AWS_ACCESS_KEY_ID is set",
            "set PENSTOCK_KEY_ID and PENSTOCK_SECRET to an access key and its secret",
            exit_code=ExitCode.DENIED,
        )
    security = Security(protocol, SHA_512, found.key_id, found.secret, authority)
    return Kafka(address, timeout_s=timeout_s, security=security)
