"""Frames and fields, on both sides: whatever bytes come, nothing but their own errors come out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.core import limits
from ropewalk.core.errors import CallerError
from ropewalk.sandbox import protocol
from ropewalk.sandbox.agent import wire
from ropewalk.sandbox.protocol import Decoder, Fields, Frame, FrameKind, Key, ProtocolError, encode, field

FROM_AGENT = [kind for kind in FrameKind if kind >= FrameKind.HELLO]
payloads = st.binary(max_size=300)
frames = st.builds(Frame, st.sampled_from(FROM_AGENT), st.integers(0, 0xFFFF_FFFF), payloads)


def test_both_sides_use_the_same_numbers() -> None:
    assert {kind.name: kind.value for kind in FrameKind} == {kind.name: getattr(wire, kind.name) for kind in FrameKind}
    assert {key.name: key.value for key in Key} == {key.name: getattr(wire, f"K_{key.name}") for key in Key}
    assert len(Key) == len([name for name in vars(wire) if name.startswith("K_")])
    assert protocol.VERSION == wire.VERSION
    assert wire.FRAME_MAX == limits.FRAME_BYTES_MAX
    assert protocol.WINDOW_BYTES == wire.STDIN_WINDOW
    for enum in (protocol.ExecFlag, protocol.ExitFlag, protocol.FileFlag):
        assert all(getattr(wire, f"F_{flag.name}") == flag.value for flag in enum)


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


@given(st.one_of(st.binary(max_size=60), st.lists(st.tuples(st.sampled_from(Key), payloads)).map(
    lambda pairs: b"".join(field(key, value) for key, value in pairs)
)))  # fmt: skip
def test_both_sides_read_the_same_fields_or_neither_does(payload: bytes) -> None:
    try:
        host = Fields(payload)._values
    except ProtocolError:
        with pytest.raises(wire.Malformed):
            wire.Fields(payload)
    else:
        assert wire.Fields(payload).values == host


@given(st.integers(-(2**63), 2**63 - 1))
def test_numbers_survive(number: int) -> None:
    assert wire.field(wire.K_SIZE, number) == field(Key.SIZE, number)
    assert Fields(wire.field(wire.K_SIZE, number)).number(Key.SIZE) == number


def test_the_agent_takes_no_negative_numbers_and_no_zero_bytes() -> None:
    with pytest.raises(wire.Malformed):
        wire.Fields(field(Key.LENGTH, -1)).number(wire.K_LENGTH)
    with pytest.raises(wire.Malformed):
        wire.Fields(field(Key.PATH, b"a\0b")).text(wire.K_PATH)


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
