"""``penstock tenant``: tenants, which separate queues, topics and users from each other.

Only an operator creates, suspends and deletes tenants. A suspended tenant loses nothing: all its
requests are rejected until it is resumed."""

from urllib.parse import quote

import click

from penstock.cli.client import Json
from penstock.cli.output import Column, moment
from penstock.cli.session import Noun, Session, confirm_name, pass_session

_COLUMNS = (
    Column("account", "ACCOUNT"),
    Column("name", "NAME"),
    Column("user_count", "USERS", is_number=True),
    Column("is_suspended", "SUSPENDED"),
    Column("created_at_ms", "CREATED", form=moment),
)


@click.group(cls=Noun)
def tenant() -> None:
    """Create, list, show, suspend, resume, delete tenants."""


def path_of(name: str) -> str:
    return f"tenants/{quote(name, safe='')}"


@tenant.command()
@click.argument("name")
@click.argument("digits", required=False, metavar="[ACCOUNT]")
@pass_session
def create(session: Session, name: str, digits: str | None) -> None:
    """Create a tenant, with an account of twelve digits of your choice or any free one."""
    body = {"name": name, **({"account": digits} if digits else {})}
    made = session.admin.call("POST", "tenants", body=body, what=f"cannot create tenant '{name}'")
    session.out.one(made, columns=_COLUMNS)


@tenant.command("list")
@pass_session
def list_tenants(session: Session) -> None:
    """List the tenants that you may see."""
    found: list[Json] = []
    after: str | None = None
    while True:
        reply = session.admin.get("tenants", {"after": after}, what="cannot list tenants")
        found += reply["tenants"]
        after = reply.get("next")
        if after is None:
            break
    session.out.many(found, columns=_COLUMNS, empty="no tenants")


@tenant.command()
@click.argument("name", metavar="TENANT")
@pass_session
def show(session: Session, name: str) -> None:
    """Show one tenant, by its name or its account."""
    found = session.admin.get(path_of(name), what=f"cannot show tenant '{name}'")
    session.out.one(found, columns=_COLUMNS)


def _suspend(session: Session, name: str, *, is_suspended: bool) -> None:
    verb = "suspend" if is_suspended else "resume"
    session.admin.call(
        "PATCH",
        path_of(name),
        body={"is_suspended": is_suspended},
        what=f"cannot {verb} tenant '{name}'",
    )


@tenant.command()
@click.argument("name", metavar="TENANT")
@click.option("--yes", is_flag=True, help="do not ask")
@pass_session
def suspend(session: Session, name: str, yes: bool) -> None:
    """Refuse everything that a tenant asks for, until it is resumed."""
    session.admin.get(path_of(name), what=f"cannot suspend tenant '{name}'")
    confirm_name(name, verb="suspend", is_sure=yes)
    _suspend(session, name, is_suspended=True)
    session.remark(f"suspended {name}: try `penstock tenant resume {name}`")


@tenant.command()
@click.argument("name", metavar="TENANT")
@pass_session
def resume(session: Session, name: str) -> None:
    """Serve a suspended tenant again."""
    _suspend(session, name, is_suspended=False)
    session.remark(f"resumed {name}")


@tenant.command()
@click.argument("name", metavar="TENANT")
@click.option("--yes", is_flag=True, help="do not ask")
@pass_session
def delete(session: Session, name: str, yes: bool) -> None:
    """Delete a tenant that has no queues, topics and users any more."""
    what = f"cannot delete tenant '{name}'"
    session.admin.get(path_of(name), what=what)  # before the prompt: fails if it does not exist
    confirm_name(name, verb="delete", is_sure=yes)
    session.admin.call("DELETE", path_of(name), what=what)
    session.remark(f"deleted {name}")
