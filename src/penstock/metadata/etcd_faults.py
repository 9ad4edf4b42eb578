"""What an error of etcd, or of the way to it, means: whether asking another member helps, and
whether a change that was asked for may have happened all the same.

etcd tells its errors by their texts; the codes beside them are those of gRPC, whose library gives
them for lost connections and the like as well. What is not known here is taken for the worst:
nobody knows what happened.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from penstock.metadata.etcd_grpc import StatusCode, aio
from penstock.metadata.store import Compacted, LeaseGone, StoreUnreachable, StoreUnusable
from penstock.model.errors import DiskFull, InvalidRequest, PenstockError, Throttled

TEXT_CHARS_MAX: Final = 300
_OWN: Final = "etcdserver: "


class Fault(NamedTuple):
    error: PenstockError  # in one line
    is_final: bool = False  # every member would say the same
    is_unknown: bool = False  # it may have been carried out


class HistoryGone(Compacted):
    """A revision that was asked for is no longer kept; etcd does not say which ones are."""

    def __init__(self) -> None:
        super().__init__(1)


class AnswerTooLarge(StoreUnreachable):
    """For this side; a smaller question may be answered."""


_FINAL: Final[Mapping[str, Callable[[str], PenstockError]]] = {
    "requested lease not found": lambda _text: LeaseGone(0),
    "mvcc: required revision has been compacted": lambda _text: HistoryGone(),
    "mvcc: database space exceeded": lambda _text: DiskFull("the database of etcd is full"),
    "too many requests": lambda text: Throttled(text),
    "request is too large": lambda text: InvalidRequest(text),
    "too many operations in txn request": lambda text: InvalidRequest(text),
    "duplicate key given in txn request": lambda text: InvalidRequest(text),
}
# Said before anything else is looked at, because every call asks for a member with a leader.
_NO_LEADER: Final = "no leader"
# Who is refused is refused everywhere, and by a server that is no etcd nothing is carried out.
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
        text = f"etcd at {endpoint}: no answer in time"
    return Fault(StoreUnreachable(text), is_unknown=True)


def one_line(text: str) -> str:
    return " ".join(text.split())[:TEXT_CHARS_MAX]
