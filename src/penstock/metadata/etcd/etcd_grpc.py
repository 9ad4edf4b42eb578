"""The gRPC library for the etcd store, with its logging disabled.

It writes to stderr whenever a connection fails. The node's log goes to stderr too, and the errors
raised here contain everything that gRPC would log. Set GRPC_VERBOSITY to enable it.
"""

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # read when the library is first imported

import grpc
from grpc import aio

ChannelConnectivity = grpc.ChannelConnectivity
StatusCode = grpc.StatusCode
ssl_channel_credentials = grpc.ssl_channel_credentials

__all__ = ["ChannelConnectivity", "StatusCode", "aio", "ssl_channel_credentials"]
