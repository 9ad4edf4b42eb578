"""The limit: bytes from a socket into a file, bytes from a file into a socket, and nothing else.

A connection says ``W`` and a batch's size, then sends batches: each is answered by one byte once
it is written, or, with ``always``, once it is synced. All that was read in one turn shares a sync,
as a log does that commits by the group. Or it says ``R`` and a size, and gets so many bytes for
every byte that it sends, by ``sendfile``.
"""

import os
import selectors
import signal
import socket
import struct
import sys
from pathlib import Path

HELLO = struct.Struct(">cI")
READ_BYTES = 1_048_576
SOURCE_BYTES = 64 * 1_048_576


class Files:
    def __init__(self, folder: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC
        self.sink = os.open(folder / "sink", flags)
        self.source = os.open(folder / "source", flags)
        for _ in range(SOURCE_BYTES // READ_BYTES):
            os.write(self.source, b"x" * READ_BYTES)
        self.sink_bytes = 0
        self.writers = 0

    def append(self, data: memoryview) -> None:
        while data:
            count = os.pwrite(self.sink, data, self.sink_bytes)
            self.sink_bytes += count
            data = data[count:]


class Peer:
    def __init__(self, connection: socket.socket, files: Files) -> None:
        self.socket = connection
        self.is_writer = False
        self._files = files
        self._size = 0
        self._partial = 0  # of the batch being received
        self._owed = 0  # batches to acknowledge, or bytes still to be sent
        self._at = 0

    def receive(self, view: memoryview) -> bool:
        """False at the end of the connection."""
        if not self._size:
            return self._hello()
        try:
            count = self.socket.recv_into(view)
        except BlockingIOError:
            return True
        if self.is_writer:
            self._files.append(view[:count])
            batches, self._partial = divmod(self._partial + count, self._size)
            self._owed += batches
        else:
            self._owed += count * self._size
        return count > 0

    def _hello(self) -> bool:
        hello = self.socket.recv(HELLO.size)
        if len(hello) < HELLO.size:
            return False
        kind, self._size = HELLO.unpack(hello)
        self.is_writer = kind == b"W"
        if self.is_writer:
            if not self._files.writers:
                os.ftruncate(self._files.sink, 0)
                self._files.sink_bytes = 0
            self._files.writers += 1
        return True

    def answer(self) -> bool:
        """True when there is more to send than the socket takes."""
        while self._owed:
            try:
                if self.is_writer:
                    self._owed -= self.socket.send(b"." * self._owed)
                else:
                    self._send_file()
            except BlockingIOError:
                return True
        return False

    def _send_file(self) -> None:
        size = min(self._owed, SOURCE_BYTES - self._at)
        sent = os.sendfile(self.socket.fileno(), self._files.source, self._at, size)
        self._owed -= sent
        self._at = (self._at + sent) % SOURCE_BYTES

    def close(self) -> None:
        self._files.writers -= self.is_writer
        self.socket.close()


def serve(folder: Path, *, is_synced: bool) -> None:
    files = Files(folder)
    listener = socket.create_server(("127.0.0.1", 0))
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    view = memoryview(bytearray(READ_BYTES))
    print(f"ready bytes=127.0.0.1:{listener.getsockname()[1]}", flush=True)
    while True:
        turn = selector.select()
        written = files.sink_bytes
        alive: list[Peer] = []
        for key, events in turn:
            if key.fileobj is listener:
                connection, _ = listener.accept()
                connection.setblocking(False)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                selector.register(connection, selectors.EVENT_READ, Peer(connection, files))
                continue
            peer: Peer = key.data
            try:
                is_open = not events & selectors.EVENT_READ or peer.receive(view)
            except OSError:
                is_open = False
            if is_open:
                alive.append(peer)
            else:
                selector.unregister(peer.socket)
                peer.close()
        if is_synced and files.sink_bytes > written:
            os.fdatasync(files.sink)
        for peer in alive:
            answer(selector, peer)


def answer(selector: selectors.BaseSelector, peer: Peer) -> None:
    try:
        more = selectors.EVENT_WRITE if peer.answer() else 0
    except OSError:
        selector.unregister(peer.socket)
        peer.close()
        return
    if selector.get_key(peer.socket).events != selectors.EVENT_READ | more:
        selector.modify(peer.socket, selectors.EVENT_READ | more, peer)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    serve(Path(sys.argv[2]), is_synced=sys.argv[1] == "always")
