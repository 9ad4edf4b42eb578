"""Explanations why a listener could not open: the process that uses the port, or a wrong
address."""

import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from penstock.model.errors import CONFLICT, USAGE, SetupError
from penstock.node.configuration.addresses import NodeAddress as Address

LISTENING: Final = "0A"  # the state of a socket in /proc/net/tcp


@contextlib.contextmanager
def binding(what: str, flag: str, host: str, port: int) -> Iterator[None]:
    """Turn the OSError of a listener into a SetupError. ``what`` it serves, ``flag`` sets it."""
    try:
        yield
    except OSError as error:
        raise _unusable(error, what, f"{flag} {Address(host, port)}", host, port, flag) from error


def _unusable(error: OSError, what: str, given: str, host: str, port: int, flag: str) -> SetupError:
    if error.errno == errno.EADDRINUSE:
        holder = who_listens(port)
        return SetupError(
            f"{'another process' if holder is None else holder} listens there",
            f"stop that process, or choose another port: {flag} {Address(host, 0)}",
            what=f"port {port} ({what}) is in use",
            code=CONFLICT,
        )
    reason = error.strerror or str(error)
    if error.errno is not None and error.errno in errno.errorcode:
        # Without the address, which the headline has.
        reason = os.strerror(error.errno)
    if error.errno == errno.EADDRNOTAVAIL:
        what = f"this machine has no address {host} ({given})"
        do = f"choose one that `ip addr` shows, or 127.0.0.1: {flag} {Address('127.0.0.1', port)}"
    elif isinstance(error, socket.gaierror):
        what = f"the name {host} does not resolve ({given})"
        do = f"use an address of this machine: {flag} {Address('127.0.0.1', port)}"
    elif error.errno == errno.EACCES:
        what = f"port {port} ({what}) needs more rights than this user has"
        do = f"choose a port above 1023: {flag} {Address(host, 0)}"
    else:
        what = f"cannot listen for {what} ({given})"
        do = f"choose another address: {flag} {Address('127.0.0.1', 0)}"
    return SetupError(reason, do, what=what, code=USAGE)


def who_listens(port: int) -> str | None:
    """Return the process that listens on a port of this machine, as far as this user may see."""
    inodes = {f"socket:[{inode}]" for inode in _listening(port)}
    processes = (one for one in Path("/proc").iterdir() if one.name.isdecimal())
    for process in processes if inodes else ():
        with contextlib.suppress(OSError):  # of another user, or gone
            if any(_target(fd) in inodes for fd in (process / "fd").iterdir()):
                name = (process / "comm").read_text("utf-8", "replace").strip()
                return f"process {process.name} ({name})"
    return None


def _target(fd: Path) -> str:
    try:
        return os.readlink(fd)  # noqa: PTH115
    except OSError:  # closed meanwhile
        return ""


def _listening(port: int) -> Iterator[str]:
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path("/proc/net", table).read_text("ascii").splitlines()[1:]:
                fields = line.split()
                if fields[3] == LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                    yield fields[9]
