"""Builders that turn data into admitted tasks."""
