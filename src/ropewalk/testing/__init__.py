"""Public conformance suites and the simulated world."""
