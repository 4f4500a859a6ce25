"""A run's summary, findings and report, out of what the run left."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ropewalk.app.chain import chain_lines
from ropewalk.app.costs import cost_bars, cost_lines, cost_of_run
from ropewalk.app.custody import Custody
from ropewalk.app.report import ReportInput, render_report
from ropewalk.core.clock import SystemClock
from ropewalk.core.errors import DeniedError, RopewalkError, UnavailableError
from ropewalk.interface.task import Task
from ropewalk.machinery.files import write_out
from ropewalk.provenance.verification import Verification
from ropewalk.provenance.verify import Anchors
from ropewalk.rollout.diagnose import findings_of as diagnose
from ropewalk.rollout.loaded import LoadedRun, load_episodes
from ropewalk.rollout.summarise import summary_of as summarise
from ropewalk.rollout.summary import RunSummary
from ropewalk.security.data_classes import Use, check_allowed

CHAINS_MAX = 300
"""Rewards whose whole chain stands in the report; the others name the command that prints it."""


def loaded_run(custody: Custody, run: str, *, elsewhere: bool = True) -> LoadedRun:
    """Everything about a run, as far as it is; without `elsewhere` nothing is read of other runs on its tasks.

    Raises:
        CallerError: no such run.
        IntegrityError: its records are not what was signed.
    """
    return load_episodes(custody.journal, custody.blobs, run, log=custody.signed, elsewhere=elsewhere)


def summary_of(custody: Custody, run: str) -> RunSummary:
    """The run as the tables and the report show it.

    Raises:
        CallerError: no such run.
    """
    return summarise(loaded_run(custody, run))


def report_of(custody: Custody, loaded: LoadedRun, *, anchors: Anchors | None = None,
              verification: Verification | None = None, price_file: Path | None = None,
              prices: tuple[str, ...] = ()) -> ReportInput:  # fmt: skip
    """All that a run's report shows.

    Args:
        custody: where the run lies.
        loaded: the run.
        anchors: what was kept outside, for the line on verification.
        verification: of this very run, where the caller made one just now; then the run is not verified again.
        price_file: replaces the plan's.
        prices: `key=value` pairs over both.
    """
    summary = summarise(loaded)
    cost = cost_of_run(summary, loaded.plan.price, file=price_file, over=prices)
    rewards = [line.reward for line in summary.episodes if line.reward]
    return ReportInput(
        summary=summary,
        findings=tuple(diagnose(loaded)),
        chains={reward: "\n".join(chain_lines(custody.trace(reward))) for reward in rewards[:CHAINS_MAX]},
        cost=cost_lines(cost),
        cost_bars=cost_bars(cost),
        verification=(
            verified_line(verification)
            if verification is not None
            else verification_line(custody, loaded.row.run, anchors or Anchors())
        ),
        made_s=SystemClock().now_s(),
    )


def write_report(custody: Custody, loaded: LoadedRun, path: Path | None = None, *, anchors: Anchors | None = None,
                 verification: Verification | None = None, price_file: Path | None = None,
                 prices: tuple[str, ...] = ()) -> Path:  # fmt: skip
    """Writes a run's HTML report, whole or not at all, and returns where it is: by default in the run's folder.

    Raises:
        DeniedError: it would leave the state directory, and the data class of a task forbids that (rule
            `data_class:…`).
        UnavailableError: it cannot be written there.
    """
    own = custody.layout.runs / loaded.row.run.partition(":")[2] / "report.html"
    target = path or own
    if not target.resolve().is_relative_to(custody.layout.root.resolve()):
        check_export(loaded.tasks.values(), "html", inside=own)
    html = render_report(
        report_of(custody, loaded, anchors=anchors, verification=verification, price_file=price_file, prices=prices)
    )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UnavailableError(
            f"The folder {target.parent} cannot be made: {error.strerror or error}.", next_step="name another --report."
        ) from error
    write_out(target, html.encode())
    return target


def check_export(tasks: Iterable[Task], format: str, *, inside: Path | None = None) -> None:
    """Returns if what these tasks gave may leave as a file of this format.

    Args:
        inside: where it may be written instead, for the message.

    Raises:
        DeniedError: the data class of a task forbids it (rule `data_class:…`).
    """
    for task in tasks:
        try:
            check_allowed(task.data_class, Use.EXPORT, format)
        except DeniedError as error:
            if inside is None:
                raise
            raise DeniedError(
                error.message, rule=error.rule, next_step=f"inside the state directory it may be: {inside}."
            ) from error


def verification_line(custody: Custody, run: str, anchors: Anchors) -> str:
    """What `verify` says, in a few words."""
    try:
        found = custody.verify_run(run, anchors)
    except RopewalkError as error:
        return f"not verified: {error.message}"
    return verified_line(found)


def verified_line(found: Verification) -> str:
    """A verification in a few words."""
    if found.findings:
        return f"failed: {found.findings[0].message}"
    return f"{found.status}: {found.statements} statements, {found.blobs} stored things"
