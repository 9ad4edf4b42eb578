"""Records that contain a table: the common format of ``__usage`` and ``__telemetry``.

A record's value is MessagePack: a map with a head that applies to all rows, and ``columns``, a map
of arrays of equal length. Columns, because programs that sum millions of rows convert a column into
an array at once and never read single rows.

A value is read in one of two forms. **Facts** have columns as checked, complete lists, for readers
of rows. A **block** has its head decoded and its columns as unchecked bytes, for readers that
process columns of thousands of records at a time.

**Changing it.** A column may be added: readers take a missing column as empty values, and ignore
unknown columns. Any other change (meaning, unit, a removed column) is a new version, which readers
that do not know it reject."""

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import msgspec


class Head(msgspec.Struct, gc=False):
    """(node, incarnation, flush) identifies a record, so that one written twice can be found."""

    v: int
    node: str
    incarnation: str  # of the process; changes with each start
    flush: int  # 1, 2, 3… within the incarnation, without gaps

    @property
    def name(self) -> tuple[str, str, int]:
        return self.node, self.incarnation, self.flush


Facts = TypeVar("Facts", bound=Head)
Block = TypeVar("Block", bound=Head)
Either = TypeVar("Either", bound=Head)


class Form(Generic[Facts, Block]):
    """Codec of one topic's records. ``facts`` and ``block`` have the same head and a field
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
        """``nothing``: the empty value of each column that a record may lack."""
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
        """Raises ``unreadable``, as given to the constructor."""
        facts = self._read(self._facts, value)
        columns: Any = facts.columns  # type: ignore[attr-defined]
        count = len(columns)
        for name in columns.__struct_fields__:
            column = getattr(columns, name)
            if not column and name in self._nothing:
                setattr(columns, name, [self._nothing[name]] * count)
            elif len(column) != count:
                raise self._unreadable(f"column {name} has {len(column)} rows, others have {count}")
        return facts

    def block(self, value: bytes) -> Block:
        return self._read(self._block, value)

    def _read(self, decoder: msgspec.msgpack.Decoder[Either], value: bytes) -> Either:
        try:
            found = decoder.decode(value)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise self._unreadable(f"not a {self._noun} record: {error}") from None
        if found.v != self._version:
            raise self._unreadable(
                f"a {self._noun} record of version {found.v}, known is {self._version}"
            )
        return found
