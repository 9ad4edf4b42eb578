"""Writes the codecs of ``penstock.wire.kafka.generated`` from Apache Kafka's message schemas.

    mvn dependency:copy -Dartifact=org.apache.kafka:kafka-clients:4.3.0 -DoutputDirectory=.
    python -m tools.kafka_codec kafka-clients-4.3.0.jar          writes the modules
    python -m tools.kafka_codec kafka-clients-4.3.0.jar --check  says whether they are up to date

The schemas are the JSON files under ``common/message/`` of the kafka-clients jar (Apache License
2.0); a folder that holds them will do as well. To move to another Kafka: pass its jar, read the
difference, and bring the version ranges in ``wire/kafka/apis.py`` along (a test compares them).

What comes out is flat on purpose. For each message there is one reader and one writer per distinct
layout; versions that look the same share them. Nested structs are loops inside that function, and
neighbouring fixed-size fields are one call of ``struct``, with the length of what follows in the
same call. No field is looked up in a table while a request is being read.

Two habits of the readers make them safe. The position only ever grows, and whatever reads past the
end either fails or leaves the position behind it, where the last line looks; and an array is held
against the bytes left before the first element is made.

Readers of requests also check a bound on the elements of each array before the first element is
made (``bound_of``). A nested array is counted over the whole request: the partitions of all topics.
Tagged fields are counted likewise.
"""

import argparse
import io
import re
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tools.kafka_schema import (
    FIXED,
    Field,
    Schema,
    Source,
    Struct,
    Versions,
    parse_schema,
    present,
    smallest,
    snake,
    struct_names,
    tagged,
)

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
# The arrays of a request with a bound other than ENTRIES; "*" is every array of the API.
ENTRIES, PARTITIONS, USERS = "KAFKA_ENTRIES_MAX", "KAFKA_PARTITIONS_MAX", "KAFKA_USERS_MAX"
BOUNDS = {
    "AddPartitionsToTxn": {"topics": PARTITIONS, "v3_and_below_topics": PARTITIONS},
    "AlterPartitionReassignments": {"topics": PARTITIONS},
    "AlterReplicaLogDirs": {"topics": PARTITIONS},
    "AlterShareGroupOffsets": {"topics": PARTITIONS},
    "AlterUserScramCredentials": {"*": USERS},
    "ConsumerGroupHeartbeat": {"*": PARTITIONS},
    "DeleteRecords": {"topics": PARTITIONS},
    "DeleteShareGroupOffsets": {"topics": PARTITIONS},
    "DescribeConfigs": {"configuration_keys": PARTITIONS},
    "DescribeLogDirs": {"topics": PARTITIONS},
    "DescribeProducers": {"topics": PARTITIONS},
    "DescribeQuorum": {"topics": PARTITIONS},
    "DescribeShareGroupOffsets": {"topics": PARTITIONS},
    "DescribeTopicPartitions": {"topics": PARTITIONS},
    "ElectLeaders": {"topic_partitions": PARTITIONS},
    "ListOffsets": {"topics": PARTITIONS},
    "ListPartitionReassignments": {"topics": PARTITIONS},
    "Metadata": {"topics": PARTITIONS},
    "OffsetCommit": {"topics": PARTITIONS},
    "OffsetDelete": {"topics": PARTITIONS},
    "OffsetFetch": {"topics": PARTITIONS},
    "OffsetForLeaderEpoch": {"topics": PARTITIONS},
    "ShareAcknowledge": {"*": PARTITIONS},
    "ShareFetch": {"*": PARTITIONS},
    "ShareGroupHeartbeat": {"*": PARTITIONS},
    "StreamsGroupHeartbeat": {"source_topics": PARTITIONS, "topic_configs": PARTITIONS},
    "SyncGroup": {"assignments": ENTRIES},
    "TxnOffsetCommit": {"topics": PARTITIONS},
    "WriteTxnMarkers": {"topics": PARTITIONS},
}
# These are partitions in every API, or what belongs to one partition.
OF_PARTITIONS = {"partitions", "partition_indexes", "assignments", "broker_ids", "replicas"}
TABLES = {"int8": "INT8S", "int16": "INT16S", "int32": "INT32S", "int64": "INT64S"}
# ── Code ─────────────────────────────────────────────────────────────────────────────────────


