"""Bytes of a connection, cut into frames: a length of four bytes, then as many bytes.

Bytes are received into chunks that the connections of a listener share. A frame is handed out as
the stretch of its chunk where it arrived, so the usual one is never copied; it is good until the
next bytes are received, unless its chunk is ``keep``-ed. What is left of a frame that has not
arrived whole is moved to the front of a chunk that has room for it.

    ┌─────┬─────────────┬─────┬─────────────┬─────┬──────┬─ ─ ─ ─ ─ ─
    │ len │ frame       │ len │ frame       │ len │ part │  received next
    └─────┴─────────────┴─────┴─────────────┴─────┴──────┴─ ─ ─ ─ ─ ─
                                            └─ moved ────┘

A length is only a promise: room for all of it is made ahead as long as what all connections hold
together stays within a bound, and as the bytes arrive otherwise. A connection without a part of a
frame holds no memory. Knows no sockets: ``kafka.py`` has the connection.
"""

import struct

LENGTH_BYTES = 4
CHUNK_BYTES = 262_144  # what is received at once: some frames of a producer that sends ahead
LARGE_FROM = CHUNK_BYTES // 2  # a frame of this size gets a chunk of its own
SPARE_ROOM_BYTES = 65_536  # behind a large frame, for the beginning of the next
PART_BYTES_MIN = 4_096  # first room for a frame whose bytes are yet to come
GROWTH = 4
HELD_BYTES_MAX = 32 * 1_048_576  # by parts of frames, over all connections, ahead of their bytes
AHEAD_BYTES_MAX = 2 * 1_048_576  # of one frame: about what a producer's largest request takes
SPARE_BYTES_MAX = 16 * 1_048_576  # kept for reuse: memory touched before is cheaper than new

_LENGTH = struct.Struct(">i")


class FrameRefused(Exception):
    """A length that no frame may have. Nothing behind it can be read."""


class Chunk:
    __slots__ = ("is_kept", "size", "view")

    def __init__(self, size: int) -> None:
        self.size = size
        self.view = memoryview(bytearray(size))
        self.is_kept = False  # somebody else reads in it: not to be received into any more


class Chunks:
    """The memory of all readers of a listener."""

    def __init__(self) -> None:
        self.held_bytes = 0
        self._landing = Chunk(CHUNK_BYTES)
        self._spare: list[Chunk] = []
        self._spare_bytes = 0

    def landing(self) -> Chunk:
        """For bytes of which nothing is known yet; nobody's after each receive."""
        if self._landing.is_kept:
            self._landing = self._reuse(CHUNK_BYTES) or Chunk(CHUNK_BYTES)
        return self._landing

    def take(self, whole: int, have: int) -> Chunk:
        """Room for a frame of ``whole`` bytes, of which ``have`` are there, if that can be."""
        size = CHUNK_BYTES
        if whole >= LARGE_FROM:
            size = -(-(whole + SPARE_ROOM_BYTES) // SPARE_ROOM_BYTES) * SPARE_ROOM_BYTES
        if whole <= PART_BYTES_MIN:
            chunk = Chunk(PART_BYTES_MIN)
        elif whole <= AHEAD_BYTES_MAX and self.held_bytes + size <= HELD_BYTES_MAX:
            chunk = self._reuse(size) or Chunk(size)
        else:
            chunk = Chunk(min(whole, max(GROWTH * have, PART_BYTES_MIN)))
        self.held_bytes += chunk.size
        return chunk

    def give_back(self, chunk: Chunk) -> None:
        self.held_bytes -= chunk.size
        if (
            not chunk.is_kept
            and CHUNK_BYTES <= chunk.size <= AHEAD_BYTES_MAX + 2 * SPARE_ROOM_BYTES
            and self._spare_bytes + chunk.size <= SPARE_BYTES_MAX
        ):
            self._spare.append(chunk)
            self._spare_bytes += chunk.size

    def _reuse(self, size: int) -> Chunk | None:
        """The one used last that fits: it is the likeliest to be in the processor's cache."""
        spare = self._spare
        for at in range(len(spare) - 1, -1, -1):
            if size <= spare[at].size <= 2 * size:
                chunk = spare.pop(at)
                self._spare_bytes -= chunk.size
                return chunk
        return None


class FrameReader:
    """One connection's. ``room``, then ``received``, then ``next_frame`` until there is none, then
    ``settle``; no other reader of the same chunks may be asked for room in between."""

    __slots__ = ("_at", "_chunk", "_chunks", "_end", "_own", "_whole", "frame_bytes_max")

    def __init__(self, chunks: Chunks, *, frame_bytes_max: int) -> None:
        self._chunks = chunks
        self.frame_bytes_max = frame_bytes_max  # may be raised at any time
        self._own: Chunk | None = None  # holds a part of a frame, from its beginning on
        self._chunk: Chunk | None = None  # received into last
        self._at = 0  # up to here it has been handed out
        self._end = 0  # up to here it has been filled
        self._whole = LENGTH_BYTES  # bytes of the frame that is to come, as far as that is known

    @property
    def part_bytes(self) -> int:
        """Of a frame that has not arrived whole."""
        return self._end - self._at

    def room(self) -> memoryview:
        own = self._own
        if own is None:
            chunk = self._chunk = self._chunks.landing()
            return chunk.view
        self._chunk = own
        return own.view[self._end :]

    def received(self, count: int) -> None:
        self._end += count

    def next_frame(self) -> memoryview | None:
        """Raises FrameRefused."""
        chunk, at, end = self._chunk, self._at, self._end
        if chunk is None or end - at < LENGTH_BYTES:
            self._whole = LENGTH_BYTES
            return None
        view = chunk.view
        (length,) = _LENGTH.unpack_from(view, at)
        if not 0 < length <= self.frame_bytes_max:
            raise FrameRefused(f"a frame of {length} bytes, {self.frame_bytes_max} are allowed")
        start = at + LENGTH_BYTES
        stop = start + length
        if stop > end:
            self._whole = LENGTH_BYTES + length
            return None
        self._at = stop
        return view[start:stop]

    def keep(self) -> None:
        """The frame handed out last stays good for as long as somebody has it."""
        assert self._chunk is not None, "frames come from chunks"
        self._chunk.is_kept = True

    def settle(self) -> None:
        """Make room for what comes next."""
        chunk, own, at, end = self._chunk, self._own, self._at, self._end
        if chunk is None:
            return
        part = end - at
        if part == 0:
            self._chunk = self._own = None
            self._at = self._end = 0
            if own is not None:
                self._chunks.give_back(own)
            return
        if chunk is own and at == 0 and end < own.size:
            return  # goes on where it is
        # The new one is taken before the old one is given back: they must not be the same.
        new = self._chunks.take(self._whole, part)
        new.view[:part] = chunk.view[at:end]
        if own is not None:
            self._chunks.give_back(own)
        self._own = self._chunk = new
        self._at, self._end = 0, part

    def close(self) -> None:
        """The connection has gone, and with it what had not arrived whole."""
        own, self._own, self._chunk = self._own, None, None
        self._at = self._end = 0
        if own is not None:
            self._chunks.give_back(own)
