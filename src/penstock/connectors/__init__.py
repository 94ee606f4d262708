"""Connectors: where rows come from and where they go. `connector.py` is the interface; each other file is one of its parts.

Users reach them through `penstock.sources` and `penstock.sinks`.
"""