class Code:
    """Lines with their indent, a run of fixed-size fields not yet written, and names in use."""

    def __init__(self, version: int, flexible: bool, formats: set[str]) -> None:
        self.version = version
        self.flexible = flexible
        self.lines: list[str] = []
        self.depth = 1
        self.run: list[tuple[str, str]] = []
        self._formats = formats
        self._names: Counter[str] = Counter()

    def emit(self, *lines: str) -> None:
        self.lines += ["    " * self.depth + line for line in lines]

    def name(self, wish: str) -> str:
        self._names[wish] += 1
        count = self._names[wish]
        return f"{wish}_" if count == 1 else f"{wish}_{count}"

    def packer(self, codes: Sequence[str]) -> str:
        """The module's name for a bound method of ``Struct``."""
        form = "".join(codes)
        self._formats.add(form)
        return form.replace("16s", "u").replace("?", "t")

    def take_run(self) -> list[tuple[str, str]]:
        run, self.run = self.run, []
        return run


def bound_of(api: str, array: str) -> str:
    """The constant in ``model/limits.py`` that bounds an array of a request."""
    bounds = BOUNDS.get(api, {})
    default = PARTITIONS if array in OF_PARTITIONS else ENTRIES
    return bounds.get(array) or bounds.get("*") or default


class Reader(Code):
    api = ""  # of a request, whose arrays have bounds; empty: none have
    loops = 0  # that the code is inside of

    def flush(self) -> None:
        run = self.take_run()
        if not run:
            return
        codes = [code for code, _ in run]
        targets = ", ".join(target for _, target in run)
        if codes == ["B"]:
            self.emit(f"{targets} = data[position]", "position += 1")
            return
        comma = "," if len(run) == 1 else ""
        self.emit(f"{targets}{comma} = _unpack_{self.packer(codes)}(data, position)")
        self.emit(f"position += {struct.calcsize('>' + ''.join(codes))}")

    def length(self, code: str) -> None:
        """Into ``length``; in flexible versions one more than the length, and 0 for null."""
        self.run.append(("B" if self.flexible else code, "length"))
        self.flush()
        if self.flexible:
            self.emit("if length > 127:")
            self.emit("    length, position = read_uvarint(data, position - 1)")

    def fields(self, owner: Struct) -> str:
        """Reads all fields of a struct; returns the expression that makes it."""
        values = {each.name: self.value(each) for each in present(owner.fields, self.version)}
        if self.flexible:
            values |= self.tags(owner)
        arguments = [values.get(each.name, each.default) for each in owner.fields]
        while arguments and arguments[-1] == owner.fields[len(arguments) - 1].default:
            arguments.pop()
        return f"{owner.name}({', '.join(arguments)})"

    def value(self, each: Field) -> str:
        name = self.name(each.name)
        if each.is_array:
            return self.array(each, name)
        if each.struct:
            return self.nested(each, each.struct, name)
        if each.is_fixed:
            self.run.append((FIXED[each.type], name))
            return name
        self.flush()
        form = "compact" if self.flexible else "plain"
        null = "nullable_" if self.version in each.nullable else ""
        kind = "text" if each.type == "string" else "bytes"
        self.emit(f"{name}, position = read_{form}_{null}{kind}(data, position)")
        return name

    def refuse_null(self, what: str) -> None:
        self.emit("if not length:" if self.flexible else "if length < 0:")
        self.emit(f'    raise absent("{what}")')

    def refuse_negative(self, what: str) -> None:
        if not self.flexible:
            self.emit("elif length != -1:", f'    raise absent("{what}")')

    def array(self, each: Field, name: str) -> str:
        self.length("i")
        is_nullable = self.version in each.nullable
        kind = each.type if each.struct else PYTHON.get(each.type, "int")
        is_table = each.type in TABLES
        shape = "tuple[int, ...]" if is_table else f"list[{kind}]"
        if is_nullable:
            self.emit(f"{name}: {shape} | None = None")
            self.emit("if length:" if self.flexible else "if length >= 0:")
            self.depth += 1
        else:
            self.refuse_null(each.name)
        count = "length - 1" if self.flexible else "length"
        if is_table:
            size = struct.calcsize(FIXED[each.type])
            if self.flexible:
                self.emit("length -= 1")
            self.check_bound(each, "length")
            self.emit(f"{name} = {TABLES[each.type]}[length].unpack_from(data, position)")
            self.emit(f"position += {size} * length" if size > 1 else "position += length")
        else:
            least = self.least(each)
            left = "end - position" if least == 1 else f"(end - position) // {least}"
            self.emit(f"if {count} > {left}:", f'    raise oversized("{each.name}")')
            self.check_bound(each, count)
            self.emit(f"{name} = []" if is_nullable else f"{name}: {shape} = []")
            self.emit(f"for _ in range({count}):")
            self.depth += 1
            self.loops += 1
            item = self.element(each)
            self.flush()
            self.emit(f"{name}.append({item})")
            self.loops -= 1
            self.depth -= 1
        if is_nullable:
            self.depth -= 1
            self.refuse_negative(each.name)
        if is_table:
            return name
        return f"None if {name} is None else tuple({name})" if is_nullable else f"tuple({name})"

    def check_bound(self, each: Field, count: str) -> None:
        if not self.api:
            return
        bound = bound_of(self.api, each.name)
        if self.loops:
            total = self.name(f"{each.name}_count")
            self.lines.insert(0, f"    {total} = 0")
            self.emit(f"{total} += {count}")
            count = total
        self.emit(f"if {count} > {bound}:")
        self.emit(f'    raise TooManyEntries("{each.name}", {count}, {bound})')

    def least(self, each: Field) -> int:
        if each.struct:
            return max(1, smallest(each.struct.fields, self.version, self.flexible))
        if each.type in FIXED:
            return struct.calcsize(">" + FIXED[each.type])
        return 1 if self.flexible else (2 if each.type == "string" else 4)

    def element(self, each: Field) -> str:
        if each.struct:
            return self.fields(each.struct)
        never = Versions(1, 0)
        return self.value(
            Field(each.name, each.type, False, None, each.versions, never, never, -1, "", False)
        )

    def nested(self, each: Field, inner: Struct, name: str) -> str:
        if self.version not in each.nullable:
            return self.fields(inner)
        self.run.append(("b", "presence"))
        self.flush()
        self.emit(f"{name}: {inner.name} | None = None", "if presence == 1:")
        self.depth += 1
        made = self.fields(inner)
        self.flush()
        self.emit(f"{name} = {made}")
        self.depth -= 1
        self.emit("elif presence != -1:", f'    raise absent("{each.name}")')
        return name

    def tags(self, owner: Struct) -> dict[str, str]:
        known = tagged(owner.fields, self.version)
        self.run.append(("B", "tag_count"))
        self.flush()
        if not known and self.api:
            self.emit("if tag_count:")
            self.emit("    tags, position = count_tags(data, position - 1, tags)")
            return {}
        if not known:
            self.emit("if tag_count:", "    position = skip_tags(data, position - 1)")
            return {}
        self.emit("if tag_count > 127:")
        self.emit("    tag_count, position = read_uvarint(data, position - 1)")
        if self.api:
            self.emit("tags += tag_count", "if tags > KAFKA_PARTITIONS_MAX:")
            self.emit('    raise TooManyEntries("tags", tags, KAFKA_PARTITIONS_MAX)')
        names = {each.name: self.name("tagged_" + each.name) for each in known}
        for each in known:
            self.emit(f"{names[each.name]}: {annotation(each)} = {each.default}")
        self.emit("for _ in range(tag_count):")
        self.depth += 1
        self.loops += 1
        self.emit(
            "tag, position = read_uvarint(data, position)",
            "size, position = read_uvarint(data, position)",
            "tag_stop = position + size",
        )
        for index, each in enumerate(known):
            self.emit(f"{'elif' if index else 'if'} tag == {each.tag}:")
            self.depth += 1
            made = self.value(each)
            self.flush()
            self.emit(f"{names[each.name]} = {made}")
            self.depth -= 1
        self.emit("else:", "    position = tag_stop", "if position != tag_stop:")
        self.emit('    raise Malformed("a tagged field is not as long as it says")')
        self.loops -= 1
        self.depth -= 1
        return names


