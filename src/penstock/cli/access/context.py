"""Commands of ``penstock context``, which saves addresses and keys of servers under names."""

import sys
from typing import Any

import click

from penstock.cli.clients import contexts
from penstock.cli.clients.contexts import DEFAULT, ENDPOINT_DEFAULT, Contexts
from penstock.cli.command import Noun, Session
from penstock.cli.terminal.failure import Conflict, Misuse
from penstock.cli.terminal.options import option
from penstock.cli.terminal.output import Column, columns

_COLUMNS = (
    Column("current", " ", form=lambda is_current: "*" if is_current else ""),
    *columns("name, endpoint, kafka, ca_file CA, key_id"),
)
context = Noun(
    "context",
    help="""Add, use, list, remove contexts: addresses and keys of servers, saved under names.

    Precedence of settings, highest first: flag, environment, context, default.""",
)


@context.command()
@option(
    "--ca",
    click.Path(exists=True, dir_okay=False, resolve_path=True),
    "PEM file with the certificate of a private CA",
    metavar="FILE",
)
@click.option("--key-id", metavar="ID", help="id of an access key; the secret is read from stdin")
@click.option("--use", "is_used", is_flag=True, help="use the new context for further commands")
@click.option("--replace", is_flag=True, help="replace an existing context of this name")
def add(
    session: Session, name: str, ca: str | None, key_id: str | None, is_used: bool, replace: bool
) -> None:
    """Save a server as context NAME.

    Saves the given --endpoint, --kafka, --admin, --region, --account, --ca and --key-id."""
    if not contexts.NAME.match(name) or name == DEFAULT:
        raise click.UsageError(
            f"Invalid name '{name}': use only letters, digits, '.', '_' and '-'."
            f" The name '{DEFAULT}' is reserved."
        )
    known = Contexts.read()
    if name in known.contexts and not replace:
        raise Conflict(
            f"context '{name}' exists already",
            f"its endpoint is {known.contexts[name].get('endpoint', ENDPOINT_DEFAULT)}",
            "add --replace, or choose another name",
        )
    settings = session.settings
    made = {
        key: str(getattr(settings, key)) for key in contexts.OPTIONS if key in settings.explicit
    }
    if ca is not None:
        made["ca_file"] = ca
    if key_id is not None:
        made |= {"key_id": key_id, "secret": _secret()}
    known.contexts[name] = made
    if is_used:
        known.current = name
    known.write()
    session.remark(f"added {name} to {contexts.file_of_contexts()}")
    if not is_used:
        session.remark(f"select it with `penstock context use {name}` or --context {name}")


def _secret() -> str:
    """Read the secret from stdin. An option would show it to other users of the machine."""
    if sys.stdin.isatty():
        return str(click.prompt("Secret", hide_input=True, err=True))
    secret = sys.stdin.readline().rstrip("\r\n")
    if not secret:
        raise Misuse(
            "the secret is missing",
            "stdin is not a terminal and is empty",
            "pass the secret to the command through stdin",
        )
    return secret


@context.command()
def use(session: Session, name: str) -> None:
    """Use a context for all further commands. The name `default` means no context."""
    known = Contexts.read()
    if name != DEFAULT:
        known.find(name)
    known.current = name
    known.write()
    session.remark(f"using {name}")


@context.command("list")
def list_contexts(session: Session) -> None:
    """List contexts, without their secrets."""
    known = Contexts.read()
    rows: list[dict[str, Any]] = []
    named = [(DEFAULT, {"endpoint": ENDPOINT_DEFAULT}), *sorted(known.contexts.items())]
    for name, each in named:
        shown = {key: value for key, value in each.items() if key != "secret"}
        rows.append({"name": name, "current": name == known.current, **shown})
    session.out.many(rows, columns=_COLUMNS)


@context.command()
def remove(session: Session, name: str) -> None:
    """Remove a context and its access key from this machine."""
    known = Contexts.read()
    known.find(name)
    del known.contexts[name]
    if known.current == name:
        known.current = DEFAULT
        session.remark(f"{name} was the current context: the current context is {DEFAULT} now")
    known.write()
    session.remark(f"removed {name}")
