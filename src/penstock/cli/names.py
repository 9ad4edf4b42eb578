"""Names that a server knows: for tab completion, and for "did you mean" when one is misspelt.

One table maps noun and parameter to a kind of name, so that commands need no code for this. Both
uses are optional: if the server does not reply quickly, there are no names and no error."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import click

from penstock.cli import contexts
from penstock.cli.client import name_of
from penstock.cli.failure import ExitCode, Failure
from penstock.cli.session import Session, Settings

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
_FIXES = {kind: f"list {kind}s with `penstock {kind} list`" for kind in set(_KINDS.values())}


def _kind_of(ctx: click.Context, name: str | None) -> str | None:
    if name is None or (name == "name" and ctx.info_name in _CREATING):
        return None
    noun = ctx.parent.info_name if ctx.parent is not None else None
    if (noun, name) == ("message", "group") and not ctx.params.get("topic"):
        return None  # a message group: there is no list of those
    return _KINDS.get((noun, name)) or _KINDS.get((None, name))


def _queues(session: Session, prefix: str) -> Iterable[str]:
    return session.sqs.queue_names(prefix)


def _topics(session: Session, prefix: str) -> Iterable[str]:  # noqa: ARG001 - one form for all
    return (str(each.name) for each in session.kafka.metadata().topics if not each.is_internal)


def _groups(session: Session, prefix: str) -> Iterable[str]:  # noqa: ARG001
    from penstock.cli.group import known_groups

    return (each.name for each in known_groups(session))


def _users(session: Session, prefix: str) -> Iterable[str]:  # noqa: ARG001
    tenant = click.get_current_context().params.get("tenant") or session.settings.account
    return (str(each["name"]) for each in session.admin.get("users", {"tenant": tenant})["users"])


def _tenants(session: Session, prefix: str) -> Iterable[str]:  # noqa: ARG001
    return (str(each["name"]) for each in session.admin.get("tenants")["tenants"])


def _contexts(session: Session, prefix: str) -> Iterable[str]:  # noqa: ARG001
    return (contexts.DEFAULT, *contexts.Contexts.read().contexts)


_SOURCES: Mapping[str, Callable[[Session, str], Iterable[str]]] = {
    "queue": _queues,
    "topic": _topics,
    "group": _groups,
    "user": _users,
    "tenant": _tenants,
    "context": _contexts,
}


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
            found = _SOURCES[kind](session, incomplete)
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
            names = list(islice(_SOURCES[kind](session, ""), _LISTED_MAX))
        except Failure:
            return  # keep the original failure
        hint = "" if given in names else _hint(given, names)
        if hint:
            failure.fix = f"{hint} {failure.fix}".rstrip()
            return


def _given(ctx: click.Context) -> Iterator[tuple[str, str]]:
    for name, value in ctx.params.items():
        kind = _kind_of(ctx, name)
        values: tuple[Any, ...] = value if isinstance(value, tuple) else (value,)
        for each in values[:1] if name == "words" else values:
            if kind is not None and isinstance(each, str):
                yield kind, name_of(each) if kind == "queue" else each


def _hint(given: str, names: Iterable[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(given, list(names), n=1)
    return f"did you mean '{near[0]}'?" if near else ""


def no_such(kind: str, given: str, names: Iterable[str]) -> Failure:
    known = list(names)
    fix = f"{_hint(given, known)} {_FIXES[kind]}".strip()
    return Failure(
        f"no {kind} '{given}'", f"{len(known)} are known", fix, exit_code=ExitCode.NOT_FOUND
    )
