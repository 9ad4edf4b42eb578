"""``penstock user``: users who sign requests, and their passwords for Kafka clients.

A new user has no rights until a policy grants some. A password never leaves this process: the data
that a server needs to check it is derived here and sent instead."""

import sys
from pathlib import Path

import click

from penstock.cli.access.objects import delete_confirmed, owner, path_of, tenant_option, yes_option
from penstock.cli.command import Noun, Session
from penstock.cli.terminal.failure import Misuse
from penstock.cli.terminal.output import Column, columns, moment

PASSWORD_CHARS_MIN = 8

_COLUMNS = (
    *columns("name, account, is_operator OPERATOR"),
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


def read_policy(file: str) -> str:
    """Return the text of a file, or of stdin for ``-``."""
    try:
        if file == "-":
            return sys.stdin.read()
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "the file is not UTF-8 text"
        raise Misuse(f"cannot read '{file}'", str(why)) from error


@user.command()
@tenant_option
@click.option("--operator", is_flag=True, help="allow the admin API for every tenant")
@click.option("--administrator", is_flag=True, help="allow everything in the tenant")
@click.option(
    "--policy",
    "files",
    multiple=True,
    metavar="FILE",
    help="file with a policy, JSON; its name is the policy name; repeatable",
)
def create(
    session: Session,
    name: str,
    tenant: str | None,
    operator: bool,
    administrator: bool,
    files: tuple[str, ...],
) -> None:
    """Create a user, without a key. Create one with `penstock key create`."""
    policies = {"admin": _EVERYTHING} if administrator else {}
    for file in files:
        policy = "policy" if file == "-" else Path(file).stem
        if policy in policies:
            raise click.UsageError(f"Two files have the policy name '{policy}'.")
        policies[policy] = read_policy(file)
    body = {"name": name, "is_operator": operator, "policies": policies, **owner(session, tenant)}
    made = session.admin.call("POST", "users", body=body, what=f"cannot create user '{name}'")
    session.out.one(made, columns=_COLUMNS)


@user.command("list")
@tenant_option
def list_users(session: Session, tenant: str | None) -> None:
    """List the users of a tenant."""
    found = session.admin.get("users", owner(session, tenant), what="cannot list users")["users"]
    session.out.many(found, columns=_COLUMNS, empty="no users")


_KEY_COLUMNS = columns("key_id KEY, status, created_at_ms CREATED, last_used_at_ms LAST USED")


@user.command()
@tenant_option
def show(session: Session, name: str, tenant: str | None) -> None:
    """Show a user with its policies and keys."""
    query = owner(session, tenant)
    found = session.admin.get(path_of("users", name), query, what=f"cannot show user '{name}'")
    if not session.out.is_table:
        session.out.one(found)
        return
    session.out.one(found, columns=(*_COLUMNS[:5], Column("arn", "ARN"), *_COLUMNS[5:]))
    if found["keys"]:
        session.out.line("")
        session.out.many(found["keys"], columns=_KEY_COLUMNS)


@user.command()
@tenant_option
@yes_option
def delete(session: Session, name: str, tenant: str | None, yes: bool) -> None:
    """Delete a user with all its keys and passwords. They stop working at once."""
    path, query, what = (
        path_of("users", name),
        owner(session, tenant),
        f"cannot delete user '{name}'",
    )
    delete_confirmed(session, path, query, what=what, name=name, is_sure=yes)
    session.remark(f"deleted {name}")


@user.command("set-password")
@tenant_option
def set_password(session: Session, name: str, tenant: str | None) -> None:
    """Set the password of a user for Kafka clients (SCRAM-SHA-256 and SCRAM-SHA-512).

    On a terminal the command prompts for it, otherwise it reads the first line of stdin.
    """
    from penstock.cli.access.password import derive

    what = f"cannot set a password for '{name}'"
    query = owner(session, tenant)
    session.admin.get(path_of("users", name), query, what=what)
    if sys.stdin.isatty():
        password = str(
            click.prompt("Password", hide_input=True, confirmation_prompt="Again", err=True)
        )
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    if len(password) < PASSWORD_CHARS_MIN:
        raise Misuse(what, f"a password needs at least {PASSWORD_CHARS_MIN} characters")
    body = {"credentials": derive(password)}
    session.admin.call("PUT", path_of("users", name, "password"), query, body=body, what=what)
    session.remark(f"{name} can now log in with Kafka clients")


@user.command("remove-password")
@tenant_option
@yes_option
def remove_password(session: Session, name: str, tenant: str | None, yes: bool) -> None:
    """Remove the password of a user: log-ins of Kafka clients are rejected."""
    delete_confirmed(
        session,
        path_of("users", name),
        owner(session, tenant),
        what=f"cannot remove the password of '{name}'",
        name=name,
        verb="remove the password of",
        resource="/password",
        is_sure=yes,
    )
    session.remark(f"removed the password of {name}")
