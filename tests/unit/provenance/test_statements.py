"""Statements as bytes."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest
from tests.unit.provenance.world import draft, link

from ropewalk.core.errors import CallerError
from ropewalk.core.records import canonical_bytes
from ropewalk.provenance.intoto import from_payload, kind_of, to_payload
from ropewalk.provenance.statement import Activity, Link, StatementDraft

GOOD = draft(Activity.REWARD, "reward:1", "verdict:1", "episode:1", value=0.5, note="ß")


def test_shape_is_in_toto_statement_v1_in_canonical_form() -> None:
    payload = to_payload(GOOD)
    plain = json.loads(payload)
    assert canonical_bytes(plain) == payload
    assert plain["_type"] == "https://in-toto.io/Statement/v1"
    assert plain["predicateType"] == "https://ropewalk.dev/reward/v1"
    assert plain["subject"] == [{"name": "reward:1", "digest": {"sha256": link("reward:1").sha256}}]
    assert plain["predicate"]["facts"] == {"value": 0.5, "note": "ß"}
    assert plain["predicate"]["started"] == "2023-11-14T22:13:20.250Z"


@pytest.mark.parametrize("activity", list(Activity))
def test_round_trip(activity: Activity) -> None:
    made = draft(activity, "thing:1", "other:2", list=[1, {"a": None}])
    read = from_payload(to_payload(made))
    assert (read.activity, read.subjects, read.inputs, read.facts) == (
        activity,
        made.subjects,
        made.inputs,
        made.predicate,
    )
    assert to_payload(made) == to_payload(msgspec.structs.replace(made))
    assert kind_of(read.subjects[0]) == "thing"


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    "changes",
    [
        {"subjects": ()},
        {"subjects": (Link(name="reward:1", sha256="A" * 64),)},
        {"subjects": (Link(name="reward:1", sha256=""),)},
        {"subjects": (Link(name="reward", sha256="a" * 64),)},
        {"subjects": (Link(name="reward:a\nb", sha256="a" * 64),)},
        {"subjects": (Link(name="reward:" + "a" * 300, sha256="a" * 64),)},
        {"inputs": (link("reward:1"),)},
        {"inputs": tuple(link(f"raw:{i}") for i in range(2001))},
        {"predicate": {"value": math.nan}},
        {"predicate": {"value": 2**60}},
        {"predicate": {"value": object()}},
        {"predicate": nested(40)},
        {"started_s": math.inf},
    ],
)
def test_drafts_that_are_no_statements(changes: dict[str, Any]) -> None:
    with pytest.raises((CallerError, TypeError)):
        to_payload(msgspec.structs.replace(GOOD, **changes))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Statement/v1", "Statement/v2"),
        ("ropewalk.dev/reward/v1", "ropewalk.dev/bribe/v1"),
        ("https://ropewalk.dev/reward/v1", "https://elsewhere.example/reward/v1"),
        ('"facts"', '"fact"'),
        ('"subject":[', '"subject":[],"subject":['),
        ('"sha256":"', '"sha256":"x'),
        ('"value":0.5', '"value":NaN'),
        ('"name":"reward:1"', '"name":"reward"'),
    ],
)
def test_payloads_are_read_strictly(old: str, new: str) -> None:
    text = to_payload(GOOD).decode()
    assert old in text
    with pytest.raises(CallerError):
        from_payload(text.replace(old, new).encode())


def test_predicate_of_a_draft_is_not_shared() -> None:
    assert StatementDraft(activity=Activity.INGEST, subjects=(), started_s=0, ended_s=0).predicate == {}
