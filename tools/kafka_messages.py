"""Writes the message classes of ``penstock.wire.kafka.generated`` from Apache Kafka's schemas.

    mvn dependency:copy -Dartifact=org.apache.kafka:kafka-clients:4.3.0 -DoutputDirectory=.
    python -m tools.kafka_messages kafka-clients-4.3.0.jar          writes the modules
    python -m tools.kafka_messages kafka-clients-4.3.0.jar --check  says whether they are current

The schemas are the JSON files under ``common/message/`` of the kafka-clients jar (Apache License
2.0); a folder that holds them will do as well. To move to another Kafka: pass its jar, read the
difference, and bring the version ranges in ``wire/kafka/apis.py`` along (a test compares them).

A schema is JSON with ``//`` comments: fields with a type, the versions that carry them, those in
which they may be null, a default, and perhaps a tag. Structs are nested in place or shared by name.
The classes note all of this on their fields; ``wire/kafka/compiler.py`` makes readers and writers
of it.
"""

import argparse
import io
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from penstock.wire.kafka.fields import NEVER, Field, Struct, Versions

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "src/penstock/wire/kafka/generated"

# Produce and Fetch are missing: they carry the records and are laid out by hand.
APIS = (
    "ApiVersions",
    "Metadata",
    "ListOffsets",
    "FindCoordinator",
    "OffsetCommit",
    "OffsetFetch",
    "OffsetDelete",
    "JoinGroup",
    "SyncGroup",
    "Heartbeat",
    "LeaveGroup",
    "DescribeGroups",
    "ListGroups",
    "DeleteGroups",
    "InitProducerId",
    "AddPartitionsToTxn",
    "AddOffsetsToTxn",
    "EndTxn",
    "WriteTxnMarkers",
    "TxnOffsetCommit",
    "OffsetForLeaderEpoch",
    "SaslHandshake",
    "SaslAuthenticate",
    "CreateTopics",
    "DeleteTopics",
    "CreatePartitions",
    "DeleteRecords",
    "DescribeConfigs",
    "AlterConfigs",
    "IncrementalAlterConfigs",
    "ListConfigResources",
    "DescribeClientQuotas",
    "AlterClientQuotas",
    "DescribeAcls",
    "CreateAcls",
    "DeleteAcls",
    "DescribeUserScramCredentials",
    "AlterUserScramCredentials",
    "CreateDelegationToken",
    "RenewDelegationToken",
    "ExpireDelegationToken",
    "DescribeDelegationToken",
    "DescribeCluster",
    "DescribeTopicPartitions",
    "DescribeLogDirs",
    "DescribeProducers",
    "DescribeTransactions",
    "ListTransactions",
    "ElectLeaders",
    "AlterPartitionReassignments",
    "ListPartitionReassignments",
    "AlterReplicaLogDirs",
    "DescribeQuorum",
    "UpdateFeatures",
    "UnregisterBroker",
    "ConsumerGroupHeartbeat",
    "ConsumerGroupDescribe",
    "ShareGroupHeartbeat",
    "ShareGroupDescribe",
    "ShareFetch",
    "ShareAcknowledge",
    "DescribeShareGroupOffsets",
    "AlterShareGroupOffsets",
    "DeleteShareGroupOffsets",
    "StreamsGroupHeartbeat",
    "StreamsGroupDescribe",
)
EMBEDDED = ("ConsumerProtocolSubscription", "ConsumerProtocolAssignment")

PYTHON = {
    "bool": "bool",
    "float64": "float",
    "uuid": "bytes",
    "string": "str",
    "bytes": "bytes",
    "records": "bytes | memoryview",
}


@dataclass
class Schema:
    name: str
    key: int | None
    valid: Versions
    flexible: Versions
    structs: list[Struct]  # inner ones first, the message itself last

    @property
    def flexible_from(self) -> int | None:
        return self.flexible.first if self.flexible.meets(self.valid) else None


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


# ── Schemas ──────────────────────────────────────────────────────────────────────────────────


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
            made = tuple(make_field(each) for each in fields)
            structs[name] = Struct(raw["name"] + name if taken[name] > 1 else name, made)
        return structs[name]

    def make_field(each: dict[str, Any]) -> Field:
        is_array = each["type"].startswith("[]")
        kind = each["type"].removeprefix("[]")
        inner = None
        if kind[0].isupper():
            inner = make_struct(kind, each.get("fields") or shared[kind])
        nullable = Versions.parse(each.get("nullableVersions"))
        made = Field(
            name=snake(each["name"]),
            type=inner.name if inner else kind,
            versions=Versions.parse(each["versions"]),
            is_array=is_array,
            struct=inner,
            nullable=nullable if nullable.meets(valid) else NEVER,
            tagged=Versions.parse(each.get("taggedVersions")),
            tag=each.get("tag", -1),
            is_ignorable=bool(each.get("ignorable", False)),
        )
        return replace(made, default=default_of(made, each.get("default")))

    shared = {each["name"]: each["fields"] for each in raw.get("commonStructs", ())}
    root = Struct(raw["name"], tuple(make_field(each) for each in raw["fields"]))
    flexible = Versions.parse(raw["flexibleVersions"])
    return Schema(raw["name"], raw.get("apiKey"), valid, flexible, [*structs.values(), root])


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


