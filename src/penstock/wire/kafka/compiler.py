"""Builds readers and writers of Kafka messages from the field annotations of their classes.

``codec`` returns the functions that decode and encode a message. A message has one reader and one
writer per version, whose code is written and compiled when the version is first used. Nested
structs are loops in that code. Neighbouring fixed-size fields are read with one call of ``struct``.

Two rules make readers safe. First, the position only grows, and a read beyond the end either fails
or leaves the position beyond the end, which the last line checks. Second, the count of an array is
compared with the remaining bytes before the first element is read.

Readers of requests also limit the elements of each array (``bound_of``). Nested arrays, such as the
partitions of all topics, are counted over the whole request, and so are tagged fields."""

import linecache
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from penstock.model.file_slice import Piece
from penstock.model.limits import KAFKA_PARTITIONS_MAX
from penstock.wire.kafka import primitives
from penstock.wire.kafka.fields import (
    FIXED,
    NEVER,
    Field,
    Struct,
    bound_of,
    classes_of,
    present,
    smallest,
    struct_of,
    tagged,
)
from penstock.wire.kafka.primitives import BROKEN, UNFIT, Buffer, Message, malformed

_TABLES = {"int8": "INT8S", "int16": "INT16S", "int32": "INT32S", "int64": "INT64S"}
# By type: the code for null, and the code for the value between ``position`` and ``stop``.
_FORMS = {
    "string": ("None", 'str(data[position:stop], "utf-8")'),
    "records": ("None", "view[position:stop]"),
    "slices": ("()", "(view[position:stop],) if stop > position else ()"),
}


class _Code:
    """The source code of a function under construction. ``run`` has neighbouring fixed-size fields
    whose code is not written yet."""

    def __init__(self, version: int, *, is_flexible: bool) -> None:
        self.version = version
        self.is_flexible = is_flexible
        self.lines: list[str] = []
        self.depth = 1
        self.run: list[tuple[str, str]] = []
        self.names: dict[str, Any] = {}  # methods of ``struct.Struct`` that the code calls
        self._used: Counter[str] = Counter()

    def emit(self, *lines: str) -> None:
        self.lines += ["    " * self.depth + line for line in lines]

    @contextmanager
    def block(self, *lines: str) -> Iterator[None]:
        """Write the first lines of a block of code. Lines written inside ``with`` are indented."""
        self.emit(*lines)
        self.depth += 1
        yield
        self.depth -= 1

    def name(self, stem: str) -> str:
        self._used[stem] += 1
        count = self._used[stem]
        return f"{stem}_" if count == 1 else f"{stem}_{count}"

    def packer(self, method: str, codes: Sequence[str]) -> str:
        """Return the name that the written code uses for a method of ``struct.Struct``."""
        form = "".join(codes)
        name = f"_{method}_{form.replace('16s', 'u').replace('?', 't')}"
        self.names[name] = getattr(struct.Struct(">" + form), method)
        return name

    def take_run(self) -> list[tuple[str, str]]:
        run, self.run = self.run, []
        return run


