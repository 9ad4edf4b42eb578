"""``penstock context``: add, use, list and remove servers under a name (``contexts.py``)."""

import sys
from typing import Any

import click

from penstock.cli.contexts import DEFAULT, NAME, OPTIONS, Contexts, place
from penstock.cli.failure import ExitCode, Failure
from penstock.cli.output import Column
from penstock.cli.session import ENDPOINT_DEFAULT, Noun, Session, pass_session


@click.group(cls=Noun)
def context() -> None:
    """Servers under a name: add, use, list, remove.

    A flag counts first, then the environment, then the context, then the default.
    """


@context.command()
@click.argument("name")
@click.option(
    "--ca",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, resolve_path=True),
    help="certificate of a private authority",
)
@click.option("--key-id", metavar="ID", help="access key; its secret is read from stdin")
@click.option("--use", "is_used", is_flag=True, help="use it from now on")
@click.option("--replace", is_flag=True, help="replace a context of this name")
@pass_session
def add(
    session: Session, name: str, ca: str | None, key_id: str | None, is_used: bool, replace: bool
) -> None:
    """Save --endpoint, --kafka, --admin, --region, --account, an authority and a key as NAME."""
    if not NAME.match(name) or name == DEFAULT:
        raise click.UsageError(
            f"'{name}' cannot be a name: letters, digits, . _ and -, and not {DEFAULT}."
        )
    known = Contexts.read()
    if name in known.contexts and not replace:
        raise Failure(
            f"there is a context '{name}'",
            f"its endpoint is {known.contexts[name].get('endpoint', ENDPOINT_DEFAULT)}",
            "add --replace, or choose another name",
            exit_code=ExitCode.CONFLICT,
        )
    settings = session.settings
    made = {key: str(getattr(settings, key)) for key in OPTIONS if key in settings.explicit}
    if ca is not None:
        made["ca_file"] = ca
    if key_id is not None:
        made |= {"key_id": key_id, "secret": _secret()}
    known.contexts[name] = made
    if is_used:
        known.current = name
    known.write()
    session.remark(f"added {name} to {place()}")
    if not is_used:
        session.remark(f"use it with: penstock context use {name}, or --context {name}")


def _secret() -> str:
    """Read the secret from stdin: other users of the machine could read a flag."""
    if sys.stdin.isatty():
        return str(click.prompt("Secret", hide_input=True, err=True))
    secret = sys.stdin.readline().rstrip("\r\n")
    if not secret:
        raise Failure(
            "the secret is missing",
            "stdin is not a terminal and has no line",
            "pipe the secret into the command",
            exit_code=ExitCode.USAGE,
        )
    return secret


@context.command()
@click.argument("name")
@pass_session
def use(session: Session, name: str) -> None:
    """Use a context for all commands from now on; `default` for none."""
    known = Contexts.read()
    if name != DEFAULT:
        known.find(name)
    known.current = name
    known.write()
    session.remark(f"using {name}")


_COLUMNS = (
    Column("current", " ", form=lambda is_current: "*" if is_current else ""),
    Column("name", "NAME"),
    Column("endpoint", "ENDPOINT"),
    Column("kafka", "KAFKA"),
    Column("ca_file", "CA"),
    Column("key_id", "KEY ID"),
)


@context.command("list")
@pass_session
def list_contexts(session: Session) -> None:
    """List contexts; secrets are not shown."""
    known = Contexts.read()
    rows: list[dict[str, Any]] = [
        {
            "name": name,
            "current": name == known.current,
            **{key: value for key, value in each.items() if key != "secret"},
        }
        for name, each in sorted(known.contexts.items())
    ]
    none = {"name": DEFAULT, "current": known.current == DEFAULT, "endpoint": ENDPOINT_DEFAULT}
    session.out.many([none, *rows], columns=_COLUMNS)


@context.command()
@click.argument("name")
@pass_session
def remove(session: Session, name: str) -> None:
    """Remove a context and the key in it."""
    known = Contexts.read()
    known.find(name)
    del known.contexts[name]
    if known.current == name:
        known.current = DEFAULT
        session.remark(f"{name} was in use: using {DEFAULT} from now on")
    known.write()
    session.remark(f"removed {name}")
