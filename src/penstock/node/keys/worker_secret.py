"""The secret that the processes of ``penstock serve --workers`` share, and how each gets it.

The processes talk to each other over ports on the loopback address, which every user of the machine
can connect to. So the parent draws a secret, and both ends of each connection prove that they know
it (``wire/internal/frame.py``). A process finds the secret in a pipe, as its standard input: other
users can read the arguments of a process, and the owner's other programs its environment and files.
The secret is new with each start of the parent and kept nowhere else than in memory.
"""

import os
import secrets
from collections.abc import Mapping
from typing import Final

from penstock.model.errors import PenstockError
from penstock.wire.internal.frame import SECRET_BYTES

_VARIABLE: Final = "PENSTOCK_WORKER_SECRET_FD"
_STDIN: Final = 0
SECRET_ENV: Final = {_VARIABLE: str(_STDIN)}  # makes a child read the pipe


class SecretMissing(PenstockError):
    """A worker was started without the secret of its parent."""


def draw_secret() -> bytes:
    return secrets.token_bytes(SECRET_BYTES)


def pipe_with(secret: bytes) -> int:
    """Return the reading end of a pipe that holds the secret and nothing after it."""
    reading, writing = os.pipe()
    os.write(writing, secret)  # far less than a pipe holds
    os.close(writing)
    return reading


def receive_secret(env: Mapping[str, str]) -> bytes | None:
    """Return the secret from the parent, or None where the process is not a worker. Raises
    SecretMissing: a worker without it must not serve others unprotected."""
    given = env.get(_VARIABLE)
    if given is None:
        return None
    try:
        secret = os.read(int(given), SECRET_BYTES + 1)
    except (ValueError, OSError) as error:
        raise SecretMissing(f"{_VARIABLE}={given} cannot be read: {error}") from error
    if len(secret) != SECRET_BYTES:
        raise SecretMissing(
            f"{_VARIABLE}={given}: read {len(secret)} bytes instead of the {SECRET_BYTES} of the"
            " workers' secret; only `penstock serve --workers N` sets this variable, unset it"
        )
    return secret
