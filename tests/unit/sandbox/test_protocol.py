"""Frames and fields, on both sides: whatever bytes come, nothing but their own errors come out."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.agent_builds import built

from ropewalk.core import limits
from ropewalk.core.errors import CallerError
from ropewalk.sandbox import protocol
from ropewalk.sandbox.protocol import (
    Decoder,
    ExecFlag,
    ExitFlag,
    Fields,
    FileFlag,
    Frame,
    FrameKind,
    Key,
    ProtocolError,
    encode,
    field,
)

FROM_AGENT = [kind for kind in FrameKind if kind >= FrameKind.HELLO]
payloads = st.binary(max_size=300)
frames = st.builds(Frame, st.sampled_from(FROM_AGENT), st.integers(0, 0xFFFF_FFFF), payloads)


HEADER = Path(__file__).parents[3] / "agent" / "src" / "wire.h"
NAMES_IN_C = {"FILE_HEAD": "FILE"}
"""`FILE` is taken in C."""


def numbers_in_c(enum: str) -> dict[str, int]:
    """The constants of one enum of the agent's header."""
    body = re.search(rf"enum {enum} \{{(.*?)\}};", HEADER.read_text(), re.DOTALL)
    assert body
    pairs = re.findall(r"(\w+) = ([0-9][0-9 *<]*)", re.sub(r"/\*.*?\*/", "", body[1], flags=re.DOTALL))
    return {NAMES_IN_C.get(name, name): eval(value) for name, value in pairs}  # digits, shifts and products


def test_both_sides_use_the_same_numbers() -> None:
    assert {kind.name: kind.value for kind in FrameKind} == numbers_in_c("frame")
    assert {f"K_{key.name}": key.value for key in Key} == numbers_in_c("key")
    flags = {flag.name: flag.value for enum in (ExecFlag, ExitFlag, FileFlag) for flag in enum}
    named = {"DETACH": "F_DETACH", **{name: f"F_{name}" for name in flags}}
    assert {named[name]: value for name, value in flags.items()} == numbers_in_c("flag")
    in_c = numbers_in_c("protocol")
    assert in_c["VERSION"] == protocol.VERSION
    assert in_c["FRAME_MAX"] == limits.FRAME_BYTES_MAX
    assert in_c["STDIN_WINDOW"] == protocol.WINDOW_BYTES
    assert in_c["FILE_CHUNK"] == protocol.DATA_BYTES_MAX


@given(st.lists(frames, max_size=8), st.data())
def test_frames_survive_any_cut(sent: list[Frame], data: st.DataObject) -> None:
    stream = b"".join(encode(FrameKind(kind), channel, payload) for kind, channel, payload in sent)
    decoder, received, at = Decoder(), [], 0
    while at < len(stream):
        size = data.draw(st.integers(1, 64))
        received += list(decoder.feed(stream[at : at + size]))
        at += size
    assert received == sent


@given(st.lists(st.binary(max_size=80), max_size=20))
def test_a_decoder_of_noise_keeps_little_and_raises_its_own_error(pieces: list[bytes]) -> None:
    decoder = Decoder(frame_bytes_max=64)
    try:
        for piece in pieces:
            for frame in decoder.feed(piece):
                assert len(frame.payload) <= 64
            assert len(decoder._buffer) < 64 + 9
    except ProtocolError:
        pass


@pytest.fixture(scope="module")
def decoder_in_c() -> Iterator[Callable[[bytes], str]]:
    with subprocess.Popen([built("fuzz"), "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin and process.stdout

        def ask(payload: bytes) -> str:
            assert process.stdin and process.stdout
            process.stdin.write(len(payload).to_bytes(4, "big") + payload)
            process.stdin.flush()
            return process.stdout.readline().decode().strip()

        yield ask
        process.stdin.close()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.binary(max_size=60), st.lists(st.tuples(st.sampled_from(Key), payloads)).map(
    lambda pairs: b"".join(field(key, value) for key, value in pairs)
)))  # fmt: skip
def test_both_sides_read_the_same_fields_or_neither_does(decoder_in_c: Callable[[bytes], str], payload: bytes) -> None:
    try:
        host = Fields(payload)._values
    except ProtocolError:
        assert decoder_in_c(payload) == "bad"
        return
    in_c: dict[int, list[bytes]] = {}
    for word in decoder_in_c(payload).split():
        key, _, value = word.partition(":")
        in_c.setdefault(int(key.rstrip("nt")), []).append(bytes.fromhex(value))
    assert in_c == host


@given(st.integers(-(2**63), 2**63 - 1))
def test_numbers_survive(number: int) -> None:
    assert Fields(field(Key.SIZE, number)).number(Key.SIZE) == number


def test_the_agent_takes_no_negative_numbers_and_no_zero_bytes(decoder_in_c: Callable[[bytes], str]) -> None:
    assert decoder_in_c(field(Key.LENGTH, 1)).startswith("35n:")
    for wrong in (field(Key.LENGTH, -1), field(Key.LENGTH, b"1234567")):
        assert "n" not in decoder_in_c(wrong)
    assert decoder_in_c(field(Key.PATH, b"ab")).startswith("32t:")
    assert "t" not in decoder_in_c(field(Key.PATH, b"a\0b"))


def test_noise_breaks_no_decoder_in_c() -> None:
    """Fields, configurations, requests and both ends of a shared stream; the same inputs in every run."""
    answer = subprocess.run([built("fuzz"), "random", "1", "400"], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr[-4000:]
    assert answer.stdout == "400 inputs\n"


def test_a_frame_that_says_it_is_too_long_is_refused_before_it_comes() -> None:
    header = (limits.FRAME_BYTES_MAX + 1).to_bytes(4, "big") + bytes((FrameKind.STDOUT,)) + bytes(4)
    with pytest.raises(ProtocolError):
        list(Decoder().feed(header))


def test_an_agent_may_not_send_requests() -> None:
    with pytest.raises(ProtocolError):
        list(Decoder().feed(encode(FrameKind.EXEC, 1)))


def test_a_request_that_is_too_long_is_the_callers_fault() -> None:
    with pytest.raises(CallerError, match="stdin"):
        encode(FrameKind.EXEC, 1, bytes(limits.FRAME_BYTES_MAX + 1))
