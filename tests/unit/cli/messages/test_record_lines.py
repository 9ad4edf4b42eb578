"""Records as lines: what is printed can be sent, what is strange is refused, keys go where Kafka's
own producers send them."""

import json
import os
import signal
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.messages.producing import (
    OutgoingRecord,
    as_item,
    as_text,
    from_json,
    from_text,
    header_from_flag,
    murmur2,
    partition_of_key,
)
from penstock.cli.messages.sending import Interrupts
from penstock.cli.terminal.failure import ExitCode, Failure
from penstock.record.record import RawRecord

NOTHING = OutgoingRecord()
some_bytes = st.none() | st.binary(max_size=20)
headers = st.lists(st.tuples(st.text(max_size=5).map(str.encode), some_bytes), max_size=3)


@given(some_bytes, some_bytes, headers, st.integers(0, 100))
def test_what_is_printed_is_sent_as_it_was(
    key: bytes | None, value: bytes | None, headers: list[tuple[bytes, bytes | None]], number: int
) -> None:
    printed = as_item("t", number, RawRecord(7, 1_000, key, value, headers))
    sent = from_json(1, json.dumps(printed), NOTHING)
    assert sent == OutgoingRecord(1, key, value, tuple(headers), number)


def test_flags_are_for_what_a_line_leaves_open() -> None:
    flags = OutgoingRecord(0, b"k", None, ((b"a", b"1"),), 3)
    assert from_text(1, "v", flags) == OutgoingRecord(1, b"k", b"v", ((b"a", b"1"),), 3)
    line = '{"value": null, "key": null, "headers": {"b": "2"}, "partition": 0}'
    assert from_json(2, line, flags) == (2, None, None, ((b"a", b"1"), (b"b", b"2")), 0)


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "[]",
        "{}",
        '{"key": "a"}',
        '{"value": 7}',
        '{"value": "v", "kye": "a"}',
        '{"value": "v", "partition": "0"}',
        '{"value": "v", "partition": true}',
        '{"value": "v", "headers": 7}',
        '{"value": "v", "headers": ["a"]}',
        '{"value": "v", "headers": [{"value": "a"}]}',
        '{"value": "v", "headers": [{"name": "a", "values": "b"}]}',
        '{"value_base64": "?"}',
        '{"value_base64": 7}',
    ],
)
def test_a_line_that_is_no_record_is_named(line: str) -> None:
    with pytest.raises(Failure, match="line 9") as caught:
        from_json(9, line, NOTHING)
    assert caught.value.exit_code is ExitCode.USAGE
    assert caught.value.why


def test_a_header_on_the_command_line_has_a_name() -> None:
    assert header_from_flag("a=b=c") == (b"a", b"b=c")
    for wrong in ("a", "=b"):
        with pytest.raises(Failure):
            header_from_flag(wrong)


def test_a_line_for_people_has_key_headers_and_value() -> None:
    record = RawRecord(5, 0, b"ann", b"hi", [(b"penstock", b"\x93"), (b"a", b"b"), (b"n", None)])
    assert as_text(2, record) == "2:5  1970-01-01T00:00:00.000Z  ann  a=b n=(null)  hi"
    assert as_text(0, RawRecord(0, 2**62, None, b"\xff", ())).endswith("  -  base64:/w==")


def test_keys_go_where_other_producers_send_them() -> None:
    """Values of Kafka's own test of its hash, and those of another client."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from kafka.partitioner.default import murmur2 as theirs
    for key in (b"", b"a", b"21", b"foobar", b"a-little-bit-long-string", bytes(range(256))):
        assert murmur2(key) & 0x7FFF_FFFF == theirs(key) & 0x7FFF_FFFF
        assert 0 <= partition_of_key(key, 7) < 7
    assert murmur2(b"21") == (-973_932_308) & 0xFFFF_FFFF


def interrupted(steps: list[str], *, times: int, is_held: bool) -> None:
    with Interrupts() as interrupts:
        if is_held:
            with interrupts.held():
                for _ in range(times):
                    os.kill(os.getpid(), signal.SIGINT)
                steps.append("step")
        else:
            os.kill(os.getpid(), signal.SIGINT)
        steps.append("after")


@pytest.mark.parametrize(
    ("times", "is_held", "done"), [(1, True, ["step"]), (2, True, []), (1, False, [])]
)
def test_an_interrupt_waits_for_the_step_and_a_second_one_does_not(
    times: int, is_held: bool, done: list[str]
) -> None:
    steps: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        interrupted(steps, times=times, is_held=is_held)
    assert steps == done
