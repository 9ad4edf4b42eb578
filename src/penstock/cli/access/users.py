"""Commands of ``penstock tenant``, ``user``, ``key`` and ``policy``. A new user has no permissions
until a policy grants them. The secret of a key is printed once, when it is created. A password
never leaves this process: only the credentials derived from it are sent."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from penstock.cli.command import Noun, Session, confirm_name
from penstock.cli.terminal.failure import ExitCode, Misuse
from penstock.cli.terminal.options import Texts, repeatable, yes_option
from penstock.cli.terminal.output import Column, Json, columns

PASSWORD_CHARS_MIN = 8

tenant_option = click.option(
    "--tenant", metavar="NAME|ACCOUNT", help="tenant, by name or AWS account id [default: yours]"
)
_TENANT_COLUMNS = columns(
    "account, name, user_count# USERS, is_suspended SUSPENDED, created_at_ms CREATED"
)
_USER_COLUMNS = columns(
    "name, account, is_operator OPERATOR, policies, keys#, mechanisms PASSWORD,"
    " created_at_ms CREATED",
    policies=", ".join,
    keys=lambda keys: str(len(keys)),
    mechanisms=lambda found: "yes" if found else "no",
)
_KEY_COLUMNS = columns(
    "key_id KEY, user, account, status, created_at_ms CREATED, last_used_at_ms LAST USED"
)
_TEST_COLUMNS = columns(
    "decision decision, because because, principal principal, action action, resource resource"
)
_EVERYTHING = (
    '{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"*","Resource":"*"}]}'
)
_profile_option = click.option(
    "--profile", help="name of the printed AWS profile [default: the user name]"
)


def path_of(kind: str, *names: str) -> str:
    return "/".join([kind, *(quote(name, safe="") for name in names)])


def owner(session: Session, tenant: str | None) -> dict[str, str]:
    chosen = tenant or session.settings.account
    return {} if chosen is None else {"tenant": chosen}


def _ask(
    session: Session,
    act: str,
    name: str,
    method: str = "GET",
    *,
    query: Mapping[str, str] = {},
    body: Json | None = None,
) -> Json:
    """Send a request about a user, tenant or key. ``act`` is a verb and a noun: "show user"."""
    path, what = path_of(f"{act.partition(' ')[2]}s", name), f"cannot {act} '{name}'"
    return session.admin.call(method, path, query, body=body, what=what)


def _delete(
    session: Session, kind: str, name: str, query: Mapping[str, str], is_sure: bool
) -> None:
    _ask(session, f"delete {kind}", name, query=query)  # before the prompt: fails if missing
    confirm_name(name, verb="delete", is_sure=is_sure)
    _ask(session, f"delete {kind}", name, "DELETE", query=query)
    session.remark(f"deleted {name}")


tenant = Noun("tenant", help="Create, list, show, suspend, resume, delete tenants.")


@tenant.command("create")
@click.argument("digits", required=False, metavar="[ACCOUNT]")
def create_tenant(session: Session, name: str, digits: str | None) -> None:
    """Create a tenant. Without ACCOUNT (12 digits) the server chooses the AWS account id."""
    body = {"name": name, **({"account": digits} if digits else {})}
    made = session.admin.call("POST", "tenants", body=body, what=f"cannot create tenant '{name}'")
    session.out.one(made, columns=_TENANT_COLUMNS)


@tenant.command("list")
def list_tenants(session: Session) -> None:
    """List the tenants that you are allowed to see."""
    found = session.admin.pages("tenants", {}, what="cannot list tenants")
    session.out.many(found, columns=_TENANT_COLUMNS, empty="no tenants")


@tenant.command("show")
@click.argument("name", metavar="TENANT")
def show_tenant(session: Session, name: str) -> None:
    """Show a tenant, given by its name or AWS account id."""
    session.out.one(_ask(session, "show tenant", name), columns=_TENANT_COLUMNS)


@tenant.command()
@click.argument("name", metavar="TENANT")
@yes_option
def suspend(session: Session, name: str, yes: bool) -> None:
    """Suspend a tenant: reject all its requests until it is resumed."""
    _ask(session, "suspend tenant", name)
    confirm_name(name, verb="suspend", is_sure=yes)
    _ask(session, "suspend tenant", name, "PATCH", body={"is_suspended": True})
    session.remark(f"suspended {name}; undo it with `penstock tenant resume {name}`")


@tenant.command()
@click.argument("name", metavar="TENANT")
def resume(session: Session, name: str) -> None:
    """Resume a suspended tenant: accept its requests again."""
    _ask(session, "resume tenant", name, "PATCH", body={"is_suspended": False})
    session.remark(f"resumed {name}")


@tenant.command("delete")
@click.argument("name", metavar="TENANT")
@yes_option
def delete_tenant(session: Session, name: str, yes: bool) -> None:
    """Delete a tenant. The tenant must have no queues, topics or users."""
    _delete(session, "tenant", name, {}, yes)


user = Noun("user", help="Create, list, show, delete users; set passwords.")


def _read_policy(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "the file is not UTF-8 text"
        raise Misuse(f"cannot read '{file}'", str(why)) from error


@user.command("create")
@tenant_option
@click.option(
    "--operator", is_flag=True, help="let this user manage all tenants with the admin API"
)
@click.option("--administrator", is_flag=True, help="allow all actions within the tenant")
@repeatable("--policy files", "FILE", "JSON file with a policy; the file name is the policy name")
def create_user(
    session: Session,
    name: str,
    tenant: str | None,
    operator: bool,
    administrator: bool,
    files: Texts,
) -> None:
    """Create a user without an access key. Create a key with `penstock key create`."""
    policies = {"admin": _EVERYTHING} if administrator else {}
    for file in files:
        policy = "policy" if file == "-" else Path(file).stem
        if policy in policies:
            raise click.UsageError(f"The policy name '{policy}' is used twice: rename a file.")
        policies[policy] = _read_policy(file)
    body = {"name": name, "is_operator": operator, "policies": policies, **owner(session, tenant)}
    made = session.admin.call("POST", "users", body=body, what=f"cannot create user '{name}'")
    session.out.one(made, columns=_USER_COLUMNS)


@user.command("list")
@tenant_option
def list_users(session: Session, tenant: str | None) -> None:
    """List the users of a tenant."""
    found = session.admin.get("users", owner(session, tenant), what="cannot list users")["users"]
    session.out.many(found, columns=_USER_COLUMNS, empty="no users")


@user.command("show")
@tenant_option
def show_user(session: Session, name: str, tenant: str | None) -> None:
    """Show a user with its policies and keys."""
    found = _ask(session, "show user", name, query=owner(session, tenant))
    if not session.out.is_table:
        session.out.one(found)
        return
    shown = (*_USER_COLUMNS[:5], Column("arn", "ARN"), *_USER_COLUMNS[5:])
    session.out.one(found, columns=shown)
    if found["keys"]:
        session.out.line("")
        session.out.many(found["keys"], columns=(_KEY_COLUMNS[0], *_KEY_COLUMNS[3:]))


@user.command("delete")
@tenant_option
@yes_option
def delete_user(session: Session, name: str, tenant: str | None, yes: bool) -> None:
    """Delete a user. The keys and the password of the user stop working at once."""
    _delete(session, "user", name, owner(session, tenant), yes)


@user.command("set-password")
@tenant_option
def set_password(session: Session, name: str, tenant: str | None) -> None:
    """Set the password of a user for Kafka clients (SCRAM-SHA-256 and SCRAM-SHA-512).

    On a terminal the command prompts for the password, else it reads a line from stdin."""
    from penstock.cli.access.password import derive

    what = f"cannot set a password for '{name}'"
    query = owner(session, tenant)
    session.admin.get(path_of("users", name), query, what=what)
    if sys.stdin.isatty():
        again = "Again"
        password = click.prompt("Password", hide_input=True, confirmation_prompt=again, err=True)
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
    """Remove the password of a user, so that Kafka clients cannot log in with it."""
    path, query = path_of("users", name), owner(session, tenant)
    what = f"cannot remove the password of '{name}'"
    session.admin.get(path, query, what=what)
    confirm_name(name, verb="remove the password of", is_sure=yes)
    session.admin.call("DELETE", f"{path}/password", query, what=what)
    session.remark(f"removed the password of {name}")


key = Noun("key", help="Create, list, rotate, disable, enable, delete access keys.")


def _print_key(session: Session, made: Json, profile: str | None) -> None:
    """Print a key in the format of an AWS credentials file, unless ``-o`` sets another format."""
    if session.settings.output not in (None, "table"):
        session.out.one(made, name="key_id")
    else:
        session.out.line(f"[{profile or made['user']}]")
        session.out.line(f"aws_access_key_id = {made['key_id']}")
        session.out.line(f"aws_secret_access_key = {made['secret']}")
    session.out.flush()
    session.remark("save the secret now: it is not shown again")


@key.command("create")
@tenant_option
@_profile_option
def create_key(session: Session, user: str, tenant: str | None, profile: str | None) -> None:
    """Create an access key for a user and print it as an AWS profile."""
    body = {"user": user, **owner(session, tenant)}
    made = session.admin.call("POST", "keys", body=body, what=f"cannot create a key for '{user}'")
    _print_key(session, made, profile)


@key.command("list")
@tenant_option
def list_keys(session: Session, user: str | None, tenant: str | None) -> None:
    """List the access keys of a user, or of all users of a tenant."""
    query = {**owner(session, tenant), "user": user}
    found = session.admin.get("keys", query, what="cannot list keys")["keys"]
    session.out.many(found, columns=_KEY_COLUMNS, name="key_id", empty="no keys")


@key.command()
def disable(session: Session, key_id: str) -> None:
    """Disable an access key. Requests signed with it are rejected until it is enabled again."""
    _ask(session, "disable key", key_id, "PATCH", body={"status": "disabled"})
    session.remark(f"disabled {key_id}")


@key.command()
def enable(session: Session, key_id: str) -> None:
    """Enable a disabled access key."""
    _ask(session, "enable key", key_id, "PATCH", body={"status": "active"})
    session.remark(f"enabled {key_id}")


@key.command()
@_profile_option
def rotate(session: Session, key_id: str, profile: str | None) -> None:
    """Create a new key for the user who owns KEY_ID. The old key works until it is disabled."""
    path, what = path_of("keys", key_id, "rotate"), f"cannot rotate key '{key_id}'"
    _print_key(session, session.admin.call("POST", path, body={}, what=what), profile)
    session.remark(f"disable the old key when it is unused: `penstock key disable {key_id}`")


@key.command("delete")
@yes_option
def delete_key(session: Session, key_id: str, yes: bool) -> None:
    """Delete an access key. It stops working at once; this cannot be undone."""
    _delete(session, "key", key_id, {}, yes)


policy = Noun(
    "policy", help="Show, put, remove policies of a user; test whether a request is allowed."
)


@policy.command("show")
@tenant_option
def show_policy(session: Session, user: str, name: str | None, tenant: str | None) -> None:
    """Print one policy of a user, or list all policies of the user."""
    query = owner(session, tenant)
    if name is None:
        path, what = path_of("policies", user), f"cannot show the policies of '{user}'"
        texts = session.admin.get(path, query, what=what)["policies"]
        rows = [{"name": key, "text": text} for key, text in sorted(texts.items())]
        empty = f"no policies of '{user}'"
        session.out.many(rows, columns=columns("name, text POLICY"), empty=empty)
        return
    path, what = path_of("policies", user, name), f"cannot show policy '{name}' of '{user}'"
    found = session.admin.get(path, query, what=what)
    if session.settings.output in (None, "table"):
        session.out.line(str(found["text"]).rstrip("\n"))
    else:
        session.out.one(found)


@policy.command()
@tenant_option
def put(session: Session, user: str, name: str, file: str, tenant: str | None) -> None:
    """Attach the policy in FILE (- for stdin) to a user as NAME. An existing NAME is replaced."""
    body = _read_policy(file).encode()
    path, what = path_of("policies", user, name), f"cannot put policy '{name}' of '{user}'"
    session.admin.call("PUT", path, owner(session, tenant), body=body, what=what)
    session.remark(f"{user} has the policy {name}")


@policy.command()
@tenant_option
@yes_option
def remove(session: Session, user: str, name: str, tenant: str | None, yes: bool) -> None:
    """Remove a policy from a user."""
    path, what = path_of("policies", user, name), f"cannot remove policy '{name}' of '{user}'"
    query = owner(session, tenant)
    session.admin.get(path, query, what=what)
    confirm_name(name, verb="remove", is_sure=yes)
    session.admin.call("DELETE", path, query, what=what)
    session.remark(f"{user} no longer has the policy {name}")


@policy.command()
@click.option("--as", "user", required=True, metavar="USER", help="user whose permission is tested")
@click.option("--action", required=True, help="action to test, such as sqs:SendMessage")
@click.option(
    "--on", "resource", required=True, metavar="QUEUE|ARN", help="name or ARN of the queue or topic"
)
@click.option("--source-ip", metavar="ADDRESS", help="source IP address of the tested request")
@click.option("--tls", is_flag=True, help="test a request that is sent with TLS")
@tenant_option
def test(
    session: Session,
    user: str,
    source_ip: str | None,
    tls: bool,
    tenant: str | None,
    **question: Any,
) -> None:
    """Test whether the policies allow a user's request. Exit code 0 if they do, 4 if not."""
    question |= {"user": user, "source_ip": source_ip or "", "is_tls": tls, "tenant": ""}
    question |= {"region": session.settings.region, **owner(session, tenant)}
    what = f"cannot test the policies of '{user}'"
    reply = session.admin.call("POST", "policies/test", body=question, what=what)
    decision = "allow" if reply["is_allowed"] else "deny"
    shown = {"decision": decision, "because": _because(reply), **reply}
    session.out.one(shown, columns=_TEST_COLUMNS, name="decision")
    if not reply["is_allowed"]:
        session.out.flush()
        raise click.exceptions.Exit(ExitCode.DENIED)


def _because(reply: Json) -> str:
    statement, found = reply.get("statement"), reply.get("policy")
    if reply["is_explicit"]:
        where = f"policy '{found}' of the user" if found else "the policy of the queue"
        return f"{statement or 'a statement'} in {where}"
    if reply["source"] == "resource":
        return "the queue belongs to another tenant, and its policy does not allow it"
    return "no statement of any policy allows it"
