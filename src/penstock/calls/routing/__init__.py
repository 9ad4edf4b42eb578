"""Sends every call to the node that leads the partition or topic of the call.

``router`` chooses the route of a call, ``leaders`` sends and retries it. ``appending`` sends to one
of several nodes or to all of them, ``leasing`` receives from all of them."""
