"""Plans, policies, the run loop, the journal, diagnosis."""
