"""The options of ``format("penstock")`` for writing, and the columns that can be written."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from penstock.pipeline.client.option_values import OptionInvalid, Options
from penstock.pipeline.client.read_options import Connection, check_names, parse_connection
from penstock.record.compression import Codec

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

TRANSACTION_MS: Final = 10 * 60_000
TRANSACTION_MS_MAX: Final = 15 * 60_000  # the server's maximum
BATCH_BYTES: Final = 900 * 1_024  # records of one batch; the default limit of topics is 1 MiB
_KNOWN: Final = ("topic", "delivery", "transactionTimeout", "batchBytes", "includeHeaders")
_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "topic": ("string",),
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
}


class Delivery(StrEnum):
    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"


@dataclass(frozen=True, slots=True)
class WriteOptions:
    connection: Connection
    topic: str = ""  # empty: each row has a topic
    delivery: Delivery = Delivery.EXACTLY_ONCE
    codec: int = Codec.NONE
    transaction_ms_max: int = TRANSACTION_MS
    batch_bytes: int = BATCH_BYTES


def parse_write_options(options: Mapping[str, str]) -> WriteOptions:
    """Raises OptionInvalid."""
    given = Options(options)
    check_names(given, _KNOWN)
    codec = given.text("kafka.compression.type", "none").upper()
    if codec not in Codec.__members__:
        known = ", ".join(name.lower() for name in Codec.__members__)
        raise OptionInvalid(
            f"option kafka.compression.type must be one of {known}, not '{codec.lower()}'"
        )
    timeout_ms = given.duration_ms("transactionTimeout", TRANSACTION_MS)
    if not 1_000 <= timeout_ms <= TRANSACTION_MS_MAX:
        raise OptionInvalid("option transactionTimeout must be 1s to 15m")
    batch_bytes = given.size("batchBytes") or BATCH_BYTES
    return WriteOptions(
        parse_connection(given),
        topic=given.text("topic"),
        delivery=given.choice("delivery", Delivery, Delivery.EXACTLY_ONCE),
        codec=Codec[codec],
        transaction_ms_max=timeout_ms,
        batch_bytes=batch_bytes,
    )


def check_columns(schema: "StructType", options: WriteOptions) -> None:
    """Raises OptionInvalid."""
    found = {field.name: field.dataType.simpleString() for field in schema.fields}
    for name, kind in found.items():
        if name not in _TYPES:
            known = ", ".join(_TYPES)
            raise OptionInvalid(f"unknown column {name}; a row has {known}")
        if kind not in _TYPES[name]:
            raise OptionInvalid(f"column {name} must be {' or '.join(_TYPES[name])}, not {kind}")
    if "value" not in found:
        raise OptionInvalid("column value is missing")
    if "topic" not in found and not options.topic:
        raise OptionInvalid("option topic is missing, and there is no column topic")
