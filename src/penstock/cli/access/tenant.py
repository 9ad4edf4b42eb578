"""``penstock tenant``: tenants, which separate queues, topics and users from each other.

Only an operator creates, suspends and deletes tenants. A suspended tenant loses nothing: all its
requests are rejected until it is resumed."""

import click

from penstock.cli.access.objects import delete_confirmed, path_of, yes_option
from penstock.cli.command import Noun, Session, confirm_name
from penstock.cli.terminal.output import columns

_COLUMNS = columns(
    "account, name, user_count# USERS, is_suspended SUSPENDED, created_at_ms CREATED"
)


@click.group(cls=Noun)
def tenant() -> None:
    """Create, list, show, suspend, resume, delete tenants."""


@tenant.command()
@click.argument("digits", required=False, metavar="[ACCOUNT]")
def create(session: Session, name: str, digits: str | None) -> None:
    """Create a tenant with the given AWS account id (12 digits), or a free one."""
    body = {"name": name, **({"account": digits} if digits else {})}
    made = session.admin.call("POST", "tenants", body=body, what=f"cannot create tenant '{name}'")
    session.out.one(made, columns=_COLUMNS)


@tenant.command("list")
def list_tenants(session: Session) -> None:
    """List the tenants that you are allowed to see."""
    found = session.admin.pages("tenants", {}, what="cannot list tenants")
    session.out.many(found, columns=_COLUMNS, empty="no tenants")


@tenant.command()
@click.argument("name", metavar="TENANT")
def show(session: Session, name: str) -> None:
    """Show a tenant, given by its name or AWS account id."""
    found = session.admin.get(path_of("tenants", name), what=f"cannot show tenant '{name}'")
    session.out.one(found, columns=_COLUMNS)


def _suspend(session: Session, name: str, *, is_suspended: bool) -> None:
    verb = "suspend" if is_suspended else "resume"
    session.admin.call(
        "PATCH",
        path_of("tenants", name),
        body={"is_suspended": is_suspended},
        what=f"cannot {verb} tenant '{name}'",
    )


@tenant.command()
@click.argument("name", metavar="TENANT")
@yes_option
def suspend(session: Session, name: str, yes: bool) -> None:
    """Reject all requests of a tenant until it is resumed."""
    session.admin.get(path_of("tenants", name), what=f"cannot suspend tenant '{name}'")
    confirm_name(name, verb="suspend", is_sure=yes)
    _suspend(session, name, is_suspended=True)
    session.remark(f"suspended {name}; undo it with `penstock tenant resume {name}`")


@tenant.command()
@click.argument("name", metavar="TENANT")
def resume(session: Session, name: str) -> None:
    """Accept requests of a suspended tenant again."""
    _suspend(session, name, is_suspended=False)
    session.remark(f"resumed {name}")


@tenant.command()
@click.argument("name", metavar="TENANT")
@yes_option
def delete(session: Session, name: str, yes: bool) -> None:
    """Delete a tenant. It must have no queues, topics or users."""
    what = f"cannot delete tenant '{name}'"
    delete_confirmed(session, path_of("tenants", name), {}, what=what, name=name, is_sure=yes)
    session.remark(f"deleted {name}")
