"""Apache Kafka's message schemas, read into a form that a generator can walk.

A schema is JSON with ``//`` comments: fields with a type, the versions that carry them, those in
which they may be null, a default, and perhaps a tag. Structs are nested in place or shared by name.
What is made of them is up to ``kafka_codec``.
"""

import json
import re
import struct
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FIXED = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
EVER = 32_767


@dataclass(frozen=True)
class Versions:
    first: int
    last: int

    @classmethod
    def parse(cls, text: str | None) -> "Versions":
        if text is None or text == "none":
            return cls(1, 0)
        if text.endswith("+"):
            return cls(int(text[:-1]), EVER)
        first, _, last = text.partition("-")
        return cls(int(first), int(last or first))

    def __contains__(self, version: int) -> bool:
        return self.first <= version <= self.last

    def meets(self, other: "Versions") -> bool:
        return max(self.first, other.first) <= min(self.last, other.last)

    def __str__(self) -> str:
        if self.last == EVER:
            return f"{self.first}+"
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


@dataclass
class Struct:
    name: str  # the class we write
    fields: list["Field"] = field(default_factory=list)


@dataclass
class Field:
    name: str
    type: str  # of the element, if it is an array
    is_array: bool
    struct: Struct | None
    versions: Versions
    nullable: Versions
    tagged: Versions
    tag: int
    default: str
    is_ignorable: bool

    @property
    def may_be_null(self) -> bool:
        return self.nullable.first <= self.nullable.last

    @property
    def is_fixed(self) -> bool:
        return not self.is_array and self.type in FIXED


@dataclass
class Schema:
    name: str
    key: int | None
    valid: Versions
    flexible: Versions
    root: Struct
    structs: list[Struct]  # inner ones first

    @property
    def is_request(self) -> bool:
        return self.name.endswith("Request")


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


class Source:
    """The schema files, from a jar or from a folder."""

    def __init__(self, path: Path) -> None:
        self._folder = path if path.is_dir() else None
        self._jar = None if path.is_dir() else zipfile.ZipFile(path)
        found = re.search(r"(\d+\.\d+\.\d+)", path.name)
        self.release = found.group(1) if found else "4.x"

    def load(self, name: str) -> dict[str, Any]:
        if self._jar is not None:
            text = self._jar.read(f"common/message/{name}.json").decode()
        else:
            assert self._folder is not None
            text = (self._folder / f"{name}.json").read_text()
        value: dict[str, Any] = json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.M))
        return value


def parse_schema(raw: dict[str, Any], taken: Counter[str]) -> Schema:
    """``taken`` counts the struct names of all messages in the module: a name used by two of them
    is written with the message's name in front."""
    valid = Versions.parse(raw["validVersions"])
    if raw.get("latestVersionUnstable"):
        valid = Versions(valid.first, valid.last - 1)
    structs: dict[str, Struct] = {}

    def make_struct(name: str, fields: list[dict[str, Any]]) -> Struct:
        if name not in structs:
            made = Struct(raw["name"] + name if taken[name] > 1 else name)
            made.fields = [make_field(each) for each in fields]
            structs[name] = made
        return structs[name]

    def make_field(each: dict[str, Any]) -> Field:
        is_array = each["type"].startswith("[]")
        kind = each["type"].removeprefix("[]")
        inner = None
        if kind[0].isupper():
            inner = make_struct(kind, each.get("fields") or shared[kind])
        nullable = Versions.parse(each.get("nullableVersions"))
        versions = Versions.parse(each["versions"])
        if not nullable.meets(valid):
            nullable = Versions(1, 0)
        made = Field(
            name=snake(each["name"]),
            type=inner.name if inner else kind,
            is_array=is_array,
            struct=inner,
            versions=versions,
            nullable=nullable,
            tagged=Versions.parse(each.get("taggedVersions")),
            tag=each.get("tag", -1),
            default="",
            is_ignorable=bool(each.get("ignorable", False)),
        )
        made.default = default_of(made, each.get("default"))
        return made

    shared = {each["name"]: each["fields"] for each in raw.get("commonStructs", ())}
    root = Struct(raw["name"], [make_field(each) for each in raw["fields"]])
    flexible = Versions.parse(raw["flexibleVersions"])
    return Schema(raw["name"], raw.get("apiKey"), valid, flexible, root, [*structs.values(), root])


def default_of(made: Field, given: Any) -> str:
    if given == "null":
        return "None"
    if made.is_array:
        return "()"
    if made.struct:
        return f"{made.struct.name}()"
    if made.type in ("bytes", "records"):
        return 'b""'
    if made.type == "uuid":
        return "ZERO_UUID"
    if made.type == "bool":
        return str(str(given).lower() == "true")
    if made.type == "string":
        return repr("" if given is None else given).replace("'", '"')
    if made.type == "float64":
        return repr(float(given or 0))
    return str(int(str(given or 0), 0))


def struct_names(raw: dict[str, Any]) -> set[str]:
    names = {raw["name"]} | {each["name"] for each in raw.get("commonStructs", ())}

    def walk(fields: list[dict[str, Any]]) -> None:
        for each in fields:
            kind = each["type"].removeprefix("[]")
            if kind[0].isupper():
                names.add(kind)
            walk(each.get("fields", []))

    walk(raw["fields"])
    return names


def present(fields: Sequence[Field], version: int) -> Iterator[Field]:
    return (each for each in fields if version in each.versions and version not in each.tagged)


def tagged(fields: Sequence[Field], version: int) -> list[Field]:
    found = [each for each in fields if version in each.versions and version in each.tagged]
    return sorted(found, key=lambda each: each.tag)


def smallest(fields: Sequence[Field], version: int, flexible: bool) -> int:
    """Bytes that a struct takes at least."""
    size = 1 if flexible else 0
    for each in present(fields, version):
        if each.is_fixed:
            size += struct.calcsize(">" + FIXED[each.type])
        elif flexible:
            size += 1
        elif each.struct and not each.is_array:
            size += 1 if version in each.nullable else smallest(each.struct.fields, version, False)
        else:
            size += 2 if each.type == "string" and not each.is_array else 4
    return size
