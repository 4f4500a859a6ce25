"""Driver loading, profile parsing, telemetry, and what keeps secrets out of texts."""
