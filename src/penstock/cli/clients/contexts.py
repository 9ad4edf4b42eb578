"""The settings of a command, and contexts: addresses and keys of servers, saved under names.

A value of a context is used if neither a flag nor an environment variable sets it. If a flag or a
variable sets an address, the current context is ignored, because its key belongs to another server.
But a context that is chosen with ``--context`` or PENSTOCK_CONTEXT is always used."""

import dataclasses
import json
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock.cli.terminal.failure import Misuse, no_such

if TYPE_CHECKING:
    from pathlib import Path

ENDPOINT_DEFAULT = "http://127.0.0.1:9324"
REGION_DEFAULT = "us-east-1"
TIMEOUT_S_DEFAULT = 30.0
DEFAULT = "default"  # means no context
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
ADDRESSES = ("endpoint", "admin", "kafka")
OPTIONS = (*ADDRESSES, "region", "account")  # fields that are global options as well
FIELDS = (*OPTIONS, "ca_file", "key_id", "secret")
_NAMES = "AWS_ACCESS_KEY_ID AWS_PROFILE PENSTOCK_KEY_ID PENSTOCK_TOKEN PENSTOCK_ADMIN_TOKEN"
_KEY_VARIABLES = _NAMES.split()

Context = dict[str, str]

# Variables that the context of this command adds to the environment; set by ``apply``.
_added: dict[str, str] = {}


@dataclasses.dataclass(slots=True)
class Settings:
    endpoint: str = ENDPOINT_DEFAULT
    admin: str | None = None  # None: reported by the endpoint
    kafka: str | None = None  # None: reported by the endpoint or the admin API
    region: str = REGION_DEFAULT
    account: str | None = None  # None: the server's default
    timeout_s: float = TIMEOUT_S_DEFAULT
    output: str | None = None  # None: depends on stdout
    quiet: bool = False
    debug: bool = False
    context: str | None = None  # None: the current context
    explicit: set[str] = dataclasses.field(default_factory=set)


def environment() -> Mapping[str, str]:
    """Return the environment variables, with the CA file and key of the context as defaults."""
    return {**_added, **os.environ}


def apply(settings: Settings) -> None:
    """Apply the values of the context to settings that no flag and no environment variable sets."""
    _added.clear()
    chosen = settings.context
    if chosen is None and any(name in settings.explicit for name in ADDRESSES):
        return
    known = Contexts.read()
    name = chosen or known.current
    if name == DEFAULT:
        return
    context = known.find(name)
    for option in OPTIONS:
        if option in context and option not in settings.explicit:
            setattr(settings, option, context[option])
    env = os.environ
    if "ca_file" in context and not (env.get("PENSTOCK_CA_FILE") or env.get("AWS_CA_BUNDLE")):
        _added["PENSTOCK_CA_FILE"] = context["ca_file"]
    if "key_id" in context and not any(env.get(variable) for variable in _KEY_VARIABLES):
        _added["PENSTOCK_KEY_ID"] = context["key_id"]
        _added["PENSTOCK_SECRET"] = context["secret"]


def file_of_contexts() -> "Path":
    from pathlib import Path

    base = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")  # noqa: PTH111
    return Path(base) / "penstock" / "contexts.json"


@dataclasses.dataclass
class Contexts:
    current: str = DEFAULT
    contexts: dict[str, Context] = dataclasses.field(default_factory=dict)

    @classmethod
    def read(cls) -> "Contexts":
        path = file_of_contexts()
        try:
            data, mode = path.read_bytes(), path.stat().st_mode
        except FileNotFoundError:
            return cls()
        if mode & 0o077:
            raise Misuse(
                f"{path} is readable by other users",
                f"its mode is {mode & 0o777:o}, and it may contain secrets",
                f"run `chmod 600 {path}`",
            )
        try:
            return cls(**_checked(json.loads(data)))
        except ValueError as error:
            raise Misuse(
                f"{path} cannot be read",
                str(error),
                "repair the file, or remove it and add the contexts again",
            ) from None

    def write(self) -> None:
        path = file_of_contexts()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = path.with_suffix(".new")
        new.unlink(missing_ok=True)
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump({"current": self.current, "contexts": self.contexts}, file, indent=2)
        new.replace(path)

    def find(self, name: str) -> Context:
        if name not in self.contexts:
            raise no_such("context", name, self.contexts)
        return self.contexts[name]


def _checked(found: Any) -> dict[str, Any]:
    contexts = found.get("contexts") if isinstance(found, dict) else None
    if not isinstance(contexts, dict):
        raise ValueError("the field 'contexts' is missing or not an object")
    current = found.get("current", DEFAULT)
    if current != DEFAULT and current not in contexts:
        raise ValueError(f"the current context {current!r} does not exist")
    for name, context in contexts.items():
        if not isinstance(context, dict) or not all(
            key in FIELDS and isinstance(value, str) for key, value in context.items()
        ):
            raise ValueError(f"context {name!r} has an invalid field; use only {', '.join(FIELDS)}")
        if ("key_id" in context) != ("secret" in context):
            raise ValueError(f"context {name!r} needs both key_id and secret, or neither")
    return {"current": current, "contexts": contexts}
