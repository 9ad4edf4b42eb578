"""``penstock key``: the ids and secrets that requests are signed with.

A secret is printed once, when it is created, in the form that AWS tools read from their credentials
file. To rotate: create a new key, give it to the clients, check that the old one is no longer used,
then disable and delete it."""

from urllib.parse import quote

import click

from penstock.cli.client import Json
from penstock.cli.output import Column, moment
from penstock.cli.session import Noun, Session, confirm_name, pass_session
from penstock.cli.tenancy import tenant_of, tenant_option

_COLUMNS = (
    Column("key_id", "KEY"),
    Column("user", "USER"),
    Column("account", "ACCOUNT"),
    Column("status", "STATUS"),
    Column("created_at_ms", "CREATED", form=moment),
    Column("last_used_at_ms", "LAST USED", form=moment),
)


@click.group(cls=Noun)
def key() -> None:
    """Access keys: create, list, rotate, disable, enable, delete."""


def _path(key_id: str) -> str:
    return f"keys/{quote(key_id, safe='')}"


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
    session.remark("the secret is not kept in readable form: this is the only time it is shown")


@key.command()
@click.argument("user")
@tenant_option
@click.option("--profile", help="name of the AWS profile that is printed [default: the user's]")
@pass_session
def create(session: Session, user: str, tenant: str | None, profile: str | None) -> None:
    """Create a key for a user and print it as an AWS profile."""
    body = {"user": user}
    chosen = tenant_of(session, tenant)
    if chosen is not None:
        body["tenant"] = chosen
    made = session.admin.call("POST", "keys", body=body, what=f"cannot create a key for '{user}'")
    _print_made(session, made, profile)


@key.command("list")
@click.argument("user", required=False)
@tenant_option
@pass_session
def list_keys(session: Session, user: str | None, tenant: str | None) -> None:
    """List the keys of a user, or of all users of a tenant."""
    query = {"tenant": tenant_of(session, tenant), "user": user}
    found = session.admin.get("keys", query, what="cannot list keys")["keys"]
    session.out.many(found, columns=_COLUMNS, name="key_id", empty="no keys")


def _set_status(session: Session, key_id: str, status: str, verb: str) -> None:
    what = f"cannot {verb} key '{key_id}'"
    session.admin.call("PATCH", _path(key_id), body={"status": status}, what=what)
    session.remark(f"{verb}d {key_id}")


@key.command()
@click.argument("key_id")
@pass_session
def disable(session: Session, key_id: str) -> None:
    """Refuse everything signed with a key, until it is enabled."""
    _set_status(session, key_id, "disabled", "disable")


@key.command()
@click.argument("key_id")
@pass_session
def enable(session: Session, key_id: str) -> None:
    """Take a disabled key again."""
    _set_status(session, key_id, "active", "enable")


@key.command()
@click.argument("key_id")
@click.option("--profile", help="name of the AWS profile that is printed [default: the user's]")
@pass_session
def rotate(session: Session, key_id: str, profile: str | None) -> None:
    """Create another key for the same user; the old one works on until it is disabled."""
    made = session.admin.call(
        "POST", f"{_path(key_id)}/rotate", body={}, what=f"cannot rotate key '{key_id}'"
    )
    _print_made(session, made, profile)
    session.remark(f"once nobody uses {key_id}: `penstock key disable {key_id}`")


@key.command()
@click.argument("key_id")
@click.option("--yes", is_flag=True, help="do not ask")
@pass_session
def delete(session: Session, key_id: str, yes: bool) -> None:
    """Delete a key; it ends at once and for good."""
    what = f"cannot delete key '{key_id}'"
    session.admin.get(_path(key_id), what=what)
    confirm_name(key_id, verb="delete", is_sure=yes)
    session.admin.call("DELETE", _path(key_id), what=what)
    session.remark(f"deleted {key_id}")
