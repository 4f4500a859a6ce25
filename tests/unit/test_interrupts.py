"""What tests start can be interrupted: the rule of tests/conftest.py can fail one."""

from __future__ import annotations

import signal
import subprocess

import pytest

from tests.conftest import pytest_configure


def test_also_where_a_script_started_the_tests_in_the_background(pytestconfig: pytest.Config) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        pytest_configure(pytestconfig)
        process = subprocess.Popen(["sleep", "100"])
    finally:
        signal.signal(signal.SIGINT, before)
    process.send_signal(signal.SIGINT)
    try:
        assert process.wait(10) == -signal.SIGINT
    finally:
        process.kill()
