"""The generator on a schema that has everything, also what no API of ours uses today."""

import importlib.util
import json
import sys
from collections import Counter
from typing import Any

import pytest
from tools import kafka_messages

from penstock.wire.kafka.fields import Versions
from penstock.wire.kafka.primitives import Malformed, Unencodable, UnsupportedVersion

FIELDS: list[dict[str, Any]] = [
    {"name": "Count", "type": "uint16", "versions": "0+"},
    {"name": "Ratio", "type": "float64", "versions": "1+", "default": "0.5", "ignorable": True},
    {"name": "Mask", "type": "uint32", "versions": "0-1", "default": "0x10", "ignorable": True},
    {"name": "Names", "type": "[]string", "versions": "0+", "nullableVersions": "1+"},
    {"name": "Ids", "type": "[]uuid", "versions": "0+"},
    {"name": "Blob", "type": "bytes", "versions": "0+", "nullableVersions": "0+"},
    {
        "name": "Place",
        "type": "Place",
        "versions": "1+",
        "nullableVersions": "1+",
        "default": "null",
        "fields": [{"name": "Row", "type": "int8", "versions": "0+", "default": "-1"}],
    },
    {
        "name": "Note",
        "type": "string",
        "versions": "2+",
        "taggedVersions": "2+",
        "tag": 5,
        "default": "none",
    },
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The module generated from the schema, imported."""
    home = tmp_path_factory.mktemp("schemas")
    schema = {
        "apiKey": 999,
        "type": "request",
        "name": "ThingRequest",
        "validVersions": "0-2",
        "flexibleVersions": "2+",
        "fields": FIELDS,
    }
    text = "// a licence\n" + json.dumps(schema, indent=1)
    (home / "ThingRequest.json").write_text(text)
    raw = kafka_messages.Source(home).load("ThingRequest")
    parsed = kafka_messages.parse_schema(raw, Counter(kafka_messages.struct_names(raw)))
    path = home / "thing.py"
    path.write_text(kafka_messages.write_module([parsed], "Thing", "0.0.0"))
    spec = importlib.util.spec_from_file_location("thing_generated", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["thing_generated"] = module
    spec.loader.exec_module(module)
    return module


def test_every_type_is_read_back_in_the_versions_that_have_it(made: Any) -> None:
    value = made.ThingRequest(
        count=65_535,
        ratio=2.25,
        names=("a", ""),
        ids=(b"i" * 16,),
        blob=b"",
        place=made.Place(3),
        note="x",
    )
    assert made.decode_thing_request(made.encode_thing_request(value, 2), 0, 2) == value
    small = made.ThingRequest(count=1, mask=2**32 - 1, names=("b",), blob=None)
    assert made.decode_thing_request(made.encode_thing_request(small, 0), 0, 0) == small


def test_layouts_are_byte_for_byte_what_the_schema_says(made: Any) -> None:
    value = made.ThingRequest(count=1, names=("b",), ids=(b"i" * 16,), blob=None)
    assert made.encode_thing_request(value, 0) == (
        b"\x00\x01" + b"\x00\x00\x00\x10" + b"\x00\x00\x00\x01\x00\x01b"
        b"\x00\x00\x00\x01" + b"i" * 16 + b"\xff\xff\xff\xff"
    )
    assert made.encode_thing_request(value, 2) == (
        b"\x00\x01" + b"\x3f\xe0" + bytes(6) + b"\x02\x02b" + b"\x02" + b"i" * 16 + b"\x00\xff\x00"
    )


def test_defaults_are_those_of_the_schema(made: Any) -> None:
    value = made.ThingRequest()
    assert (value.ratio, value.mask, value.place, value.note) == (0.5, 16, None, "none")
    assert made.Place().row == -1


def test_a_default_in_a_tagged_field_is_not_written(made: Any) -> None:
    assert made.encode_thing_request(made.ThingRequest(), 2).endswith(b"\x00")
    tagged = made.encode_thing_request(made.ThingRequest(note=""), 2)
    assert tagged.endswith(b"\x01\x05\x01\x01")


def test_what_a_version_cannot_carry_is_refused(made: Any) -> None:
    with pytest.raises(UnsupportedVersion, match="place"):
        made.encode_thing_request(made.ThingRequest(place=made.Place()), 0)
    with pytest.raises(Unencodable, match="names"):
        made.encode_thing_request(made.ThingRequest(names=None), 0)
    with pytest.raises(Malformed):
        made.decode_thing_request(bytes(6) + b"\xff\xff\xff\xff", 0, 0)


def test_comments_and_version_ranges_are_understood() -> None:
    ranges = [str(Versions.parse(text)) for text in ("3", "0-4", "7+")]
    assert ranges == ["3", "0-4", "7+"]
    assert 0 not in Versions.parse("none")
    assert kafka_messages.snake("ZkMigrationReady") == "zk_migration_ready"
    assert kafka_messages.snake("IsKRaft") == "is_k_raft"
