"""Node to node: frames, the kinds of calls, and how an error travels. Sans-io.

``frame`` has the bytes of a frame and the greeting, ``proof`` the proof of a shared secret,
``calls`` what a call is and who answers it, ``faults`` the errors. Which calls a role has is said
by the role (``metadata/calls.py``); sockets, deadlines and reconnecting are ``net/internal``'s.
"""