class _Reader(_Code):
    api = ""  # name of the request, whose arrays are limited; empty for a response
    loops = 0  # depth of nested loops

    @contextmanager
    def loop(self, *lines: str) -> Iterator[None]:
        self.loops += 1
        with self.block(*lines):
            yield
        self.loops -= 1

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
        self.emit(f"{targets}{comma} = {self.packer('unpack_from', codes)}(data, position)")
        self.emit(f"position += {struct.calcsize('>' + ''.join(codes))}")

    def length(self, code: str) -> None:
        """Write code that reads a length. Flexible versions send the length + 1, and 0 for null."""
        self.run.append(("B" if self.is_flexible else code, "length"))
        self.flush()
        if self.is_flexible:
            self.emit("if length > 127:")
            self.emit("    length, position = read_uvarint(data, position - 1)")

    def fields(self, owner: Struct) -> str:
        """Write code that reads all fields of a struct. Return the expression for the struct."""
        values = {each.name: self.value(each) for each in present(owner.fields, self.version)}
        if self.is_flexible:
            values |= self.tags(owner)
        arguments = [values.get(each.name, each.default) for each in owner.arguments]
        while arguments and arguments[-1] == owner.arguments[len(arguments) - 1].default:
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
        self.bytes(each, name)
        return name

    def bytes(self, each: Field, name: str) -> None:
        self.length("h" if each.type == "string" else "i")
        empty, source = _FORMS.get(each.type, ("None", "data[position:stop]"))
        self.begin_present(each, name, empty)
        self.emit("stop = position + length" + (" - 1" if self.is_flexible else ""))
        self.emit(f"{name} = {source}", "position = stop")
        self.end_present(each)

    def begin_present(self, each: Field, name: str, empty: str) -> None:
        if self.version in each.nullable:
            self.emit(f"{name} = {empty}")
            self.emit("if length:" if self.is_flexible else "if length >= 0:")
            self.depth += 1
        else:
            self.emit("if not length:" if self.is_flexible else "if length < 0:")
            self.emit(f'    raise absent("{each.name}")')

    def end_present(self, each: Field) -> None:
        if self.version in each.nullable:
            self.depth -= 1
            if not self.is_flexible:
                self.emit("elif length != -1:", f'    raise absent("{each.name}")')

    def array(self, each: Field, name: str) -> str:
        self.length("i")
        is_nullable = self.version in each.nullable
        is_table = each.type in _TABLES
        self.begin_present(each, name, "None")
        count = "length - 1" if self.is_flexible else "length"
        if is_table:
            size = struct.calcsize(FIXED[each.type])
            if self.is_flexible:
                self.emit("length -= 1")
            self.check_bound(each, "length")
            self.emit(f"{name} = {_TABLES[each.type]}[length].unpack_from(data, position)")
            self.emit(f"position += {size} * length" if size > 1 else "position += length")
        else:
            least = self.least(each)
            left = "end - position" if least == 1 else f"(end - position) // {least}"
            text = f"{each.name} has more elements than there are bytes left"
            self.emit(f"if {count} > {left}:", f'    raise Malformed("{text}")')
            self.check_bound(each, count)
            with self.loop(f"{name} = []", f"for _ in range({count}):"):
                item = self.element(each)
                self.flush()
                self.emit(f"{name}.append({item})")
        self.end_present(each)
        if is_table or self.api == "Produce":  # a tuple would be one more copy
            return name
        return f"None if {name} is None else tuple({name})" if is_nullable else f"tuple({name})"

    def check_bound(self, each: Field, count: str) -> None:
        if not self.api:
            return
        # The caller limits Produce requests, because large ones are decoded in a thread.
        bound = "most" if self.api == "Produce" else bound_of(self.api, each.name)
        if self.loops:
            total = self.name(f"{each.name}_count")
            self.lines.insert(0, f"    {total} = 0")
            self.emit(f"{total} += {count}")
            count = total
        self.emit(f"if {count} > {bound}:")
        self.emit(f'    raise TooManyEntries("{each.name}", {count}, {bound})')

    def least(self, each: Field) -> int:
        if each.struct:
            return max(1, smallest(each.struct.fields, self.version, self.is_flexible))
        if each.type in FIXED:
            return struct.calcsize(">" + FIXED[each.type])
        return 1 if self.is_flexible else (2 if each.type == "string" else 4)

    def element(self, each: Field) -> str:
        if each.struct:
            return self.fields(each.struct)
        return self.value(Field(each.name, each.type, each.versions))

    def nested(self, each: Field, inner: Struct, name: str) -> str:
        if self.version not in each.nullable:
            return self.fields(inner)
        self.run.append(("b", "presence"))
        self.flush()
        with self.block(f"{name} = None", "if presence == 1:"):
            made = self.fields(inner)
            self.flush()
            self.emit(f"{name} = {made}")
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
            self.emit(f"{names[each.name]} = {each.default}")
        with self.loop("for _ in range(tag_count):"):
            self.emit("tag, position = read_uvarint(data, position)")
            self.emit("size, position = read_uvarint(data, position)")
            self.emit("tag_stop = position + size")
            for index, each in enumerate(known):
                with self.block(f"{'elif' if index else 'if'} tag == {each.tag}:"):
                    made = self.value(each)
                    self.flush()
                    self.emit(f"{names[each.name]} = {made}")
            self.emit("else:", "    position = tag_stop", "if position != tag_stop:")
            self.emit('    raise Malformed("a tagged field does not match its length")')
        return names