class Writer(Code):
    is_strict = False  # whether a field that the version cannot carry must have its default

    def flush(self) -> None:
        run = self.take_run()
        if not run:
            return
        codes = [code for code, _ in run]
        if set(codes) == {"x"}:
            self.emit(f'add(b"{chr(92)}x00{"" if len(codes) == 1 else chr(92) + "x00"}")')
            assert len(codes) <= 2
            return
        arguments = ", ".join(expression for code, expression in run if code != "x")
        self.emit(f"add(_pack_{self.packer(codes)}({arguments}))")

    def fields(self, owner: Struct, var: str) -> None:
        if self.is_strict:
            for each in owner.fields:
                if self.version not in each.versions and not each.is_ignorable:
                    self.refuse_loss(each, f"{var}.{each.name}")
        for each in present(owner.fields, self.version):
            self.value(each, f"{var}.{each.name}")
        if self.flexible:
            known = tagged(owner.fields, self.version)
            if known:
                self.tags(known, var)
            else:
                self.run.append(("x", ""))

    def refuse_loss(self, each: Field, expression: str) -> None:
        if each.default == "()":  # any empty sequence will do
            self.emit(f"if {expression}:")
        elif each.default == "None":
            self.emit(f"if {expression} is not None:")
        elif each.type == "bool":
            self.emit(f"if {'not ' if each.default == 'True' else ''}{expression}:")
        else:
            self.emit(f"if {expression} != {each.default}:")
        self.emit(f'    raise inexpressible("{each.name}", {self.version})')

    def value(self, each: Field, expression: str) -> None:
        if each.may_be_null and self.version not in each.nullable:
            self.emit(f"if {expression} is None:", f'    raise not_null("{each.name}")')
        if each.is_array:
            self.array(each, expression)
        elif each.struct:
            self.nested(each, each.struct, expression)
        elif each.is_fixed:
            if each.type == "uuid":
                self.emit(f"if len({expression}) != 16:", f'    raise not_uuid("{each.name}")')
            self.run.append((FIXED[each.type], expression))
        else:
            self.text(each, expression)

    def text(self, each: Field, expression: str) -> None:
        raw = self.name(each.name)
        code = "h" if each.type == "string" else "i"
        content = f"{expression}.encode()" if each.type == "string" else expression
        if self.version not in each.nullable:
            self.emit(f"{raw} = {content}")
            self.length(code, f"len({raw})")
        elif self.flexible:
            self.flush()
            self.emit(f"if {expression} is None:", '    add(b"\\x00")', "else:")
            self.depth += 1
            self.emit(f"{raw} = {content}")
            self.length(code, f"len({raw})")
            self.emit(f"add({raw})")
            self.depth -= 1
            return
        else:
            self.emit(f'{raw} = b"" if {expression} is None else {content}')
            self.length(code, f"-1 if {expression} is None else len({raw})")
        self.emit(f"add({raw})")

    def length(self, code: str, expression: str) -> None:
        if self.flexible:
            self.flush()
            self.emit(f"add(UVARINT[{expression} + 1])")
        else:
            self.run.append((code, expression))
            self.flush()

    def array(self, each: Field, expression: str) -> None:
        if self.version not in each.nullable:
            self.elements(each, expression)
            return
        self.flush()
        null = "\\x00" if self.flexible else "\\xff\\xff\\xff\\xff"
        self.emit(f"if {expression} is None:", f'    add(b"{null}")', "else:")
        self.depth += 1
        self.elements(each, expression)
        self.depth -= 1

    def elements(self, each: Field, expression: str) -> None:
        if each.type in TABLES:
            count = self.name("count")
            self.emit(f"{count} = len({expression})")
            self.length("i", count)
            self.emit(f"add({TABLES[each.type]}[{count}].pack(*{expression}))")
            return
        self.length("i", f"len({expression})")
        item = self.name(snake(each.type) if each.struct else "item")
        self.emit(f"for {item} in {expression}:")
        self.depth += 1
        if each.struct:
            self.fields(each.struct, item)
        else:
            never = Versions(1, 0)
            plain = Field(item, each.type, False, None, each.versions, never, never, -1, "", False)
            self.value(plain, item)
        self.flush()
        self.depth -= 1

    def nested(self, each: Field, inner: Struct, expression: str) -> None:
        if self.version not in each.nullable:
            self.fields(inner, expression)
            return
        self.flush()
        self.emit(f"if {expression} is None:", '    add(b"\\xff")', "else:")
        self.depth += 1
        self.run.append(("b", "1"))
        self.fields(inner, expression)
        self.flush()
        self.depth -= 1

    def tags(self, known: Sequence[Field], var: str) -> None:
        """Only what differs from its default is written, as Kafka does."""
        self.flush()
        self.emit("tags: list[tuple[int, bytes]] = []", "message_add = add")
        for each in known:
            expression = f"{var}.{each.name}"
            is_sequence = each.default == "()"
            self.emit(f"if {expression}:" if is_sequence else f"if {expression} != {each.default}:")
            self.depth += 1
            parts = self.name("parts")
            self.emit(f"{parts}: list[bytes | memoryview] = []", f"add = {parts}.append")
            self.value(each, expression)
            self.flush()
            self.emit(f'tags.append(({each.tag}, b"".join({parts})))')
            self.depth -= 1
        self.emit("add = message_add", "add(UVARINT[len(tags)])", "for tag, tag_body in tags:")
        self.emit("    add(UVARINT[tag])", "    add(UVARINT[len(tag_body)])", "    add(tag_body)")


