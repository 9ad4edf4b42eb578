"""Sends every call to the node that leads the partition or topic of the call.

``router`` chooses the route of a call, ``leaders`` sends and retries it, ``leasing`` receives from
several nodes."""
