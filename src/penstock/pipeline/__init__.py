"""The Spark pipeline: jobs that read topics of the server and write their results to a lake.

The pipeline is a client of the server and runs in separate processes. Only this package imports
PySpark, PyArrow and Delta. Of Penstock it imports ``model``, ``record``, ``wire``, ``net`` and
``telemetry``. Importing the package itself imports nothing."""