# ── Modules ──────────────────────────────────────────────────────────────────────────────────


def annotation(each: Field) -> str:
    kind = each.struct.name if each.struct else PYTHON.get(each.type, "int")
    if each.is_array:
        kind = f"Sequence[{kind}]"
    return f"{kind} | None" if each.may_be_null else kind


def write_class(owner: Struct, out: io.StringIO) -> None:
    out.write(f"\n\nclass {owner.name}(Message, frozen=True, gc=False):\n")
    if not owner.fields:
        out.write("    pass\n")
    for each in owner.fields:
        array = "[]" if each.is_array else ""
        notes = [f'"{array}{each.type}"', f'"{each.versions}"']
        if each.may_be_null:
            notes.append(f'"null {each.nullable}"')
        if each.tag >= 0:
            notes.append(f'"tag {each.tag}"')
        kind = f"Annotated[{annotation(each)}, {', '.join(notes)}]"
        out.write(f"    {each.name}: {kind} = {each.default}\n")


def bodies(schema: Schema, formats: tuple[set[str], set[str]]) -> tuple[dict[int, str], ...]:
    """Reader and writer source by version."""
    readers, writers = {}, {}
    for version in range(schema.valid.first, schema.valid.last + 1):
        flexible = version in schema.flexible
        reader = Reader(version, flexible, formats[0])
        reader.api = schema.name.removesuffix("Request") if schema.is_request else ""
        made = reader.fields(schema.root)
        reader.flush()
        reader.emit("if position > len(data):", "    raise short()", f"return {made}")
        if any("end - position" in line for line in reader.lines):
            reader.lines.insert(0, "    end = len(data)")
        if any("tags += " in line or ", tags)" in line for line in reader.lines):
            reader.lines.insert(0, "    tags = 0")
        readers[version] = "\n".join(reader.lines)
        writer = Writer(version, flexible, formats[1])
        writer.is_strict = schema.is_request
        writer.fields(schema.root, "value")
        writer.flush()
        writers[version] = "\n".join(writer.lines) or "    pass"
    return readers, writers


