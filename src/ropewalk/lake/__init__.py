"""Immutable raw zone and commits."""
