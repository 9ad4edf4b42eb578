"""``/api/v1/callees``: whom the frontend calls, for operators only."""

import json

from penstock.calls.callees import Callees
from penstock.frontend.admin.api import AdminApi
from penstock.frontend.admin.request import Context, Info
from penstock.net.http.exchange import HttpRequest

from .conftest import Office


def asking(token: str = "") -> HttpRequest:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    return HttpRequest("GET", "/api/v1/callees", "", headers, b"", "127.0.0.1", "r")


async def test_an_operator_sees_each_callee_and_others_see_none(office: Office) -> None:
    callees = Callees(office.clock)
    callees.backend("n1")
    api = AdminApi(
        Context(
            broker=office.backend,
            catalog=office.catalog,
            meter=office.meter,
            health=office.health,
            clock=office.clock,
            info=Info("1", "n", "prod", "000000000000", "us-east-1", "/data", 0),
            identities=office.identities,
            callees=callees,
            everything=office.catalog,
        ),
        token="letmein",
        is_auth_on=True,
    )
    assert (await api.handle(asking())).status == 401
    reply = await api.handle(asking("letmein"))
    assert reply.status == 200
    shown = json.loads(reply.body)["callees"]
    assert [each["name"] for each in shown] == ["metadata", "backend:n1"]
    assert {each["state"] for each in shown} == {"closed"}
