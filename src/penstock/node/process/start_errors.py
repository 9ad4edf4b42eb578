"""Errors of the start of a server, with advice for the operator; and notifications for systemd that
the server is ready or stops (``Type=notify``, see sd_notify(3))."""

import logging
import socket
import sqlite3
from collections.abc import Mapping, MutableMapping
from typing import Final

from penstock.membership.cluster_view import LevelRefused
from penstock.metadata.store import StoreUnreachable, StoreUnusable
from penstock.model.errors import PenstockError, SetupError

log_ = logging.getLogger(__name__)

VARIABLE: Final = "NOTIFY_SOCKET"
READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"


class ServiceManager:
    """The socket of the service manager that started this process, if any."""

    def __init__(self, env: MutableMapping[str, str]) -> None:
        # Removed from ``env``, because processes that this one starts must not use it.
        address = env.pop(VARIABLE, "")
        # systemd writes the zero byte of an abstract socket as "@".
        self._address = "\0" + address[1:] if address.startswith("@") else address

    def tell(self, state: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as door:
                door.connect(self._address)
                door.sendall(state.encode())
        except OSError as error:
            log_.warning("service manager not notified", extra={"reason": str(error)})


# Advice for errors that have none, by the nearest base class.
_DO: Final[Mapping[type[Exception], str]] = {
    LevelRefused: "run a version that supports the feature level of the cluster: `penstock cluster"
    " status`",
    StoreUnreachable: "start etcd or the metadata service, and check the network to it; check its"
    " address in the settings",
    StoreUnusable: "check the metadata store, or restore a backup: `penstock backup restore`",
    sqlite3.Error: "check the disk, or restore a backup: `penstock backup restore`",
    OSError: "check that this user can read and write the file: `penstock doctor --local`",
    Exception: "check this machine and its settings: `penstock doctor --local`",
}


def explained(error: Exception) -> SetupError:
    if isinstance(error, SetupError) and error.do:
        return error
    do = next(_DO[kind] for kind in type(error).__mro__ if kind in _DO)
    if isinstance(error, SetupError):
        return SetupError(error.why, do, what=error.what, code=error.code)
    why = str(error)
    if isinstance(error, OSError) and error.strerror and error.filename:
        why = f"{error.filename}: {error.strerror}"
    assert isinstance(error, PenstockError | OSError), "any other error is a bug"
    return SetupError(why, do)
