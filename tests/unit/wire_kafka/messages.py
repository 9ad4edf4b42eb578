"""What the tests of the Kafka codecs share: every message we can encode, values for them by
Hypothesis, and the vectors that other libraries made.

The generated structs carry their wire types and version ranges as annotations; values are built
from these, so that in each version exactly the fields it carries are filled."""

import json
import typing
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import strategies as st

from penstock.wire.kafka.apis import APIS

VECTORS = Path(__file__).with_name("vectors.json")
WIDTHS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}


class Shape(NamedTuple):
    """One kind of message with its codec."""

    name: str
    kind: Any
    versions: range
    encode: Callable[[Any, int], bytes]
    decode: Callable[[Any, int, int], Any]


def _shapes() -> dict[str, Shape]:
    shapes = {}
    for api in APIS.values():
        module = import_module(
            f"penstock.wire.kafka.{api.snake}"
            if api.name in ("Produce", "Fetch")
            else f"penstock.wire.kafka.generated.{api.snake}"
        )
        for role in ("Request", "Response"):
            shapes[api.name + role] = _shape(module, api.name + role, f"{api.snake}_{role.lower()}")
    for name in ("Subscription", "Assignment"):
        noun = f"consumer_protocol_{name.lower()}"
        module = import_module(f"penstock.wire.kafka.generated.{noun}")
        shapes["ConsumerProtocol" + name] = _shape(module, "ConsumerProtocol" + name, noun)
    return shapes


def _shape(module: Any, name: str, noun: str) -> Shape:
    return Shape(
        name,
        getattr(module, name),
        range(module.VERSION_MIN, module.VERSION_MAX + 1),
        getattr(module, f"encode_{noun}"),
        getattr(module, f"decode_{noun}"),
    )


SHAPES = _shapes()
BY_HAND = ("ProduceRequest", "ProduceResponse", "FetchRequest", "FetchResponse")
GENERATED = [name for name in SHAPES if name not in BY_HAND]


class Note(NamedTuple):
    """A field's annotation: wire type, versions, versions in which it may be null."""

    type: str
    versions: str
    nullable: str


def within(version: int, text: str) -> bool:
    if not text:
        return False
    if text.endswith("+"):
        return version >= int(text[:-1])
    first, _, last = text.partition("-")
    return int(first) <= version <= int(last or first)


@cache
def notes(kind: Any) -> dict[str, Note]:
    found = {}
    for name, hint in typing.get_type_hints(kind, include_extras=True).items():
        _, wire, versions, *rest = typing.get_args(hint)
        nullable = [each.removeprefix("null ") for each in rest if each.startswith("null ")]
        found[name] = Note(wire, versions, nullable[0] if nullable else "")
    return found


def inner(kind: Any, name: str) -> Any:
    return getattr(import_module(kind.__module__), name)


# ── Values ───────────────────────────────────────────────────────────────────────────────────

TEXTS = st.text(st.characters(codec="utf-8"), max_size=8) | st.just("x" * 200)
BLOBS = st.binary(max_size=16) | st.just(b"\x80" * 300)
UUIDS = st.binary(min_size=16, max_size=16)


@cache
def values(kind: Any, version: int) -> st.SearchStrategy[Any]:
    fields = {
        name: field_values(kind, note, version)
        for name, note in notes(kind).items()
        if within(version, note.versions)
    }
    return st.builds(kind, **fields)


def field_values(kind: Any, note: Note, version: int) -> st.SearchStrategy[Any]:
    made = (
        st.lists(element_values(kind, note.type[2:], version), max_size=3).map(tuple)
        if note.type.startswith("[]")
        else element_values(kind, note.type, version)
    )
    return st.none() | made if within(version, note.nullable) else made


def element_values(kind: Any, wire: str, version: int) -> st.SearchStrategy[Any]:
    if wire in WIDTHS:
        top = 1 << WIDTHS[wire]
        return st.integers(-top, top - 1)
    if wire == "uint16":
        return st.integers(0, 65_535)
    if wire == "bool":
        return st.booleans()
    if wire == "float64":
        return st.floats(allow_nan=False)
    if wire == "string":
        return TEXTS
    if wire == "uuid":
        return UUIDS
    if wire in ("bytes", "records"):
        return BLOBS
    return values(inner(kind, wire), version)


# ── Vectors ──────────────────────────────────────────────────────────────────────────────────


class Vector(NamedTuple):
    message: str
    version: int
    form: str
    value: dict[str, Any]
    raw: bytes

    @property
    def title(self) -> str:
        return f"{self.message} {self.version} {self.form}"


@cache
def vectors() -> tuple[Vector, ...]:
    return tuple(
        Vector(row["message"], row["version"], row["form"], row["value"], bytes.fromhex(row["hex"]))
        for row in json.loads(VECTORS.read_text())
    )


def build(kind: Any, plain: dict[str, Any]) -> Any:
    """A generated struct from the plain values of a vector."""
    known = notes(kind)
    return kind(**{name: _convert(kind, known[name].type, each) for name, each in plain.items()})


def _convert(kind: Any, wire: str, plain: Any) -> Any:
    if plain is None:
        return None
    if wire.startswith("[]"):
        return tuple(_convert(kind, wire[2:], each) for each in plain)
    if wire in ("bytes", "records", "uuid"):
        return bytes.fromhex(plain)
    if wire[0].isupper():
        return build(inner(kind, wire), plain)
    return plain
