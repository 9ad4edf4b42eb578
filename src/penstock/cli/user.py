"""``penstock user``: users who sign requests, and their passwords for Kafka clients.

A new user has no rights until a policy grants some. A password never leaves this process: the data
that a server needs to check it is derived here and sent instead."""

import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from penstock.cli.failure import ExitCode, Failure
from penstock.cli.output import Column, moment
from penstock.cli.session import Noun, Session, confirm_name, pass_session
from penstock.cli.tenancy import tenant_of, tenant_option

PASSWORD_CHARS_MIN = 8

_COLUMNS = (
    Column("name", "NAME"),
    Column("account", "ACCOUNT"),
    Column("is_operator", "OPERATOR"),
    Column("policies", "POLICIES", form=", ".join),
    Column("keys", "KEYS", is_number=True, form=lambda keys: str(len(keys))),
    Column("mechanisms", "PASSWORD", form=lambda found: "yes" if found else "no"),
    Column("created_at_ms", "CREATED", form=moment),
)
_EVERYTHING = (
    '{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"*","Resource":"*"}]}'
)


@click.group(cls=Noun)
def user() -> None:
    """Create, list, show, delete users; set passwords."""


def path_of(name: str) -> str:
    return f"users/{quote(name, safe='')}"


def read_policy(file: str) -> str:
    """Return the text of a file, or of stdin for ``-``."""
    try:
        if file == "-":
            return sys.stdin.read()
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise Failure(f"cannot read '{file}'", str(why), exit_code=ExitCode.USAGE) from error


@user.command()
@click.argument("name")
@tenant_option
@click.option("--operator", is_flag=True, help="may use the admin API for every tenant")
@click.option("--administrator", is_flag=True, help="may do everything in the tenant")
@click.option(
    "--policy",
    "files",
    multiple=True,
    metavar="FILE",
    help="a policy in JSON, named after the file; can be given many times",
)
@pass_session
def create(
    session: Session,
    name: str,
    tenant: str | None,
    operator: bool,
    administrator: bool,
    files: tuple[str, ...],
) -> None:
    """Create a user. It has no key yet: see `penstock key create`."""
    policies = {"admin": _EVERYTHING} if administrator else {}
    for file in files:
        policy = "policy" if file == "-" else Path(file).stem
        if policy in policies:
            raise click.UsageError(f"Two policies would be called '{policy}'.")
        policies[policy] = read_policy(file)
    body: dict[str, Any] = {"name": name, "is_operator": operator, "policies": policies}
    chosen = tenant_of(session, tenant)
    if chosen is not None:
        body["tenant"] = chosen
    made = session.admin.call("POST", "users", body=body, what=f"cannot create user '{name}'")
    session.out.one(made, columns=_COLUMNS)


@user.command("list")
@tenant_option
@pass_session
def list_users(session: Session, tenant: str | None) -> None:
    """List the users of a tenant."""
    query = {"tenant": tenant_of(session, tenant)}
    found = session.admin.get("users", query, what="cannot list users")["users"]
    session.out.many(found, columns=_COLUMNS, empty="no users")


_KEY_COLUMNS = (
    Column("key_id", "KEY"),
    Column("status", "STATUS"),
    Column("created_at_ms", "CREATED", form=moment),
    Column("last_used_at_ms", "LAST USED", form=moment),
)


@user.command()
@click.argument("name")
@tenant_option
@pass_session
def show(session: Session, name: str, tenant: str | None) -> None:
    """Show one user with its policies and keys."""
    query = {"tenant": tenant_of(session, tenant)}
    found = session.admin.get(path_of(name), query, what=f"cannot show user '{name}'")
    if not session.out.is_table:
        session.out.one(found)
        return
    session.out.one(found, columns=(*_COLUMNS[:5], Column("arn", "ARN"), *_COLUMNS[5:]))
    if found["keys"]:
        session.out.line("")
        session.out.many(found["keys"], columns=_KEY_COLUMNS)


@user.command()
@click.argument("name")
@tenant_option
@click.option("--yes", is_flag=True, help="do not ask")
@pass_session
def delete(session: Session, name: str, tenant: str | None, yes: bool) -> None:
    """Delete a user with all its keys and passwords; they end at once."""
    what = f"cannot delete user '{name}'"
    query = {"tenant": tenant_of(session, tenant)}
    session.admin.get(path_of(name), query, what=what)
    confirm_name(name, verb="delete", is_sure=yes)
    session.admin.call("DELETE", path_of(name), query, what=what)
    session.remark(f"deleted {name}")


@user.command("set-password")
@click.argument("name")
@tenant_option
@pass_session
def set_password(session: Session, name: str, tenant: str | None) -> None:
    """Set the password of a Kafka client, for SCRAM-SHA-256 and SCRAM-SHA-512.

    It is asked for on a terminal, and is the first line of stdin otherwise.
    """
    from penstock.cli.password import derive

    what = f"cannot set a password for '{name}'"
    query = {"tenant": tenant_of(session, tenant)}
    session.admin.get(path_of(name), query, what=what)
    if sys.stdin.isatty():
        password = str(
            click.prompt("Password", hide_input=True, confirmation_prompt="Again", err=True)
        )
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    if len(password) < PASSWORD_CHARS_MIN:
        raise Failure(
            what,
            f"a password has at least {PASSWORD_CHARS_MIN} characters",
            exit_code=ExitCode.USAGE,
        )
    body = {"credentials": derive(password)}
    session.admin.call("PUT", f"{path_of(name)}/password", query, body=body, what=what)
    session.remark(f"{name} can log in over Kafka now")


@user.command("remove-password")
@click.argument("name")
@tenant_option
@click.option("--yes", is_flag=True, help="do not ask")
@pass_session
def remove_password(session: Session, name: str, tenant: str | None, yes: bool) -> None:
    """Let nobody log in over Kafka as this user any more."""
    what = f"cannot remove the password of '{name}'"
    query = {"tenant": tenant_of(session, tenant)}
    session.admin.get(path_of(name), query, what=what)
    confirm_name(name, verb="remove the password of", is_sure=yes)
    session.admin.call("DELETE", f"{path_of(name)}/password", query, what=what)
    session.remark(f"{name} has no password any more")
