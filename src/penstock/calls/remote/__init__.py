"""Broker calls between nodes: ``broker`` is the client, ``service`` the server."""
