"""A run's report as one HTML file that needs nothing else."""

from ropewalk.app.report.page import ReportInput, render_report

__all__ = ["ReportInput", "render_report"]
