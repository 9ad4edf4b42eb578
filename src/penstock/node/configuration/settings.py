"""Functions that declare, load and check settings; ``config.py`` contains the settings themselves.

Later sources override earlier ones: the declared default, files in the given order, the environment
(``PENSTOCK_SECTION__KEY``), flags. An unknown key is an error that suggests the nearest name,
because a misspelt setting that is ignored would be noticed only in production. A secret ``key`` may
also be set as ``key_file``, the path of a file that contains it."""

import dataclasses
import os
import textwrap
import tomllib
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, StrEnum
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar, dataclass_transform, get_args

import msgspec

from penstock.model import units
from penstock.model.errors import USAGE, SetupError

C = TypeVar("C", bound="Section")
T = TypeVar("T")

ENV_PREFIX = "PENSTOCK_"
ENV_SEPARATOR = "__"
FILE_SUFFIX = "_file"
MASK = "********"
CONFIG_BYTES_MAX = 1_048_576  # of a configuration or secret file


class ConfigInvalid(SetupError):
    """Raised if a setting is wrong. The text has the key, the reason and the value's origin."""

    def __init__(self, why: str) -> None:
        super().__init__(why, what="the configuration is not valid", code=USAGE)
        self.do = "see all settings with their meaning: `penstock generate config`"

    def __str__(self) -> str:
        return self.why


class OriginKind(StrEnum):
    DEFAULT = "default"
    FILE = "file"
    ENV = "env"
    FLAG = "flag"


class Origin(msgspec.Struct, frozen=True):
    kind: OriginKind
    where: str = ""  # path, variable or key

    def __str__(self) -> str:
        return f"{self.kind} {self.where}" if self.where else str(self.kind)


DEFAULT = Origin(OriginKind.DEFAULT)


class Row(msgspec.Struct, frozen=True):
    key: str
    value: str
    origin: str


class Loaded(msgspec.Struct, Generic[C], frozen=True):
    config: C
    origins: Mapping[str, Origin]  # by dotted key


class Setting(msgspec.Struct, frozen=True):
    section: str
    name: str
    type: Any
    default: Any
    help: str
    is_secret: bool
    check: Callable[[Any], str | None] | None

    @property
    def key(self) -> str:
        return f"{self.section}.{self.name}"


Given = dict[str, tuple[object, Origin]]  # by dotted key; later sources overwrite earlier ones


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Section:
    """The base class of a configuration and of its sections. Subclasses are frozen dataclasses."""

    def __init_subclass__(cls) -> None:
        dataclasses.dataclass(frozen=True, kw_only=True)(cls)


def option(
    default: T,
    help_text: str,
    *,
    check: Callable[[Any], str | None] | None = None,
    is_secret: bool = False,
    between: tuple[int, int] | None = None,
    **bounds: Any,
) -> T:
    """Declare a setting. ``check`` returns what is wrong with a value, or None. ``between`` is the
    lowest and the highest value. ``bounds`` are constraints of msgspec, such as ``max_length``."""
    if between is not None:
        bounds["ge"], bounds["le"] = between
    meta = msgspec.Meta(description=help_text, **bounds)
    metadata = {"meta": meta, "check": check, "is_secret": is_secret}
    return dataclasses.field(default=default, metadata=metadata)


def path_option(help_text: str) -> str:
    return option("", help_text, max_length=4_096)


def declared(config_type: type[Section]) -> dict[str, Setting]:
    return {
        f"{section.name}.{field.name}": Setting(
            section=section.name,
            name=field.name,
            type=Annotated[field.type, field.metadata["meta"]],
            default=field.default,
            help=field.metadata["meta"].description,
            is_secret=field.metadata["is_secret"],
            check=field.metadata["check"],
        )
        for section in dataclasses.fields(config_type)  # type: ignore[arg-type]
        for field in dataclasses.fields(section.type)  # type: ignore[arg-type]
    }