def write_functions(
    verb: str, schema: Schema, by_version: dict[int, str], out: io.StringIO
) -> None:
    """One function per distinct body, and the public one that chooses by version."""
    noun = snake(schema.name)
    head = {
        "read": f"(data: bytes, position: int) -> {schema.name}:",
        "write": f"(value: {schema.name}, add: Add) -> None:",
    }[verb]
    names: dict[str, str] = {}
    rows = []
    for version, body in by_version.items():
        # The version stands in the text of an error only.
        shape = re.sub(r'inexpressible\("(\w+)", \d+\)', r"\1", body)
        if shape not in names:
            names[shape] = f"_{verb}_{noun}_{version}"
            out.write(f"\n\ndef {names[shape]}{head}\n{body}\n")
        rows.append(f"{version}: {names[shape]}")
    table = f'"{schema.name}", {{{", ".join(rows)}}}'
    if verb == "read":
        out.write(f"\n\ndecode_{noun} = decoder({table})\n")
        return
    out.write(f"\n\nencode_{noun} = encoder({table})\n")
    if "records" in (each.type for owner in schema.structs for each in owner.fields):
        out.write(f"encode_{noun}_buffers = buffers_encoder({table})\n")


def write_module(schemas: Sequence[Schema], title: str, release: str) -> str:
    body = io.StringIO()
    formats: tuple[set[str], set[str]] = (set(), set())
    for schema in schemas:
        for owner in schema.structs:
            write_class(owner, body)
    for schema in schemas:
        readers, writers = bodies(schema, formats)
        write_functions("read", schema, readers, body)
        write_functions("write", schema, writers, body)
    first = schemas[0]
    constants = io.StringIO()
    if first.key is not None:
        constants.write(f"API_KEY = {first.key}\n")
    flexible = first.flexible.first if first.flexible.meets(first.valid) else None
    constants.write(f"VERSION_MIN = {first.valid.first}\nVERSION_MAX = {first.valid.last}\n")
    constants.write(f"FLEXIBLE_FROM: int | None = {flexible}\n\n")
    for verb, found in (("unpack", formats[0]), ("pack", formats[1])):
        method = "unpack_from" if verb == "unpack" else "pack"
        for form in sorted(found):
            short = form.replace("16s", "u").replace("?", "t")
            constants.write(f'_{verb}_{short} = Struct(">{form}").{method}\n')
    content = body.getvalue()
    head = HEAD.format(title=title, release=release)
    return head + imports(content) + constants.getvalue() + content


