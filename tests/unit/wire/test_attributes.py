import hashlib
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.message import Attribute
from penstock.wire.aws import attributes
from penstock.wire.aws.faults import Fault
from penstock.wire.aws.shapes import MessageAttributeValue


def text(value: str, data_type: str = "String") -> MessageAttributeValue:
    return MessageAttributeValue(data_type=data_type, string_value=value)


def refusal_of(values: dict[str, MessageAttributeValue]) -> Fault:
    with pytest.raises(Fault) as caught:
        attributes.read_attributes(values)
    return caught.value


# ── MD5 ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "attribute", "expected"),
    [
        (
            "attribName1",
            Attribute("String", b"attribValue 1"),
            "19e27d4e946b072f3f58da80d94fd778",
        ),
        (
            "binaryAttribute",
            Attribute("Binary", b"Hello binary world!"),
            "31a92b15d92f8db860eda32aceb656c3",
        ),
    ],
)
def test_the_md5_of_attributes_is_what_clients_compute(
    name: str, attribute: Attribute, expected: str
) -> None:
    assert attributes.md5_of_attributes({name: attribute}) == expected


def test_attributes_are_hashed_in_the_order_of_their_names_with_their_full_types() -> None:
    given_attributes = {
        "b": Attribute("Number.float", b"1.5"),
        "a": Attribute("Binary.png", b"\x00"),
        "B": Attribute("String", "ü".encode()),
    }
    layout = b""
    for name, data_type, kind, value in [
        (b"B", b"String", 1, "ü".encode()),
        (b"a", b"Binary.png", 2, b"\x00"),
        (b"b", b"Number.float", 1, b"1.5"),
    ]:
        for part in (name, data_type):
            layout += struct.pack(">I", len(part)) + part
        layout += bytes([kind]) + struct.pack(">I", len(value)) + value
    assert attributes.md5_of_attributes(given_attributes) == hashlib.md5(layout).hexdigest()


def test_the_md5_of_a_body_is_that_of_its_bytes() -> None:
    assert attributes.md5_of_body(b"hello") == "5d41402abc4b2a76b9719d911017c592"


# ── Bodies ───────────────────────────────────────────────────────────────────────────────────


def is_allowed(character: str) -> bool:
    code = ord(character)
    return (
        code in (0x9, 0xA, 0xD)
        or 0x20 <= code <= 0xD7FF
        or 0xE000 <= code <= 0xFFFD
        or code >= 0x10000
    )


@settings(max_examples=200)
@given(body=st.text(st.characters(exclude_categories=()), min_size=1, max_size=30))
def test_a_body_is_taken_exactly_when_xml_can_carry_it(body: str) -> None:
    try:
        taken = attributes.body_bytes(body)
    except Fault as refusal:
        shape, taken = refusal.shape, b""
    else:
        shape = ""
    if all(map(is_allowed, body)):
        assert taken == body.encode()
    else:
        assert shape == "InvalidMessageContents"


@pytest.mark.parametrize("code", [0x0, 0x8, 0xB, 0xC, 0xE, 0x1F, 0xD800, 0xDFFF, 0xFFFE, 0xFFFF])
def test_each_forbidden_character_is_refused(code: int) -> None:
    with pytest.raises(Fault, match="Invalid characters found"):
        attributes.body_bytes("a" + chr(code))


@pytest.mark.parametrize("code", [0x9, 0xA, 0xD, 0x20, 0x7F, 0xD7FF, 0xE000, 0xFFFD, 0x10000])
def test_each_allowed_edge_is_taken(code: int) -> None:
    assert attributes.body_bytes(chr(code)) == chr(code).encode()


@pytest.mark.parametrize("body", [None, ""])
def test_an_empty_body_is_a_missing_one(body: str | None) -> None:
    with pytest.raises(Fault) as caught:
        attributes.body_bytes(body)
    assert caught.value.code == "MissingParameter"


def test_names_types_and_values_count_towards_the_size() -> None:
    assert attributes.message_bytes(b"12345", None) == 5
    assert attributes.message_bytes(b"12345", {"ab": Attribute("String", b"xyz")}) == 5 + 2 + 6 + 3


# ── Sending ──────────────────────────────────────────────────────────────────────────────────


def test_good_attributes_are_taken_as_bytes() -> None:
    values = {
        "a.b-c_1": text("ü"),
        "n": text("-1.5e3", "Number.float"),
        "b": MessageAttributeValue(data_type="Binary.png", binary_value=b"\x00"),
    }
    assert attributes.read_attributes(values) == {
        "a.b-c_1": Attribute("String", "ü".encode()),
        "n": Attribute("Number.float", b"-1.5e3"),
        "b": Attribute("Binary.png", b"\x00"),
    }
    assert attributes.read_attributes(None) is None
    assert attributes.read_attributes({}) is None


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a" * 257,
        "§",
        "a b",
        ".a",
        "a.",
        "a..b",
        "AWS.a",
        "aws.a",
        "Amazon.x",
        "aMAZON.x",
        "a/b",
    ],
)
def test_a_bad_name_is_refused(name: str) -> None:
    assert refusal_of({name: text("v")}).code == "InvalidParameterValue"


