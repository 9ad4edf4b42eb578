"""The protocol between nodes, without I/O.

``frame`` has the layout of frames, the greeting and the proof of a shared secret; ``calls`` has the
type of a call, and ``faults`` the errors. ``calls/internal`` adds sockets and deadlines."""
