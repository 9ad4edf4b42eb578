"""Tables of configs, and the changes that a request makes to the configs of one resource.

A function of type ``Read`` checks the value of a config. It returns the text to store, or raises
ValueError with a text such as "the value must be true or false"."""

import ipaddress
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

import msgspec

from penstock.frontend.kafka.context import KafkaContext
from penstock.frontend.kafka.errors import ApiError, invalid_request
from penstock.model.levels import BROKER_CONFIGS_STORED
from penstock.model.stream import LONG_MAX
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
)

INT_MAX: Final = 2**31 - 1
DIGITS_MAX: Final = 20  # of a 64-bit number with its sign

Read = Callable[[str], str]


class Source(IntEnum):
    """Where the value of a config comes from, as numbered by Kafka."""

    TOPIC = 1
    BROKER = 2  # set for one broker while it runs
    ALL_BROKERS = 3  # set for all brokers
    NODE = 4  # the node's own configuration, fixed while it runs
    DEFAULT = 5
    LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


class ValueType(IntEnum):
    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7


Synonym = tuple[str, str | None, Source]


class ConfigEntry(msgspec.Struct, frozen=True):
    """A config as clients see it. ``synonyms`` lists the value in use, then those it overrides."""

    name: str
    value: str | None
    source: Source
    type: ValueType
    documentation: str
    is_read_only: bool = False
    is_sensitive: bool = False
    synonyms: tuple[Synonym, ...] = ()


@dataclass(frozen=True, slots=True)
class ConfigRow:
    name: str
    type: ValueType
    default: str | None
    node_name: str | None  # the broker config that sets the default
    read: Read
    documentation: str

    def entry(self, synonyms: Sequence[Synonym], *, is_read_only: bool = False) -> ConfigEntry:
        """Return the config with the value of the first synonym, or with its default value."""
        built_in = (self.name, self.default, Source.DEFAULT)
        _, value, source = synonyms[0] if synonyms else built_in
        return ConfigEntry(
            self.name,
            value,
            source,
            self.type,
            self.documentation,
            is_read_only,
            synonyms=tuple(synonyms),
        )


Table = Mapping[str, ConfigRow]


def table(text: str, **checks: Read) -> Table:
    """Parse a table of configs. A row has a name, a type with a check, a default (or ``-``) and
    optionally the broker config that sets the default (``=`` for the same name). A check is a range
    ``1..9``, a choice ``a/b`` or one of ``checks``. Indented lines document the rows above."""
    rows: list[ConfigRow] = []
    for block in re.findall(r"((?:^\S.*\n)+)((?:^ .*\n)+)", text, re.MULTILINE):
        heads, documentation = block
        for head in heads.splitlines():
            name, checked, default, *node = (part.strip() for part in head.split("|"))
            kind, _, check = checked.partition(" ")
            rows.append(
                ConfigRow(
                    name,
                    ValueType[kind.upper()],
                    None if default == "-" else default,
                    node[0].replace("=", name) if node else None,
                    checks[check] if check in checks else _check(kind, check),
                    " ".join(documentation.split()),
                )
            )
    return {row.name: row for row in sorted(rows, key=lambda row: row.name)}


def _check(kind: str, check: str) -> Read:
    if kind == "boolean":
        return flag
    if "/" in check:
        return _choice(*check.split("/"))
    low, _, high = check.partition("..")
    if kind == "double":
        return _decimal(float(low), float(high or "inf"))
    return whole(int(low or 0), int(high or (INT_MAX if kind == "int" else LONG_MAX)))


def is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def whole(low: int, high: int) -> Read:
    bound = f"of at least {low}" if high >= INT_MAX else f"from {low} to {high}"

    def read(text: str) -> str:
        digits = text.removeprefix("-")
        is_number = digits.isascii() and digits.isdigit() and len(text) <= DIGITS_MAX
        if not is_number or not low <= int(text) <= high:
            raise ValueError(f"the value must be a whole number {bound}")
        return str(int(text))

    return read


def _decimal(low: float, high: float) -> Read:
    bound = f"from {low:g} to {high:g}" if high < float("inf") else f"of at least {low:g}"

    def read(text: str) -> str:
        try:
            is_right = len(text) <= 2 * DIGITS_MAX and low <= float(text) <= high
        except ValueError:
            is_right = False
        if not is_right:
            raise ValueError(f"the value must be a number {bound}")
        return text

    return read


def flag(text: str) -> str:
    lower = text.lower()
    if lower not in ("true", "false"):
        raise ValueError("the value must be true or false")
    return lower


def _choice(*choices: str) -> Read:
    def read(text: str) -> str:
        if text not in choices:
            raise ValueError(f"the value must be one of {', '.join(choices)}")
        return text

    return read


def invalid_config(reason: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_CONFIG, reason)


def read_by(row: ConfigRow, text: str | None) -> str:
    """Check a value that a client has sent and return the text to store."""
    if text is None:
        raise invalid_config(f"The config {row.name} needs a value.")
    try:
        return row.read(text.strip())
    except ValueError as error:
        raise invalid_config(f"{row.name}: {error}, not {text[:100]!r}.") from None


class ResourceType(IntEnum):
    TOPIC = 2
    BROKER = 4
    LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ListOperation(IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Edit(NamedTuple):
    given: Mapping[str, str | None]  # by name
    removed: frozenset[str] = frozenset()  # names of configs that get their defaults


def edit_of(resource: AlterConfigsResource, rows: Table, current: Mapping[str, str]) -> Edit:
    given: dict[str, str | None] = {}
    removed: list[str] = []
    for config in resource.configs:
        operation = config.config_operation
        if operation == ListOperation.DELETE:
            removed.append(config.name)
        elif operation == ListOperation.SET:
            given[config.name] = config.value
        elif operation in (ListOperation.APPEND, ListOperation.SUBTRACT):
            given[config.name] = _changed_list(config, rows, current)
        else:
            raise invalid_request(f"Unknown operation {operation}: use 0 (set) to 3 (subtract).")
    return Edit(given, frozenset(removed))


def _changed_list(config: AlterableConfig, rows: Table, current: Mapping[str, str]) -> str:
    name, row = config.name, rows.get(config.name)
    if row is None or row.type is not ValueType.LIST:
        raise invalid_config(f"The config {name} is not a list.")
    if config.value is None:
        raise invalid_config(f"The config {name} needs a value.")
    parts = [part for part in current.get(name, row.default or "").split(",") if part]
    requested = [part.strip() for part in config.value.split(",")]
    if config.config_operation == ListOperation.APPEND:
        parts += [part for part in requested if part not in parts]
    else:
        parts = [part for part in parts if part not in requested]
    return ",".join(parts)


def check_level(context: KafkaContext) -> None:
    """Raise ApiError if the cluster may have a node that is too old to read stored configs."""
    if not context.dynamic.is_in_force:
        raise ApiError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"This change needs feature level {BROKER_CONFIGS_STORED}: upgrade all nodes, then run"
            " penstock cluster upgrade.",
        )


async def store(
    context: KafkaContext, kind: str, name: str, changes: Mapping[str, str | None], *, is_dry: bool
) -> None:
    """Store the changed values, unless ``is_dry`` is set."""
    before = context.dynamic.of(kind, name)
    changed = {key: text for key, text in changes.items() if before.get(key) != text}
    if changed and not is_dry:
        check_level(context)
        await context.dynamic.change(kind, name, changed)
