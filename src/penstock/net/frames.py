"""Splits the bytes of a connection into frames, each of which begins with its length in four bytes.

All connections of a listener receive into shared buffers (chunks). A frame is a view of its chunk,
so usually nothing is copied. The view is valid until more bytes are received, unless ``keep`` is
called. An incomplete frame is moved to the front of a chunk with more room.

    ┌─────┬─────────────┬─────┬─────────────┬─────┬──────┬─ ─ ─ ─ ─ ─
    │ len │ frame       │ len │ frame       │ len │ part │  received next
    └─────┴─────────────┴─────┴─────────────┴─────┴──────┴─ ─ ─ ─ ─ ─
                                            └─ moved ────┘

Memory for a whole frame is allocated at once only while all connections together hold less than
HELD_BYTES_MAX. Otherwise the memory grows as bytes arrive, because a client may state a wrong
length. A connection without an incomplete frame holds no memory."""

import struct

LENGTH_BYTES = 4
CHUNK_BYTES = 262_144  # received at once: several frames of a producer that pipelines
LARGE_FROM = CHUNK_BYTES // 2  # a frame of this size gets its own chunk
SPARE_ROOM_BYTES = 65_536  # after a large frame, for the beginning of the next
PART_BYTES_MIN = 4_096  # first allocation for an incomplete frame
GROWTH = 4
HELD_BYTES_MAX = 32 * 1_048_576  # allocated ahead for incomplete frames, over all connections
AHEAD_BYTES_MAX = 2 * 1_048_576  # allocated ahead for one frame: about the largest produce request
SPARE_BYTES_MAX = 16 * 1_048_576  # kept for reuse: used memory is cheaper than new memory

_LENGTH = struct.Struct(">i")


class FrameRejected(Exception): ...


class Chunk:
    __slots__ = ("is_kept", "size", "view")

    def __init__(self, size: int) -> None:
        self.size = size
        self.view = memoryview(bytearray(size))
        self.is_kept = False  # a handler still reads the chunk: nothing more is received into it


class Chunks:
    def __init__(self) -> None:
        self.held_bytes = 0
        self._landing = Chunk(CHUNK_BYTES)
        self._spare: list[Chunk] = []
        self._spare_bytes = 0

    def landing(self) -> Chunk:
        if self._landing.is_kept:
            self._landing = self._reuse(CHUNK_BYTES) or Chunk(CHUNK_BYTES)
        return self._landing

    def take(self, whole: int, have: int) -> Chunk:
        """Return a chunk for a frame of ``whole`` bytes, of which ``have`` bytes have arrived."""
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
        spare = self._spare
        for at in range(len(spare) - 1, -1, -1):
            if size <= spare[at].size <= 2 * size:
                chunk = spare.pop(at)
                self._spare_bytes -= chunk.size
                return chunk
        return None


class FrameReader:
    """Splits received bytes into frames. For each read, call ``room`` and ``received``, then
    ``next_frame`` until it returns None, then ``settle``."""

    __slots__ = ("_at", "_chunk", "_chunks", "_end", "_own", "_whole", "frame_bytes_max")

    def __init__(self, chunks: Chunks, *, frame_bytes_max: int) -> None:
        self._chunks = chunks
        self.frame_bytes_max = frame_bytes_max  # may be raised at any time
        self._own: Chunk | None = None  # this connection's chunk, which begins with a partial frame
        self._chunk: Chunk | None = None  # the chunk that received the last bytes
        self._at = 0  # end of the last frame in the chunk
        self._end = 0  # end of the received bytes in the chunk
        self._whole = LENGTH_BYTES  # size of the next frame, as far as it is known

    @property
    def part_bytes(self) -> int:
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
        chunk, at, end = self._chunk, self._at, self._end
        if chunk is None or end - at < LENGTH_BYTES:
            self._whole = LENGTH_BYTES
            return None
        view = chunk.view
        (length,) = _LENGTH.unpack_from(view, at)
        if not 0 < length <= self.frame_bytes_max:
            raise FrameRejected(
                f"the frame has {length} bytes; at most {self.frame_bytes_max} are allowed"
            )
        start = at + LENGTH_BYTES
        stop = start + length
        if stop > end:
            self._whole = LENGTH_BYTES + length
            return None
        self._at = stop
        return view[start:stop]

    def keep(self) -> None:
        assert self._chunk is not None, "frames come from chunks"
        self._chunk.is_kept = True

    def settle(self) -> None:
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
            return
        # The new chunk is taken before the old one is given back, so that they differ.
        new = self._chunks.take(self._whole, part)
        new.view[:part] = chunk.view[at:end]
        if own is not None:
            self._chunks.give_back(own)
        self._own = self._chunk = new
        self._at, self._end = 0, part

    def close(self) -> None:
        own, self._own, self._chunk = self._own, None, None
        self._at = self._end = 0
        if own is not None:
            self._chunks.give_back(own)
