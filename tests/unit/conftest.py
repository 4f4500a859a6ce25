"""Tests here do not wait for the disk."""

from tests.quick_disk import quick_disk as quick_disk
