"""Names that a server knows: for tab completion, and for "did you mean" when one is misspelt.

One table maps noun and parameter to a kind of name, so that commands need no code for this. Both
uses are optional: if the server does not reply quickly, there are no names and no error."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import click

from penstock.cli.clients import contexts
from penstock.cli.clients.contexts import Settings
from penstock.cli.clients.http import name_of
from penstock.cli.clients.session import Session
from penstock.cli.terminal.failure import Failure, nearest

_COMPLETED_MAX = 200
_LISTED_MAX = 10_000  # names that a misspelt one is compared with
_TIMEOUT_S = 2.0
_CREATING = ("create", "add")  # commands whose name does not exist yet

# By noun and parameter; None: any noun.
_KINDS: Mapping[tuple[str | None, str], str] = {
    ("queue", "name"): "queue",
    ("queue", "names"): "queue",
    ("message", "words"): "queue",
    ("topic", "name"): "topic",
    ("group", "name"): "group",
    ("group", "names"): "group",
    ("message", "group"): "group",
    ("user", "name"): "user",
    ("tenant", "name"): "tenant",
    ("quota", "name"): "tenant",
    ("context", "name"): "context",
    (None, "queue"): "queue",
    (None, "dead_letter"): "queue",
    (None, "target"): "queue",
    (None, "topic"): "topic",
    (None, "user"): "user",
    (None, "tenant"): "tenant",
    (None, "context"): "context",
}


def _kind_of(ctx: click.Context, name: str | None) -> str | None:
    if name is None or (name == "name" and ctx.info_name in _CREATING):
        return None
    noun = ctx.parent.info_name if ctx.parent is not None else None
    if (noun, name) == ("message", "group") and not ctx.params.get("topic"):
        return None  # a message group: there is no list of those
    return _KINDS.get((noun, name)) or _KINDS.get((None, name))


def _names(kind: str, session: Session, prefix: str = "") -> Iterable[str]:
    """Yield names of this kind; a prefix may be used to get fewer."""
    match kind:
        case "queue":
            return session.sqs.queue_names(prefix)
        case "topic":
            topics = session.kafka.metadata().topics
            return (str(each.name) for each in topics if not each.is_internal)
        case "group":
            return (each.name for each in session.kafka.groups(what="cannot list groups"))
        case "user":
            tenant = click.get_current_context().params.get("tenant") or session.settings.account
            users = session.admin.get("users", {"tenant": tenant})["users"]
            return (str(each["name"]) for each in users)
        case "tenant":
            return (str(each["name"]) for each in session.admin.get("tenants")["tenants"])
        case _:
            return (contexts.DEFAULT, *contexts.Contexts.read().contexts)


def completed(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return names that begin with the typed text."""
    kind = _kind_of(ctx, param.name)
    if kind is None:
        return []
    settings = ctx.find_root().ensure_object(Settings)
    settings.timeout_s = _TIMEOUT_S
    session = Session(settings)
    try:
        contexts.apply(settings)
        with ctx.scope():
            found = _names(kind, session, incomplete)
            names = (name for name in found if name.startswith(incomplete))
            return sorted(islice(names, _COMPLETED_MAX))
    except Exception:
        return []
    finally:
        session.close()


def suggest(ctx: click.Context, session: Session, failure: Failure) -> None:
    """Add the most similar name to a failure of a name that was not found."""
    if "did you mean" in failure.fix:
        return
    for kind, given in _given(ctx):
        try:
            names = list(islice(_names(kind, session), _LISTED_MAX))
        except Failure:
            return  # keep the original failure
        near = "" if given in names else nearest(given, names)
        if near:
            failure.fix = f"did you mean '{near}'? {failure.fix}".rstrip()
            return


def _given(ctx: click.Context) -> Iterator[tuple[str, str]]:
    for name, value in ctx.params.items():
        kind = _kind_of(ctx, name)
        values: tuple[Any, ...] = value if isinstance(value, tuple) else (value,)
        for each in values[:1] if name == "words" else values:
            if kind is not None and isinstance(each, str):
                yield kind, name_of(each) if kind == "queue" else each
