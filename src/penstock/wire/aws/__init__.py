"""The AWS protocols, without I/O: decoders for requests, and encoders for replies."""
