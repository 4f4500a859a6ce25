"""Ropewalk: an RL environment stack."""