HEAD = '''# ruff: noqa
# Generated by tools/kafka_codec.py from the message schemas of Apache Kafka {release}, which are
# licensed under the Apache License, Version 2.0. Do not edit: change the generator.
"""{title}: messages, readers and writers. The notes on a field give its wire type, the
versions that carry it, those in which it may be null, and its tag."""

from __future__ import annotations

'''


PRIMITIVES = {
    "INT16S",
    "INT32S",
    "INT64S",
    "INT8S",
    "UVARINT",
    "ZERO_UUID",
    "Add",
    "Message",
    "absent",
    "buffers_encoder",
    "count_tags",
    "decoder",
    "encoder",
    "inexpressible",
    "not_null",
    "not_uuid",
    "oversized",
    "read_compact_bytes",
    "read_compact_nullable_bytes",
    "read_compact_nullable_text",
    "read_compact_text",
    "read_plain_bytes",
    "read_plain_nullable_bytes",
    "read_plain_nullable_text",
    "read_plain_text",
    "read_uvarint",
    "short",
    "skip_tags",
}


def imports(content: str) -> str:
    words = set(re.findall(r"\w+", re.sub(r'"[^"\n]*"', "", content)))
    used = ", ".join(sorted(PRIMITIVES & words))
    lines = ["from collections.abc import Sequence"] if "Sequence" in words else []
    lines.append("from struct import Struct")
    lines += ["from typing import Annotated", ""] if "Annotated" in words else [""]
    if limits := ", ".join(sorted({ENTRIES, PARTITIONS, USERS} & words)):
        lines.append(f"from penstock.model.limits import ({limits})")
    if malformed := ", ".join(sorted({"Malformed", "TooManyEntries"} & words)):
        lines.append(f"from penstock.wire.kafka.malformed import ({malformed})")
    lines.append(f"from penstock.wire.kafka.primitives import ({used})")
    return "\n".join(lines) + "\n\n"


def generate(source: Source, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    modules = [(name, [name + "Request", name + "Response"]) for name in APIS]
    modules += [(name, [name]) for name in EMBEDDED]
    (folder / "__init__.py").write_text(
        '"""Codecs written by tools/kafka_codec.py, one module per API; see there."""\n'
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
    parser = argparse.ArgumentParser(description="Generate the Kafka codecs from their schemas.")
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
