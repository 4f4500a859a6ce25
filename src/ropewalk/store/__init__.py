"""Blobs, database, the names under the state directory."""
