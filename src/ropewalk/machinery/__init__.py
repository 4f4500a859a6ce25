"""Driver loading, profile parsing, telemetry."""
