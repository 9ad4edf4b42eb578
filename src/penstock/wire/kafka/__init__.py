"""The Kafka protocol, without I/O.

``frame`` reads request headers and writes response headers; ``apis`` lists the served APIs and
their versions. ``produce``, ``fetch`` and ``batches`` handle records. The classes of all other
messages are in ``generated``, written by ``tools/kafka_messages.py`` from Kafka's own schemas;
``compiler`` makes the codecs."""
