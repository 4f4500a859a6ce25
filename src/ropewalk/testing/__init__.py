"""Public conformance suites, one per driver family; a clock and a sandbox driver for tests of those who use them."""
