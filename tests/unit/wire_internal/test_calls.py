"""What a call carries, and how an error crosses from one node to another."""

import inspect
from types import ModuleType

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.metadata.serving import calls as metadata_calls
from penstock.metadata.store import Compacted
from penstock.model import errors
from penstock.model.errors import (
    Conflict,
    Damaged,
    InvalidRequest,
    OffsetOutOfRange,
    PenstockError,
    ProducerRefused,
    Throttled,
    TopicNotFound,
    VersionConflict,
)
from penstock.wire.internal import broker_calls, node_calls
from penstock.wire.internal.calls import PING, Call, CallerInfo, CallHandlers, encode
from penstock.wire.internal.faults import (
    TEXT_CHARS_MAX,
    Failure,
    MalformedFrame,
    PeerFailed,
    Scalar,
    decode_failure,
    encode_failure,
)


class Question(msgspec.Struct, frozen=True, array_like=True):
    text: str
    count: int = 1


class Reply(msgspec.Struct, frozen=True, array_like=True):
    text: str


ASK = Call(0x7001, "test.ask", Question, Reply, is_idempotent=True)


def crossed(error: BaseException, **more: type[PenstockError]) -> PenstockError:
    return decode_failure(encode_failure(error), more=more)


@settings(max_examples=50, deadline=None)
@given(st.builds(Question, st.text(), st.integers(-(2**63), 2**63 - 1)))
def test_a_request_is_read_as_it_was_written(question: Question) -> None:
    assert ASK.decode_request(encode(question)) == question


def test_a_payload_may_grow_at_its_end() -> None:
    assert ASK.decode_request(msgspec.msgpack.encode(["old"])) == Question("old", 1)
    assert ASK.decode_request(msgspec.msgpack.encode(["new", 2, "more"])) == Question("new", 2)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60))
def test_an_unreadable_request_is_the_callers_fault_and_an_unreadable_reply_the_peers(
    payload: bytes,
) -> None:
    try:
        assert isinstance(ASK.decode_request(payload), Question)
    except InvalidRequest:
        pass
    try:
        assert isinstance(ASK.decode_reply(payload), Reply)
    except MalformedFrame:
        pass
    for unreadable in (payload[:0], b"\x93\x01", b"\xc1" + payload):
        with pytest.raises(InvalidRequest, match=r"test\.ask"):
            ASK.decode_request(unreadable)


def test_a_call_is_answered_by_one_handler() -> None:
    answers = CallHandlers()
    answers.add(ASK, lambda question, _asked: Reply(question.text))
    found = answers.find(ASK.number)
    assert found is not None
    call, handler = found
    assert call is ASK
    assert handler(Question("x"), CallerInfo("n1", 100)) == Reply("x")
    assert answers.find(0x7002) is None
    with pytest.raises(AssertionError):
        answers.add(ASK, lambda question, _asked: Reply(""))
    with pytest.raises(AssertionError):
        answers.add(PING, lambda nothing, _asked: nothing)


@pytest.mark.parametrize(
    ("module", "first", "last", "count"),
    [
        (metadata_calls, 0x0100, 0x01FF, 8),
        (broker_calls, 0x0200, 0x02FF, 3),  # and those of its table: test_broker_calls.py
        (node_calls, 0x0300, 0x05FF, 8),
    ],
)
def test_numbers_of_calls_are_the_roles_own_and_different(
    module: ModuleType, first: int, last: int, count: int
) -> None:
    calls = [one for one in vars(module).values() if isinstance(one, Call) and one is not PING]
    assert len(calls) == count
    assert all(first <= call.number <= last for call in calls)
    assert len({call.number for call in calls}) == count
    assert len({call.name for call in calls}) == count


# ── Errors ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "error",
    [
        TopicNotFound("orders"),
        Throttled("slow down", retry_after_ms=250),
        OffsetOutOfRange(5, 10, 20),
        ProducerRefused(47, "an old epoch"),
        Damaged("00.log", 12, "crc"),
        VersionConflict("/topics/x is at version 3, not 2."),
    ],
)
def test_an_error_arrives_with_its_class_its_text_and_its_fields(error: PenstockError) -> None:
    there = crossed(error)
    assert type(there) is type(error)
    assert str(there) == str(error)
    assert vars(there) == vars(error)


def test_every_class_of_the_tree_crosses() -> None:
    classes = [
        one
        for one in vars(errors).values()
        if inspect.isclass(one) and issubclass(one, PenstockError)
    ]
    assert len(classes) > 20
    for one in classes:
        assert type(crossed(one.__new__(one, "why"))) is one


def test_an_error_that_is_not_known_there_is_the_nearest_one_that_is() -> None:
    class BrandNew(VersionConflict):
        pass

    there = crossed(BrandNew("newer"))
    assert type(there) is VersionConflict
    payload = msgspec.msgpack.encode(Failure(("Newest", "Newer", "Conflict"), "text"))
    assert type(decode_failure(payload, more={})) is Conflict
    payload = msgspec.msgpack.encode(Failure(("Nobody",), "text"))
    assert type(decode_failure(payload, more={})) is PenstockError


def test_a_calls_own_errors_are_known_by_that_call() -> None:
    there = crossed(Compacted(17), Compacted=Compacted)
    assert isinstance(there, Compacted)
    assert there.oldest_revision == 17
    assert type(crossed(Compacted(17))) is PenstockError


def test_a_bug_is_told_without_its_text() -> None:
    there = crossed(KeyError("secret-in-a-key"))
    assert isinstance(there, PeerFailed)
    assert "secret" not in str(there)


def test_what_an_error_carries_has_a_bound_and_never_keeps_it_from_leaving() -> None:
    error = Throttled("x" * 10_000 + "\ud800", retry_after_ms=2**80)
    error.__dict__.update({f"f{n}": n for n in range(100)}, _private=1, odd=object(), bad="\ud800")
    there = crossed(error)
    assert len(str(there)) == TEXT_CHARS_MAX
    assert len(vars(there)) <= 16
    assert "_private" not in vars(there)


def test_an_error_from_afar_keeps_what_every_exception_has() -> None:
    fields: dict[str, Scalar] = {
        "args": 5,
        "with_traceback": 1,
        "__cause__": 2,
        "retry_after_ms": 7,
    }
    payload = msgspec.msgpack.encode(Failure(("Throttled",), "text", fields))
    there = decode_failure(payload, more={})
    assert vars(there) == {"retry_after_ms": 7}
    assert str(there) == "text"
    assert there.with_traceback(None) is there


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=80))
def test_an_unreadable_error_is_malformed(payload: bytes) -> None:
    try:
        assert isinstance(decode_failure(payload, more={}), PenstockError)
    except MalformedFrame:
        pass
