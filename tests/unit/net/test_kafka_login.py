"""Settings of a Kafka client: what they are read from, what they refuse, and that they travel."""

import pickle
import ssl
from collections.abc import Mapping
from pathlib import Path

import pytest

from penstock.net.kafka_client.errors import KafkaRefused
from penstock.net.kafka_client.node import Security, SecurityInvalid, log_in, security_from
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.sasl_authenticate import SaslAuthenticateResponse
from penstock.wire.kafka.generated.sasl_handshake import SaslHandshakeResponse

SASL = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "u",
    "sasl.password": "p",
}


def test_nothing_said_is_a_listener_in_the_clear() -> None:
    assert security_from({"bootstrap.servers": "x:1"}) == Security()
    assert not Security().is_tls
    assert not Security().is_sasl


def test_properties_as_other_clients_are_given_them() -> None:
    made = security_from(
        {
            **SASL,
            "ssl.ca.location": "ca.pem",
            "ssl.certificate.location": "me.pem",
            "ssl.key.location": "me-key.pem",
            "ssl.endpoint.identification.algorithm": "none",
            "linger.ms": "5",
        }
    )
    assert made == Security("SASL_SSL", "PLAIN", "u", "p", "ca.pem", "me.pem", "me-key.pem", False)


def test_the_spellings_of_other_clients_are_known() -> None:
    named = {**SASL, "security.protocol": "sasl_ssl", "sasl.mechanisms": "scram-sha-256"}
    del named["sasl.mechanism"]
    assert security_from(named).mechanism == "SCRAM-SHA-256"
    jaas = (
        "org.apache.kafka.common.security.scram.ScramLoginModule required"
        ' username="ann" password="a \\"quoted\\" word";'
    )
    made = security_from({"security.protocol": "SASL_PLAINTEXT", "sasl.jaas.config": jaas})
    assert (made.user, made.password, made.mechanism) == ("ann", 'a "quoted" word', "SCRAM-SHA-512")


@pytest.mark.parametrize(
    ("properties", "why"),
    [
        ({"security.protocol": "TLS"}, "not one of PLAINTEXT"),
        ({**SASL, "sasl.mechanism": "GSSAPI"}, "not one of PLAIN"),
        ({**SASL, "sasl.username": ""}, "needs a user"),
        ({**SASL, "sasl.password": "a\0b"}, "zero byte"),
        ({"sasl.kerberos.service.name": "kafka"}, "sasl.kerberos.service.name is not supported"),
        ({"ssl.endpoint.identification.algorithm": "maybe"}, "https or none"),
        ({"ssl.key.location": "key.pem"}, "without a certificate"),
    ],
)
def test_a_setting_that_would_not_count_is_refused(properties: Mapping[str, str], why: str) -> None:
    with pytest.raises(SecurityInvalid, match=why):
        security_from(properties)


def test_it_travels_and_does_not_show_the_password() -> None:
    made = security_from({**SASL, "sasl.password": "hush-hush"})
    assert pickle.loads(pickle.dumps(made)) == made
    assert "hush-hush" not in repr(made)
    assert "hush-hush" not in str(made)


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    with pytest.raises(SecurityInvalid, match=r"gone\.pem"):
        Security("SSL", ca_file=str(tmp_path / "gone.pem")).tls_context()
    broken = tmp_path / "broken.pem"
    broken.write_text("not a certificate")
    with pytest.raises(SecurityInvalid, match=r"broken\.pem"):
        Security("SSL", certificate_file=str(broken)).tls_context()


def test_a_server_is_always_asked_for_a_certificate_that_somebody_vouches_for() -> None:
    for is_checked in (True, False):
        context = Security("SSL", is_hostname_checked=is_checked).tls_context()
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.check_hostname is is_checked
        assert context.minimum_version >= ssl.TLSVersion.TLSv1_2


def test_a_password_is_not_sent_when_the_mechanism_is_not_offered() -> None:
    asked: list[int] = []

    def call(key: int, _: object) -> object:
        asked.append(key)
        return SaslHandshakeResponse(
            ErrorCode.UNSUPPORTED_SASL_MECHANISM, ["SCRAM-SHA-256", "SCRAM-SHA-512"]
        )

    with pytest.raises(KafkaRefused, match="it supports: SCRAM-SHA-256, SCRAM-SHA-512"):
        log_in(Security("SASL_PLAINTEXT", "PLAIN", "u", "p"), call)
    assert asked == [17]


def test_a_server_that_only_pretends_to_know_the_password_is_not_believed() -> None:
    tokens = iter([b"r=guess,s=c2FsdA==,i=4096"])

    def call(key: int, _: object) -> object:
        if key == 17:
            return SaslHandshakeResponse(0, ["SCRAM-SHA-256"])
        return SaslAuthenticateResponse(auth_bytes=next(tokens), error_message=None)

    with pytest.raises(KafkaRefused, match="does not extend") as refused:
        log_in(Security("SASL_PLAINTEXT", "SCRAM-SHA-256", "u", "p"), call)
    assert refused.value.code == ErrorCode.SASL_AUTHENTICATION_FAILED
