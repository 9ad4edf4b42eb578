"""Records that each contain a table, the common format of ``__usage`` and ``__telemetry``.

A record's value is a MessagePack map. It has header fields that apply to all rows, and ``columns``,
a map of arrays of equal length. Programs that sum millions of rows read whole columns as arrays.

A value is decoded in one of two forms. In ``facts``, the columns are lists, checked and complete,
for programs that read rows. In ``block``, the columns are unchecked bytes, which is faster.

A column may be added: readers fill a missing column with default values, and ignore unknown
columns. Any other change (meaning, unit, a removed column) needs a new version."""

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import msgspec


class Head(msgspec.Struct, gc=False):
    """The header of a record. ``node``, ``incarnation`` and ``flush`` identify the record."""

    v: int
    node: str
    incarnation: str  # id of the process, new at each start
    flush: int  # number of the record: 1, 2, 3… since the start of the process

    @property
    def name(self) -> tuple[str, str, int]:
        return self.node, self.incarnation, self.flush


Facts = TypeVar("Facts", bound=Head)
Block = TypeVar("Block", bound=Head)
Either = TypeVar("Either", bound=Head)


class Form(Generic[Facts, Block]):
    """The codec of one topic's records. ``facts`` and ``block`` are struct types with a field
    ``columns``: a struct of lists in ``facts``, a map of ``msgspec.Raw`` in ``block``."""

    def __init__(
        self,
        noun: str,
        version: int,
        *,
        facts: type[Facts],
        block: type[Block],
        nothing: Mapping[str, object],
        unreadable: type[Exception],
    ) -> None:
        """Create a codec. ``nothing`` has the default value of each column that may be missing."""
        self._noun = noun
        self._version = version
        self._nothing = nothing
        self._unreadable = unreadable
        self._encoder = msgspec.msgpack.Encoder()
        self._facts = msgspec.msgpack.Decoder(facts)
        self._block = msgspec.msgpack.Decoder(block)

    def encode(self, facts: Facts) -> bytes:
        return self._encoder.encode(facts)

    def decode(self, value: bytes) -> Facts:
        facts = self._read(self._facts, value)
        columns: Any = facts.columns  # type: ignore[attr-defined]
        count = len(columns)
        for name in columns.__struct_fields__:
            column = getattr(columns, name)
            if not column and name in self._nothing:
                setattr(columns, name, [self._nothing[name]] * count)
            elif len(column) != count:
                raise self._unreadable(f"column {name} has {len(column)} rows instead of {count}")
        return facts

    def block(self, value: bytes) -> Block:
        return self._read(self._block, value)

    def _read(self, decoder: msgspec.msgpack.Decoder[Either], value: bytes) -> Either:
        try:
            found = decoder.decode(value)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise self._unreadable(f"the value is not a {self._noun} record: {error}") from None
        if found.v != self._version:
            raise self._unreadable(
                f"the {self._noun} record has version {found.v}; only {self._version} is supported"
            )
        return found
