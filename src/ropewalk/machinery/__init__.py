"""Driver loading, profile parsing, telemetry, deadlines, and what keeps secrets out of texts."""
