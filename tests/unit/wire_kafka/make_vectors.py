"""Makes vectors.json: messages as two other people's codecs write them.

    python -m venv /tmp/oracle && /tmp/oracle/bin/pip install kio kafka-python msgspec
    PYTHONPATH=src /tmp/oracle/bin/python tests/unit/wire_kafka/make_vectors.py

Neither library is installed where the tests run; that is why their bytes are kept. For every API
and version that we serve there are two messages: one with everything filled in, one with nulls and
empty arrays wherever these are allowed. Values are drawn with a fixed seed and written down under
the schema's field names; kio encodes them. Where kafka-python has the API, its decoder must read
those bytes and its encoder must give them back; who agreed is written down with each vector. All
of them were also read and given back unchanged by the message classes of kafka-clients 4.3.0.
"""

import dataclasses
import datetime
import importlib
import io
import json
import random
import sys
import types
import typing
import uuid
from pathlib import Path
from typing import Any

from penstock.wire.kafka.apis import APIS

OUT = Path(__file__).with_name("vectors.json")
SEED = 20_260_101
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
WIDTHS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}
EMBEDDED = ("ConsumerProtocolSubscription", "ConsumerProtocolAssignment")
WORDS = ("a", "topic-1", "grüße", "x" * 130, "", "日本")


class Draw:
    def __init__(self, seed: str, is_full: bool) -> None:
        self._random = random.Random(seed)
        self._is_without_error = "ApiVersionsResponse" in seed
        self._is_full = is_full

    def message(self, kind: Any) -> tuple[Any, dict[str, Any]]:
        """An object of kio's class and the same as plain values."""
        hints = typing.get_type_hints(kind)
        made, plain = {}, {}
        for field in dataclasses.fields(kind):
            if field.name == "snapshot_id":  # of Kafka's own metadata log: left at its default
                continue
            # kio drops the unit of what it turns into durations and instants.
            is_time = field.metadata.get("kafka_type", "").startswith(("timedelta", "datetime"))
            name = field.name + "_ms" if is_time else field.name
            made[field.name], plain[name] = self.field(field, hints[field.name])
        return kind(**made), plain

    def field(self, field: Any, hint: Any) -> tuple[Any, Any]:
        is_null, hint = strip_none(hint)
        code = field.metadata.get("kafka_type", "")
        if is_null and not self._is_full and code not in ("uuid", "datetime_i64"):
            return None, None
        if typing.get_origin(hint) is tuple:
            inner = typing.get_args(hint)[0]
            count = self._random.choice((1, 2)) if self._is_full else 0
            pairs = [self.element(code, inner) for _ in range(count)]
            return tuple(made for made, _ in pairs), [plain for _, plain in pairs]
        return self.element(code, hint)

    def element(self, code: str, hint: Any) -> tuple[Any, Any]:
        if dataclasses.is_dataclass(hint):
            return self.message(hint)
        return self.primitive(code)

    def primitive(self, code: str) -> tuple[Any, Any]:
        draw = self._random
        if code in WIDTHS:
            top = 1 << WIDTHS[code]
            value = draw.choice((0, 1, -1, top - 1, -top, draw.randrange(-top, top)))
            return value, value
        if code == "uint16":
            value = draw.choice((0, 1, 65_535, draw.randrange(65_536)))
            return value, value
        if code == "bool":
            value = draw.random() < 0.5
            return value, value
        if code == "float64":
            number = draw.choice((0.0, 1.5, -1e300, draw.random()))
            return number, number
        if code == "string":
            text = draw.choice(WORDS)
            return text, text
        if code in ("bytes", "records"):
            raw = draw.randbytes(draw.choice((0, 3, 200)) if self._is_full else 0)
            return raw, raw.hex()
        if code == "uuid":
            unique = uuid.UUID(bytes=draw.randbytes(16))
            return unique, unique.bytes.hex()
        if code == "error_code":
            codes = list(importlib.import_module("kio.schema.errors").ErrorCode)
            # kafka-python reads an ApiVersions reply with an error as version 0.
            chosen = codes[1] if self._is_without_error else draw.choice(codes)
            assert int(chosen) == 0 or not self._is_without_error
            return chosen, int(chosen)
        return self.time(code)

    def time(self, code: str) -> tuple[Any, int]:
        value = self._random.randrange(1, 2**31 - 1)
        if code in ("timedelta_i32", "timedelta_i64"):
            return datetime.timedelta(milliseconds=value), value
        if code == "datetime_i64":
            return EPOCH + datetime.timedelta(milliseconds=value), value
        raise AssertionError(code)


def strip_none(hint: Any) -> tuple[bool, Any]:
    if typing.get_origin(hint) not in (types.UnionType, typing.Union):
        return False, hint
    (inner,) = [each for each in typing.get_args(hint) if each is not types.NoneType]
    return True, inner


def encode(message: Any) -> bytes:
    out = io.BytesIO()
    importlib.import_module("kio.serial").entity_writer(type(message))(out, message)
    return out.getvalue()


def kafka_python_class(name: str) -> Any:
    for module in ("metadata", "consumer", "producer", "admin", "sasl"):
        found = getattr(importlib.import_module(f"kafka.protocol.{module}"), name, None)
        if found is not None:
            return found
    return None


def agrees(name: str, version: int, raw: bytes) -> bool | None:
    """Whether kafka-python reads and writes the same; None where it has no such message."""
    kind = None if name in EMBEDDED else kafka_python_class(name)
    if kind is None or not kind.min_version <= version <= kind.max_version:
        return None
    message = kind.decode(raw, version=version)
    for unset in ("_header", "_min_version", "_max_version"):  # its decoder skips its constructor
        setattr(message, unset, None)
    return bool(bytes(message.encode(version=version)) == raw)


def vectors(name: str, module: str, kind: str, versions: range) -> list[dict[str, Any]]:
    rows = []
    for version in versions:
        home = importlib.import_module(f"kio.schema.{module}.v{version}.{kind}")
        for form in ("full", "sparse"):
            draw = Draw(f"{SEED} {name} {version} {form}", form == "full")
            message, plain = draw.message(getattr(home, name))
            raw = encode(message)
            row = {"message": name, "version": version, "form": form}
            checked = None
            try:
                checked = agrees(name, version, raw)
            except Exception as error:
                print(f"{name} {version} {form}: kafka-python fails: {error!r}", file=sys.stderr)
            if checked is False:
                print(f"{name} {version} {form}: kafka-python disagrees", file=sys.stderr)
            row["by"] = "kio, kafka-python" if checked else "kio"
            rows.append(row | {"value": plain, "hex": raw.hex()})
    return rows


def main() -> None:
    rows = []
    for api in APIS.values():
        versions = range(api.version_min, api.version_max + 1)
        for kind in ("request", "response"):
            rows += vectors(api.name + kind.title(), api.snake, kind, versions)
    for name in EMBEDDED:
        module = "".join("_" + c.lower() if c.isupper() else c for c in name)[1:]
        rows += vectors(name, module, "data", range(4))
    lines = ",\n".join(json.dumps(row, ensure_ascii=True) for row in rows)
    OUT.write_text(f"[\n{lines}\n]\n")
    print(len(rows), "vectors,", OUT.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
