"""Tests of connectors: sources are read in pieces and resumed, sinks are crashed between any two steps."""
