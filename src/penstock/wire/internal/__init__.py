"""The protocol between nodes, without I/O: frames, kinds of calls, and errors.

``frame`` has the bytes of a frame and the greeting, ``proof`` the proof of a shared secret,
``calls`` the type of a call and its two ends, ``faults`` the errors. Each role defines its calls
(``metadata/serving/calls.py``); sockets, deadlines and reconnecting are in ``net/internal``."""
