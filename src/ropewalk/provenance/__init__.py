"""Statements and envelopes, transparency log, lineage graph."""
