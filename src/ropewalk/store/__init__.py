"""Blobs, database, leases."""
