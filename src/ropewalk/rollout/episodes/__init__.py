"""One episode: what a policy holds, what its tools do, who writes it down."""