def load(
    config_type: type[C],
    *,
    flags: Mapping[str, object],
    env: Mapping[str, str],
    files: Sequence[Path],
) -> Loaded[C]:
    """Load a configuration. The keys of ``flags`` are dotted; the value None means not given."""
    settings = declared(config_type)
    given: Given = {}
    for path in files:
        given.update(_from_file(settings, path))
    given.update(_from_env(settings, env))
    flagged: Given = {}
    for key, value in flags.items():
        if value is not None:
            _give(flagged, settings, key, value, Origin(OriginKind.FLAG, key))
    given.update(flagged)
    origins: dict[str, Origin] = {}
    sections: dict[str, dict[str, object]] = {}
    for key, setting in settings.items():
        value, origins[key] = setting.default, DEFAULT
        if key in given:
            raw, origin = given[key]
            value, origins[key] = _checked(setting, raw, origin), origin
        sections.setdefault(setting.section, {})[setting.name] = value
    built = {
        section.name: section.type(**sections[section.name])  # type: ignore[operator]
        for section in dataclasses.fields(config_type)  # type: ignore[arg-type]
    }
    return Loaded(config_type(**built), origins)


def describe(loaded: Loaded[Any]) -> list[Row]:
    """Return every setting with its value and origin; secrets are masked."""
    rows = []
    for key, setting in declared(type(loaded.config)).items():
        value = getattr(getattr(loaded.config, setting.section), setting.name)
        text = MASK if setting.is_secret and value else _text(value)
        rows.append(Row(key, text, str(loaded.origins[key])))
    return rows


def render_toml(config_type: type[Section]) -> str:
    """Return a configuration file that contains every setting with its default, commented out."""
    lines: list[str] = []
    section = ""
    for setting in declared(config_type).values():
        if setting.section != section:
            section = setting.section
            lines += ["", f"[{section}]"] if lines else [f"[{section}]"]
        lines += textwrap.wrap(setting.help, 96, initial_indent="# ", subsequent_indent="# ")
        if setting.is_secret:
            lines.append(f'#{setting.name}{FILE_SUFFIX} = ""')
        value = setting.default
        # A JSON string is a TOML basic string, except for DEL, which no default contains.
        shown = msgspec.json.encode(value).decode() if isinstance(value, str) else _text(value)
        lines.append(f"#{setting.name} = {shown}")
    return "\n".join(lines) + "\n"


# ── Sources ──────────────────────────────────────────────────────────────────────────────────


def _from_file(settings: Mapping[str, Setting], path: Path) -> Given:
    origin = Origin(OriginKind.FILE, str(path))
    try:
        document = tomllib.loads(_read(path, origin).decode())
    except UnicodeDecodeError as exc:
        raise ConfigInvalid(f"{path} is not UTF-8 text") from exc
    except tomllib.TOMLDecodeError as exc:
        raise ConfigInvalid(f"{path}: {_line(exc)}") from exc
    given: Given = {}
    for section, values in document.items():
        if not isinstance(values, dict):
            raise _unknown(settings, section, origin)
        for name, value in values.items():
            _give(given, settings, f"{section}.{name}", value, origin)
    return given


def _from_env(settings: Mapping[str, Setting], env: Mapping[str, str]) -> Given:
    # Variables without the separator, such as PENSTOCK_CONTEXT, are not settings.
    given: Given = {}
    for variable in sorted(env):
        rest = variable.removeprefix(ENV_PREFIX)
        if rest == variable or ENV_SEPARATOR not in rest:
            continue
        key = rest.lower().replace(ENV_SEPARATOR, ".", 1)
        _give(given, settings, key, env[variable], Origin(OriginKind.ENV, variable))
    return given


def _give(
    given: Given, settings: Mapping[str, Setting], key: str, value: object, origin: Origin
) -> None:
    """Add a setting to ``given``. If ``key`` ends with ``_file``, read the secret from the file."""
    target = key
    if key not in settings:
        target = key.removesuffix(FILE_SUFFIX)
        if target == key or target not in settings or not settings[target].is_secret:
            raise _unknown(settings, key, origin)
        value = _secret(key, value, origin)
    if target in given:
        raise ConfigInvalid(
            f"{target} and {target}_file are both set ({origin}); set only one of them"
        )
    given[target] = (value, origin)


