"""Grader, bundle, verdict, receipt, catalogue."""
