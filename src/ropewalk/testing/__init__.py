"""Public conformance suites, one per driver family, and a sandbox driver for tests that need no isolation."""