def _secret(key: str, path: object, origin: Origin) -> str:
    if not isinstance(path, str | os.PathLike):
        raise ConfigInvalid(f"{key}: expected a path ({origin})")
    try:
        # Editors add a newline at the end.
        return _read(Path(path), origin, key).decode().rstrip("\r\n")
    except UnicodeDecodeError as exc:
        raise ConfigInvalid(f"{key}: {path} is not UTF-8 text ({origin})") from exc


def _read(path: Path, origin: Origin, key: str = "") -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(CONFIG_BYTES_MAX + 1)
    except (OSError, ValueError) as exc:
        why = getattr(exc, "strerror", None) or exc
        where = f"{key}: {path}" if key else str(path)
        suffix = f" ({origin})" if key else ""
        raise ConfigInvalid(f"{where} cannot be read: {why}{suffix}") from exc
    if len(content) > CONFIG_BYTES_MAX:
        raise ConfigInvalid(f"{path} is larger than {CONFIG_BYTES_MAX} bytes ({origin})")
    return content


# ── Values ───────────────────────────────────────────────────────────────────────────────────


def _checked(setting: Setting, raw: object, origin: Origin) -> Any:
    # Files are typed: 1 is not "1" there. The environment contains only text.
    is_strict = origin.kind is OriginKind.FILE
    if isinstance(raw, os.PathLike):
        raw = os.fspath(raw)
    why: str | None
    kind = _kind_of(setting)
    if kind is not None and isinstance(raw, str):
        raw = _counted(setting, raw, kind, origin)
    try:
        value = msgspec.convert(raw, setting.type, strict=is_strict)
    except msgspec.ValidationError as exc:
        plain = get_args(setting.type)[0]
        why = _expected(exc)
        if issubclass(plain, Enum):
            why = "expected one of " + ", ".join(str(member.value) for member in plain)
    else:
        why = setting.check(value) if setting.check is not None else None
        if why is None:
            return value
    shown = "" if setting.is_secret else f", got {_text(raw)!r}"
    raise ConfigInvalid(f"{setting.key}: {why}{shown} ({origin})")


def _kind_of(setting: Setting) -> units.Kind | None:
    if get_args(setting.type)[0] is not int:
        return None
    words = setting.name.split("_")
    return units.DURATION if "ms" in words else units.SIZE if "bytes" in words else None


def _counted(setting: Setting, text: str, kind: units.Kind, origin: Origin) -> int:
    value = units.parsed(text, kind)
    if value is None or value != int(value):
        example = "15m" if kind is units.DURATION else "64MiB"
        why: str | None = f"expected a {kind.noun} such as {example}, got {text!r}"
    else:
        meta = get_args(setting.type)[1]
        low = meta.ge if isinstance(meta.ge, int) else None
        high = meta.le if isinstance(meta.le, int) else None
        shown = text if text[-1:].isalpha() else f"{text} {next(iter(kind.units))}"
        why = units.misfit(shown, value, kind, low, high)
        if why is None:
            return int(value)
    raise ConfigInvalid(f"{setting.key}: {why} ({origin})")


def _expected(exc: msgspec.ValidationError) -> str:
    text = _line(exc).partition(", got")[0].replace("`", "")
    return text[:1].lower() + text[1:]


def _unknown(settings: Mapping[str, Setting], key: str, origin: Origin) -> ConfigInvalid:
    import difflib  # only here: it is slow to import

    names = [*settings, *(f"{k}{FILE_SUFFIX}" for k, s in settings.items() if s.is_secret)]
    near = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
    if not near:  # right name, wrong section
        tail = key.rpartition(".")[2]
        near = [name for name in names if name.rpartition(".")[2] == tail][:1]
    hint = f"; did you mean {near[0]}?" if near else ""
    return ConfigInvalid(f"{key}: no such setting{hint} ({origin})")


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value.value) if isinstance(value, Enum) else str(value)


def _line(exc: Exception) -> str:
    return " ".join(str(exc).split())
