"""A question to Apache Kafka and to Penstock: the name of an API, a version and the fields of the
request.

``EVERY``: each node is asked, and each reply is compared. ``UNION``: each node is asked, and the
replies are compared as one. ``LEADER``: asked where the partition is led. ``COORDINATOR``: asked
where the group is coordinated. ``TRANSACTION``: asked where the transactional id is coordinated. A
number: this node is asked.

In fields, ``Id("t")`` stands for the id of topic ``t``, which differs from system to system, and
``Hmac(0)`` for the HMAC of the first delegation token that was created."""

from typing import Any, Final, NamedTuple

EVERY: Final = "every"
UNION: Final = "union"
LEADER: Final = "leader"
COORDINATOR: Final = "coordinator"
TRANSACTION: Final = "transaction coordinator"
Fields = dict[str, Any]


class Id(NamedTuple):
    topic: str


class Hmac(NamedTuple):
    token: int


class Question(NamedTuple):
    api: str
    version: int
    fields: Fields
    at: str | int = EVERY
    of: str = ""  # the topic, group or transactional id whose leader or coordinator is asked
    note: str = ""
    ignored: frozenset[str] = frozenset()  # fields of the reply that may differ here
    by: str = "root"  # the user who asks, where authentication is on

    @property
    def title(self) -> str:
        return f"{self.api} v{self.version}" + (f", {self.note}" if self.note else "")