# ── Modules ──────────────────────────────────────────────────────────────────────────────────

HEAD = '''# ruff: noqa
# Generated by tools/kafka_messages.py from the message schemas of Apache Kafka {release}, which are
# licensed under the Apache License, Version 2.0. Do not edit: change the generator.
"""{title}: message classes and codecs. ``wire/kafka/fields.py`` explains the notes on fields."""

from __future__ import annotations

'''


def annotation(each: Field) -> str:
    kind = each.struct.name if each.struct else PYTHON.get(each.type, "int")
    if each.is_array:
        kind = f"Sequence[{kind}]"
    return f"{kind} | None" if each.nullable != NEVER else kind


def write_class(owner: Struct, out: io.StringIO) -> None:
    out.write(f"\n\nclass {owner.name}(Message, frozen=True, gc=False):\n")
    if not owner.fields:
        out.write("    pass\n")
    for each in owner.fields:
        array = "[]" if each.is_array else ""
        notes = [f'"{array}{each.type}"', f'"{each.versions}"']
        if each.nullable != NEVER:
            notes.append(f'"null {each.nullable}"')
        if each.tag >= 0:
            notes.append(f'"tag {each.tag} {each.tagged}"')
        if each.is_ignorable:
            notes.append('"ignorable"')
        kind = f"Annotated[{annotation(each)}, {', '.join(notes)}]"
        out.write(f"    {each.name}: {kind} = {each.default}\n")


def write_module(schemas: Sequence[Schema], title: str, release: str) -> str:
    first = schemas[0]
    for each in schemas:
        assert (each.valid, each.flexible_from) == (first.valid, first.flexible_from)
    body = io.StringIO()
    if first.key is not None:
        body.write(f"API_KEY = {first.key}\n")
    body.write(f"VERSION_MIN = {first.valid.first}\nVERSION_MAX = {first.valid.last}\n")
    body.write(f"FLEXIBLE_FROM: int | None = {first.flexible_from}\n")
    for schema in schemas:
        for owner in schema.structs:
            write_class(owner, body)
    body.write("\n\n")
    for schema, role in zip(schemas, ("Request", "Response"), strict=False):
        if schema.name.endswith(role):
            body.write(f"{role} = {schema.name}\n")
    for schema in schemas:
        noun = snake(schema.name)
        body.write(f"decode_{noun}, encode_{noun} = codec(")
        body.write(f"{schema.name}, VERSION_MIN, VERSION_MAX, FLEXIBLE_FROM)\n")
    content = body.getvalue()
    return HEAD.format(title=title, release=release) + imports(content) + content


def imports(content: str) -> str:
    lines = ["from collections.abc import Sequence"] if "Sequence[" in content else []
    lines += ["from typing import Annotated"] if "Annotated[" in content else []
    uuid = ", ZERO_UUID" if "ZERO_UUID" in content else ""
    lines += ["", "from penstock.wire.kafka.compiler import codec"]
    lines.append(f"from penstock.wire.kafka.primitives import Message{uuid}")
    return "\n".join(lines) + "\n\n"


def generate(source: Source, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    modules = [(name, [name + "Request", name + "Response"]) for name in APIS]
    modules += [(name, [name]) for name in EMBEDDED]
    (folder / "__init__.py").write_text(
        '"""Message classes written by tools/kafka_messages.py, one module per API; see there."""\n'
    )
    for name, messages in modules:
        raws = [source.load(each) for each in messages]
        taken: Counter[str] = Counter()
        for raw in raws:
            taken.update(struct_names(raw))
        # Only requests say that their last version is not settled; it is not for replies either.
        if raws[0].get("latestVersionUnstable"):
            raws[-1]["latestVersionUnstable"] = True
        schemas = [parse_schema(raw, taken) for raw in raws]
        text = write_module(schemas, name, source.release)
        (folder / f"{snake(name)}.py").write_text(text)
    ruff = Path(sys.executable).with_name("ruff")
    config = ["--config", str(ROOT / "pyproject.toml"), "--quiet"]
    subprocess.run([ruff, "format", *config, str(folder)], check=True)


def is_current(folder: Path, fresh: Path) -> bool:
    ours = {path.name: path.read_text() for path in folder.glob("*.py")}
    theirs = {path.name: path.read_text() for path in fresh.glob("*.py")}
    for name in sorted(ours.keys() | theirs.keys()):
        if ours.get(name) != theirs.get(name):
            print(f"{name} is not what the schemas give")
    return ours == theirs


def main() -> int:
    parser = argparse.ArgumentParser(description="Generate the Kafka messages from their schemas.")
    parser.add_argument("schemas", type=Path, help="kafka-clients jar, or folder of the JSON files")
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    arguments = parser.parse_args()
    source = Source(arguments.schemas)
    if not arguments.check:
        generate(source, OUT)
        return 0
    with tempfile.TemporaryDirectory() as fresh:
        generate(source, Path(fresh))
        return 0 if is_current(OUT, Path(fresh)) else 1


if __name__ == "__main__":
    sys.exit(main())