def test_a_name_may_have_letters_of_any_script_and_counts_by_its_bytes() -> None:
    taken = attributes.read_attributes({"größe.1": text("v")})
    assert taken is not None
    assert attributes.message_bytes(b"", taken) == len("größe.1".encode()) + len("String") + 1


@pytest.mark.parametrize("name", ["AWS", "amazon", "awsome.x", "a" * 256])
def test_a_name_that_only_resembles_a_reserved_one_is_taken(name: str) -> None:
    assert attributes.read_attributes({name: text("v")})


@pytest.mark.parametrize(
    "value",
    [
        MessageAttributeValue(),
        MessageAttributeValue(data_type=""),
        text("v", "Text"),
        text("v", "string"),
        text("v", "String."),
        text("v", "Stringy"),
        text("v", "String." + "x" * 256),
        text("v", "String.\x00"),
        text(""),
        text("", "Number"),
        MessageAttributeValue(data_type="String"),
        MessageAttributeValue(data_type="Binary"),
        MessageAttributeValue(data_type="Binary", binary_value=b""),
        MessageAttributeValue(data_type="Binary", string_value="v"),
        MessageAttributeValue(data_type="String", binary_value=b"v"),
        MessageAttributeValue(data_type="String", string_value="v", string_list_values=["v"]),
    ],
)
def test_a_bad_type_or_value_is_refused(value: MessageAttributeValue) -> None:
    assert refusal_of({"a": value}).code == "InvalidParameterValue"


def test_a_text_value_must_be_made_of_allowed_characters() -> None:
    assert refusal_of({"a": text("\x00")}).code == "InvalidParameterValue"


@pytest.mark.parametrize("number", ["0", "-1", "+1", "1.", ".5", "1e126", "0" * 60 + "1", "9" * 38])
def test_numbers_are_taken(number: str) -> None:
    assert attributes.read_attributes({"a": text(number, "Number")})


@pytest.mark.parametrize(
    "number",
    ["x", "1x", "", ".", "-", "e5", "1e127", "1e9999", "٣", "9" * 39, "0" * 999, " 1"],
)
def test_what_is_no_number_of_38_digits_is_refused(number: str) -> None:
    assert refusal_of({"a": text(number, "Number")}).code == "InvalidParameterValue"


def test_eleven_attributes_are_one_too_many() -> None:
    values = {f"a{i}": text("v") for i in range(11)}
    assert "[11] exceeds the allowed maximum [10]" in refusal_of(values).message
    del values["a0"]
    assert len(attributes.read_attributes(values) or ()) == 10


def test_only_the_trace_header_can_be_sent_as_a_system_attribute() -> None:
    trace = attributes.read_trace_header({"AWSTraceHeader": text("Root=1")})
    assert trace == Attribute("String", b"Root=1")
    assert attributes.read_trace_header(None) is None
    for values in (
        {"SenderId": text("me")},
        {"AWSTraceHeader": text("1", "Number")},
        {"AWSTraceHeader": text("")},
        {"AWSTraceHeader": text("Root=1"), "SenderId": text("me")},
    ):
        with pytest.raises(Fault) as caught:
            attributes.read_trace_header(values)
        assert caught.value.code == "InvalidParameterValue"


# ── Receiving ────────────────────────────────────────────────────────────────────────────────

HELD = {name: Attribute("String", b"v") for name in ("a", "a.b", "ab", "c")}


@pytest.mark.parametrize(
    ("names", "selected"),
    [
        ([], []),
        (["All"], ["a", "a.b", "ab", "c"]),
        ([".*"], ["a", "a.b", "ab", "c"]),
        (["*"], ["a", "a.b", "ab", "c"]),
        (["c", "a"], ["a", "c"]),
        (["nobody"], []),
        (["nobody", "All"], ["a", "a.b", "ab", "c"]),
        (["a.*"], ["a", "a.b", "ab"]),
        (["a.b.*", "c"], ["a.b", "c"]),
        (["all"], []),
    ],
)
def test_attributes_are_selected_by_name_prefix_or_all(
    names: list[str], selected: list[str]
) -> None:
    assert list(attributes.select(HELD, names)) == selected
    assert attributes.select(None, names) == {}


def test_what_was_sent_is_shown_again() -> None:
    values = {
        "t": text("ü"),
        "b": MessageAttributeValue(data_type="Binary", binary_value=b"\xff"),
    }
    held = attributes.read_attributes(values)
    assert held is not None
    assert attributes.write_attributes(held) == values
