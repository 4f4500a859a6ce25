"""One file per promise, and the promises themselves (`specification.toml`)."""

from ropewalk.benchmarks.promises import Measurement, Promise, promises

__all__ = ["Measurement", "Promise", "promises"]
