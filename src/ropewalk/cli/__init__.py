"""The command line, one file per noun."""

from ropewalk.cli.entry import main

__all__ = ["main"]
