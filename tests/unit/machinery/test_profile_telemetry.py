"""Logs: ids, structured fields, and no secrets."""

from __future__ import annotations

import io
import json
import logging

import pytest

from ropewalk.cli.output import print_json
from ropewalk.machinery import redaction, telemetry


@pytest.mark.parametrize("as_json", [True, False])
def test_lines_carry_ids_and_fields_but_no_secrets(as_json: bool) -> None:
    stream = io.StringIO()
    telemetry.configure("info", as_json=as_json, stream=stream)
    redaction.hide("hunter2-hunter2")
    log = logging.getLogger("ropewalk.sample")
    try:
        with telemetry.bound(run="run:1"), telemetry.bound(episode="episode:2"):
            log.info("called with hunter2-hunter2", extra=telemetry.fields(api_key="abc", tokens_prompt=7))
            log.info("header Bearer abcdefgh and token=secretsecret")
        log.debug("not shown")
    finally:
        logging.getLogger("ropewalk").handlers.clear()
    text = stream.getvalue()
    assert "run:1" in text and "episode:2" in text and "7" in text
    for secret in ("hunter2", "abcdefgh", "secretsecret", '"abc"', "=abc"):
        assert secret not in text
    assert len(text.splitlines()) == 2
    if as_json:
        first = json.loads(text.splitlines()[0])
        assert first["run"] == "run:1" and first["api_key"] == redaction.REDACTED and first["tokens_prompt"] == 7


def test_ids_end_with_their_block() -> None:
    stream = io.StringIO()
    telemetry.configure("info", stream=stream)
    try:
        with telemetry.bound(run="run:1"):
            pass
        logging.getLogger("ropewalk.sample").info("after")
    finally:
        logging.getLogger("ropewalk").handlers.clear()
    assert "run:1" not in stream.getvalue()


def test_what_is_printed_and_logged_as_json_controls_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "a\u202eb\x9b31m"
    stream = io.StringIO()
    telemetry.configure("info", as_json=True, stream=stream)
    try:
        logging.getLogger("ropewalk.sample").info(hostile)
    finally:
        logging.getLogger("ropewalk").handlers.clear()
    print_json({"said": hostile})
    for text, name in ((stream.getvalue(), "message"), (capsys.readouterr().out, "said")):
        assert "\u202e" not in text and "\x9b" not in text and json.loads(text)[name] == hostile
