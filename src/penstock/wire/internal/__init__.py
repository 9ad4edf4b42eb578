"""The protocol between nodes, without I/O.

``frame`` has the bytes of a frame, the greeting and the proof of a shared secret, ``calls`` the
type of a call, ``faults`` the errors. ``calls/internal`` has sockets and deadlines."""
