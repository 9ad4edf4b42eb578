"""What can be noted only later is not done before; what is noted of a failure names nothing that is
not there."""

import json

from penstock.frontend.admin.api import Noted, entry_of, subject_of
from penstock.frontend.admin.request import Call
from penstock.model.identity import Caller

from .conftest import ACME, Office
from .test_api import ACCOUNT

SECRET = "typed into the wrong field"


async def test_no_change_is_made_before_there_is_where_to_note_it(office: Office) -> None:
    """A log-in is none: by it a long start is watched, and it is noted afterwards."""
    office.api._is_audited = True  # as a node is that still reads its logs
    reply = await office.ask("root", "POST", "users", {"name": "early"})
    assert reply.status == 503
    assert json.loads(reply.body)["error"]["code"] == "starting"
    assert (await office.ask("root", "GET", "users")).status == 200
    assert office.identities.user(ACCOUNT, "early") is None
    key_id, _ = office.secrets["root"]
    assert [entry.params for entry in office.api._early] == [{"access_key": key_id}]


async def test_of_what_failed_only_names_are_noted_that_exist(office: Office) -> None:
    context = office.api._context
    caller = Caller(ACME, "ann")
    body = json.dumps({"name": SECRET, "user": SECRET, "key_id": SECRET, "account": SECRET})
    api = ("api", "v1")
    for noted, path in (
        (Noted("admin:CreateUser", "user"), (*api, "users")),
        (Noted("admin:DeleteUser", "user"), (*api, "users", SECRET)),
        (Noted("admin:CreateKey", "key"), (*api, "keys")),
        (Noted("admin:DeleteKey", "key"), (*api, "keys", SECRET)),
        (Noted("admin:CreateTenant", "tenant"), (*api, "tenants")),
        (Noted("admin:LogIn", "node"), (*api, "login")),
    ):
        call = Call(context, path, {"tenant": SECRET}, body.encode(), caller=caller)
        subject = subject_of(call, noted)
        entry = entry_of(call, noted, subject, code="invalid_request")
        assert SECRET not in str(entry), noted
        assert entry.outcome == "failed"
    call = Call(context, (*api, "users", "bob"), {}, caller=caller)
    noted = Noted("admin:DeleteUser", "user")
    subject = subject_of(call, noted)
    entry = entry_of(call, noted, subject, code="access_denied")
    assert entry.resource.endswith(f":{ACME}:user/bob")
    assert entry.outcome == "denied"
