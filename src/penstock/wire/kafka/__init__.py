"""The Kafka protocol, without I/O.

``apis`` lists the served APIs and their versions, and encodes the headers of requests and
responses. ``produce``, ``fetch`` and ``batches`` handle records. The classes of all other messages
are in ``generated``, which ``tools/kafka_messages.py`` writes. ``compiler`` builds the codecs."""
