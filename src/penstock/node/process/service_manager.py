"""Notify systemd when the server is ready and when it stops (``Type=notify``, see sd_notify(3))."""

import logging
import socket
from collections.abc import MutableMapping
from typing import Final

log_ = logging.getLogger(__name__)

VARIABLE: Final = "NOTIFY_SOCKET"
READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"


class ServiceManager:
    """The socket of the service manager that started this process, if any."""

    def __init__(self, env: MutableMapping[str, str]) -> None:
        """Take the address out of ``env``, which is the environment of this process: workers and
        commands that this process starts must not report in its place."""
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