class _Writer(_Code):
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
        self.emit(f"add({self.packer('pack', codes)}({arguments}))")

    def fields(self, owner: Struct, var: str) -> None:
        if self.is_strict:
            for each in owner.fields:
                if self.version not in each.versions and not each.is_ignorable:
                    values = f'"{each.name}", {self.version}, "does not have this field"'
                    self.emit(f"if {_differs(each, f'{var}.{each.name}')}:")
                    self.emit(f"    raise UnsupportedVersion({values})")
        for each in present(owner.fields, self.version):
            self.value(each, f"{var}.{each.name}")
        if self.is_flexible:
            known = tagged(owner.fields, self.version)
            if known:
                self.tags(known, var)
            else:
                self.run.append(("x", ""))

    def value(self, each: Field, expression: str) -> None:
        if each.nullable != NEVER and self.version not in each.nullable:
            text = f"{each.name} must not be null"
            self.emit(f"if {expression} is None:", f'    raise TypeError("{text}")')
        if each.is_array:
            self.array(each, expression)
        elif each.struct:
            self.nested(each, each.struct, expression)
        elif each.is_fixed:
            if each.type == "uuid":
                text = f"{each.name} must have 16 bytes"
                self.emit(f"if len({expression}) != 16:", f'    raise struct.error("{text}")')
            self.run.append((FIXED[each.type], expression))
        elif each.type == "slices":  # slices are not copied: the parts so far become a buffer
            self.length("i", f"sum(map(len, {expression}))")
            self.emit(
                f"if {expression}:", '    buffers.append(b"".join(parts))', "    parts.clear()"
            )
            self.emit(f"    buffers += {expression}")
        else:
            self.text(each, expression)

    def text(self, each: Field, expression: str) -> None:
        raw = self.name(each.name)
        code = "h" if each.type == "string" else "i"
        content = f"{expression}.encode()" if each.type == "string" else expression
        if self.version not in each.nullable:
            self.emit(f"{raw} = {content}")
            self.length(code, f"len({raw})")
        elif self.is_flexible:
            self.flush()
            with self.block(f"if {expression} is None:", '    add(b"\\x00")', "else:"):
                self.emit(f"{raw} = {content}")
                self.length(code, f"len({raw})")
                self.emit(f"add({raw})")
            return
        else:
            self.emit(f'{raw} = b"" if {expression} is None else {content}')
            self.length(code, f"-1 if {expression} is None else len({raw})")
        self.emit(f"add({raw})")

    def length(self, code: str, expression: str) -> None:
        if self.is_flexible:
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
        null = "\\x00" if self.is_flexible else "\\xff\\xff\\xff\\xff"
        with self.block(f"if {expression} is None:", f'    add(b"{null}")', "else:"):
            self.elements(each, expression)

    def elements(self, each: Field, expression: str) -> None:
        if each.type in _TABLES:
            count = self.name("count")
            self.emit(f"{count} = len({expression})")
            self.length("i", count)
            self.emit(f"add({_TABLES[each.type]}[{count}].pack(*{expression}))")
            return
        self.length("i", f"len({expression})")
        item = self.name("item")
        with self.block(f"for {item} in {expression}:"):
            if each.struct:
                self.fields(each.struct, item)
            else:
                self.value(Field(item, each.type, each.versions), item)
            self.flush()

    def nested(self, each: Field, inner: Struct, expression: str) -> None:
        if self.version not in each.nullable:
            self.fields(inner, expression)
            return
        self.flush()
        with self.block(f"if {expression} is None:", '    add(b"\\xff")', "else:"):
            self.run.append(("b", "1"))
            self.fields(inner, expression)
            self.flush()

    def tags(self, known: Sequence[Field], var: str) -> None:
        """Write code for tagged fields, which are sent only if they differ from their defaults."""
        self.flush()
        values = {each.name: f"{var}.{each.name}" for each in known}
        differs = {each.name: _differs(each, values[each.name]) for each in known}
        with self.block(f"if {' or '.join(differs.values())}:"):
            self.emit("tags = []", "message_add = add")
            for each in known:
                with self.block(f"if {differs[each.name]}:"):
                    parts = self.name("parts")
                    self.emit(f"{parts} = []", f"add = {parts}.append")
                    self.value(each, values[each.name])
                    self.flush()
                    self.emit(f'tags.append(({each.tag}, b"".join({parts})))')
            self.emit("add = message_add", "add(UVARINT[len(tags)])", "for tag, tag_body in tags:")
            self.emit("    add(UVARINT[tag])", "    add(UVARINT[len(tag_body)])")
            self.emit("    add(tag_body)")
        self.emit("else:", '    add(b"\\x00")')


