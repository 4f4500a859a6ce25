"""Statements: one per step from raw data to reward (in-toto Statement v1).

A statement says that an activity made its subjects out of its inputs. Subjects and inputs are named by sha256, so
a chain of statements is a graph that anybody can walk without trusting who stores it.
https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Protocol

from ropewalk.core.records import Record


class Activity(StrEnum):
    """What was done; the last part of the predicate type URI `https://ropewalk.dev/{activity}/v1`."""

    INGEST = "ingest"
    """A raw file entered the raw zone. Predicate: licence record, source, attestation of no human data."""
    COMMIT = "commit"
    """A lake commit. Inputs: the raw files."""
    DERIVE = "derive"
    """Files were made from raw files: unpacked source, layers."""
    ADMIT = "admit"
    """A task passed its admission. Inputs: raw files, layers, grader spec, oracle, image. The lake commit is a fact and
    no input: it holds the whole lake, and who taints one file of it means no task of another."""
    SNAPSHOT = "snapshot"
    """A warmed sandbox was saved. Inputs: the task."""
    EPISODE = "episode"
    """A policy acted. Inputs: the task and the snapshot."""
    VERDICT = "verdict"
    """A grader judged. Inputs: episode, bundle, task, grader spec."""
    REWARD = "reward"
    """A reward was issued. Inputs: the verdict, the episode and the run's plan."""


class Link(Record):
    """A thing that a statement speaks of."""

    name: str
    """Kind and id for people: `task:…`, `raw:…`."""
    sha256: str


class StatementDraft(Record):
    """What a layer hands over to be signed."""

    activity: Activity
    subjects: tuple[Link, ...]
    """What it made. At least one."""
    inputs: tuple[Link, ...] = ()
    """What it was made from."""
    predicate: dict[str, Any] = {}
    """Facts about the activity: parameters, limits, outcomes. No personal data, no secrets."""
    started_s: float
    ended_s: float


class Recorder(Protocol):
    """Turns drafts into signed statements in the log. Given to upper layers by `app`."""

    def record(self, drafts: tuple[StatementDraft, ...]) -> tuple[str, ...]:
        """Signs and appends all of them, durably, before it returns (one fsync for all); thread-safe.

        Returns:
            The statements' digests, in order. A draft equal to one recorded before returns the first one's digest.
        """
        ...
