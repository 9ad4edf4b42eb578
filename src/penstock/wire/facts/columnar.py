"""Records that hold a table: what ``__usage`` and ``__telemetry`` have in common.

A record's value is MessagePack: a map with a head that holds for all its rows, and ``columns``, a
map of arrays of equal length. Columns, because whoever sums millions of rows turns a column into an
array at once and never looks at a row.

A value is read in one of two ways. As **facts** its columns are lists, checked and complete: for
whoever looks at rows. As a **block** its head is read and its columns stay the bytes that they
are, unchecked: for whoever works up thousands of records at a time and reads columns in bulk.

**Changing it.** A column may be added: readers take a missing one for nothing, and pass over those
they do not know. Anything else (another meaning, another unit, a column gone) is a new version,
which readers that do not know it refuse.
"""

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import msgspec


class Head(msgspec.Struct, gc=False):
    """What every such record begins with. (node, incarnation, flush) names it for good."""

    v: int
    node: str
    incarnation: str  # of the process; another one after each start
    flush: int  # 1, 2, 3… of this incarnation, without a gap

    @property
    def name(self) -> tuple[str, str, int]:
        return self.node, self.incarnation, self.flush


Facts = TypeVar("Facts", bound=Head)
Block = TypeVar("Block", bound=Head)
Either = TypeVar("Either", bound=Head)


class Form(Generic[Facts, Block]):
    """How one topic's records are written and read. ``facts`` and ``block`` have the same head and
    a field ``columns``: a struct of lists in the one, a map of ``msgspec.Raw`` in the other."""

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
        """``nothing``: for each column what a row has in it that says nothing; columns that are not
        in there must be in every record."""
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
        """Raises what was given as ``unreadable``."""
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
        """Raises what was given as ``unreadable``, for a head that is none."""
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