def _differs(each: Field, expression: str) -> str:
    if each.default == "()":  # any empty sequence equals the default
        return expression
    if each.default == "None":
        return f"{expression} is not None"
    if each.type == "bool":
        return f"not {expression}" if each.default == "True" else expression
    return f"{expression} != {each.default}"


# ── Functions ────────────────────────────────────────────────────────────────────────────────

T = TypeVar("T", bound=Message)
Buffers = list[Piece]
Write = Callable[[T, list[bytes | memoryview], Buffers | None], None]


def codec(
    kind: type[T], first: int, last: int, flexible_from: int | None, *, has_slices: bool = False
) -> tuple[Callable[[Buffer, int, int], T], Callable[[T, int], bytes]]:
    """Return the functions ``decode(buffer, position, version)`` and ``encode(value, version)``.
    ``decode`` ignores bytes after the message, as Kafka does; with ``has_slices``, it returns some
    fields as views of the buffer. To encode slices without a copy, pass a list to ``encode``: it
    appends all finished pieces, and returns the bytes after the last slice."""
    name = kind.__name__
    readers: dict[int, Callable[[Buffer, int, int], T]] = {}
    writers: dict[int, Write[T]] = {}

    def is_flexible(version: int) -> bool:
        if not first <= version <= last:
            raise primitives.UnsupportedVersion(name, version)
        return flexible_from is not None and version >= flexible_from

    def decode(buffer: Buffer, position: int, version: int, most: int = KAFKA_PARTITIONS_MAX) -> T:
        read = readers.get(version)
        if read is None:
            read = readers[version] = _reader(kind, version, is_flexible=is_flexible(version))
        try:
            return read(buffer if has_slices else bytes(buffer), position, most)
        except BROKEN as error:
            raise malformed(name, error) from None

    def encode(value: T, version: int, buffers: Buffers | None = None) -> bytes:
        write = writers.get(version)
        if write is None:
            write = writers[version] = _writer(kind, version, is_flexible=is_flexible(version))
        parts: list[bytes | memoryview] = []
        try:
            write(value, parts, buffers)
        except UNFIT as error:
            raise primitives.Unencodable(f"{name} version {version}: {error}") from error
        return b"".join(parts)

    return decode, encode


def _reader(kind: type[T], version: int, *, is_flexible: bool) -> Callable[[Buffer, int, int], T]:
    code = _Reader(version, is_flexible=is_flexible)
    if kind.__name__.endswith("Request"):
        code.api = kind.__name__.removesuffix("Request")
    made = code.fields(struct_of(kind))
    code.flush()
    code.emit("if position > end:", "    raise short()", f"return {made}")
    head = ["def read(data, position, most):", "    end = len(data)", "    tags = 0"]
    if any("view[" in line for line in code.lines):
        head.append("    view = memoryview(data)")
    return _compile(kind, f"reader {version}", code, head)  # type: ignore[no-any-return]


def _writer(kind: type[T], version: int, *, is_flexible: bool) -> Write[T]:
    code = _Writer(version, is_flexible=is_flexible)
    code.is_strict = kind.__name__.endswith("Request")
    code.fields(struct_of(kind), "value")
    code.flush()
    head = ["def write(value, parts, buffers):", "    add = parts.append"]
    return _compile(kind, f"writer {version}", code, head)  # type: ignore[no-any-return]


def _compile(kind: type[Message], what: str, code: _Code, head: list[str]) -> Any:
    text = "\n".join([*head, *code.lines, ""])
    file = f"<{kind.__name__} {what}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names = {**vars(primitives), **classes_of(kind), **code.names}
    exec(compile(text, file, "exec"), names)  # noqa: S102  made of our own classes alone
    return names["read" if "reader" in what else "write"]
