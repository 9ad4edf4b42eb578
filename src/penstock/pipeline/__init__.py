"""The Spark pipeline, whose jobs read topics of the server and write their results to a lake.

The pipeline is a client of the server and runs in separate processes. Only this package imports
PySpark, PyArrow and Delta. Of Penstock's other packages it imports only ``model``, ``record``,
``wire``, ``net`` and ``telemetry``. ``import penstock.pipeline`` loads no other module."""
