"""``penstock key``: the ids and secrets that requests are signed with.

A secret is printed once, when it is created, in the form that AWS tools read from their credentials
file. To rotate: create a new key, give it to the clients, check that the old one is no longer used,
then disable and delete it."""

import click

from penstock.cli.access.objects import delete_confirmed, owner, path_of, tenant_option, yes_option
from penstock.cli.clients.http import Json
from penstock.cli.command import Noun, Session
from penstock.cli.terminal.output import columns

_COLUMNS = columns(
    "key_id KEY, user, account, status, created_at_ms CREATED, last_used_at_ms LAST USED"
)


@click.group(cls=Noun)
def key() -> None:
    """Create, list, rotate, disable, enable, delete access keys."""


def _print_made(session: Session, made: Json, profile: str | None) -> None:
    """Print as a profile even into a pipe: usually the output is appended to a credentials file."""
    form = session.settings.output or "table"
    if form != "table":
        session.out.one(made, name="key_id")
    else:
        session.out.line(f"[{profile or made['user']}]")
        session.out.line(f"aws_access_key_id = {made['key_id']}")
        session.out.line(f"aws_secret_access_key = {made['secret']}")
    session.out.flush()
    session.remark("save the secret now: it is not shown again")


@key.command()
@tenant_option
@click.option("--profile", help="name of the printed AWS profile [default: the user name]")
def create(session: Session, user: str, tenant: str | None, profile: str | None) -> None:
    """Create an access key for a user and print it as an AWS profile."""
    body = {"user": user, **owner(session, tenant)}
    made = session.admin.call("POST", "keys", body=body, what=f"cannot create a key for '{user}'")
    _print_made(session, made, profile)


@key.command("list")
@tenant_option
def list_keys(session: Session, user: str | None, tenant: str | None) -> None:
    """List the access keys of a user, or of all users of a tenant."""
    query = {**owner(session, tenant), "user": user}
    found = session.admin.get("keys", query, what="cannot list keys")["keys"]
    session.out.many(found, columns=_COLUMNS, name="key_id", empty="no keys")


def _set_status(session: Session, key_id: str, status: str, verb: str) -> None:
    what = f"cannot {verb} key '{key_id}'"
    session.admin.call("PATCH", path_of("keys", key_id), body={"status": status}, what=what)
    session.remark(f"{verb}d {key_id}")


@key.command()
def disable(session: Session, key_id: str) -> None:
    """Reject requests that are signed with a key, until it is enabled."""
    _set_status(session, key_id, "disabled", "disable")


@key.command()
def enable(session: Session, key_id: str) -> None:
    """Accept a disabled key again."""
    _set_status(session, key_id, "active", "enable")


@key.command()
@click.option("--profile", help="name of the printed AWS profile [default: the user name]")
def rotate(session: Session, key_id: str, profile: str | None) -> None:
    """Create another key for the same user. The old key works until it is disabled."""
    made = session.admin.call(
        "POST", path_of("keys", key_id, "rotate"), body={}, what=f"cannot rotate key '{key_id}'"
    )
    _print_made(session, made, profile)
    session.remark(f"disable the old key when it is unused: `penstock key disable {key_id}`")


@key.command()
@yes_option
def delete(session: Session, key_id: str, yes: bool) -> None:
    """Delete an access key. It stops working at once; this cannot be undone."""
    what = f"cannot delete key '{key_id}'"
    delete_confirmed(session, path_of("keys", key_id), {}, what=what, name=key_id, is_sure=yes)
    session.remark(f"deleted {key_id}")
