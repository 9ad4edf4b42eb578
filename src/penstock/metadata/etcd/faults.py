"""The meaning of errors of etcd and of the connection: whether another member may succeed, and
whether a requested change may have happened.

etcd identifies its errors by their texts. The codes are those of gRPC, whose library also uses them
for lost connections and the like. An unknown error is treated as the worst case: unknown outcome.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from penstock.metadata.etcd.etcd_grpc import StatusCode, aio
from penstock.metadata.store import Compacted, LeaseGone, StoreUnreachable, StoreUnusable
from penstock.model.errors import DiskFull, InvalidRequest, PenstockError, Throttled

TEXT_CHARS_MAX: Final = 300
_OWN: Final = "etcdserver: "


class Fault(NamedTuple):
    error: PenstockError  # its text is one line
    is_final: bool = False  # every member would reply the same
    is_unknown: bool = False  # the request may have been carried out


class HistoryGone(Compacted):
    """A requested revision is no longer kept; etcd does not report which ones are."""

    def __init__(self) -> None:
        super().__init__(1)


class AnswerTooLarge(StoreUnreachable):
    """The reply is too large for this side; a smaller request may succeed."""


_FINAL: Final[Mapping[str, Callable[[str], PenstockError]]] = {
    "requested lease not found": lambda _text: LeaseGone(0),
    "mvcc: required revision has been compacted": lambda _text: HistoryGone(),
    "mvcc: database space exceeded": lambda _text: DiskFull("the database of etcd is full"),
    "too many requests": lambda text: Throttled(text),
    "request is too large": lambda text: InvalidRequest(text),
    "too many operations in txn request": lambda text: InvalidRequest(text),
    "duplicate key given in txn request": lambda text: InvalidRequest(text),
}
# Checked by etcd before anything else, because every call requires a member with a leader.
_NO_LEADER: Final = "no leader"
# All members refuse such a call alike, and a server that is not etcd carries out nothing.
_REFUSALS: Final = frozenset(
    {
        StatusCode.UNAUTHENTICATED,
        StatusCode.PERMISSION_DENIED,
        StatusCode.INVALID_ARGUMENT,
        StatusCode.FAILED_PRECONDITION,
        StatusCode.UNIMPLEMENTED,
        StatusCode.DATA_LOSS,
    }
)


def fault_of(error: aio.AioRpcError, endpoint: str) -> Fault:
    details = one_line(error.details() or error.code().name)
    text = f"etcd at {endpoint}: {details}"
    if details.startswith(_OWN):
        own = details[len(_OWN) :]
        make = _FINAL.get(own)
        if make is not None:
            return Fault(make(text), is_final=True)
        if own == _NO_LEADER:
            return Fault(StoreUnreachable(text))
    elif error.code() is StatusCode.RESOURCE_EXHAUSTED:
        return Fault(AnswerTooLarge(text), is_final=True)
    if error.code() in _REFUSALS:
        return Fault(StoreUnusable(text), is_final=True)
    if error.code() is StatusCode.DEADLINE_EXCEEDED:
        text = f"etcd at {endpoint}: timeout"
    return Fault(StoreUnreachable(text), is_unknown=True)


def one_line(text: str) -> str:
    return " ".join(text.split())[:TEXT_CHARS_MAX]
