"""What guessing is worth, and that estimating it has an end whatever the values are."""

from __future__ import annotations

import time

import pytest

from ropewalk.reward.values.assertions import Kind
from ropewalk.reward.values.encode import encode
from ropewalk.reward.values.entropy import GUESS_BITS_MIN, Telling, guess_bits
from ropewalk.reward.values.literals import seen_in
from ropewalk.reward.values.visible import Visible, seen_among


def telling(*values: object) -> list[Telling]:
    return [Telling(Kind.EQUAL, encode(value)) for value in values]


def test_containers_around_what_is_seen_are_not_enough() -> None:
    """One rule may make them all: a list around each would do."""
    seen = seen_among([encode(number) for number in range(1000, 1060)])
    assert guess_bits(telling(*([number] for number in range(1000, 1060))), seen) < GUESS_BITS_MIN
    assert guess_bits(telling(*([[(number,)]] for number in range(1000, 1060))), seen) < GUESS_BITS_MIN


def test_truths_are_one_bit_together() -> None:
    assert guess_bits(telling(True, True, False), Visible()) <= 2.0


def test_unseen_values_are() -> None:
    assert guess_bits(telling(739_231, "quo vadis", [8_151, 90_210]), Visible()) > 2 * GUESS_BITS_MIN


@pytest.mark.parametrize(
    "text",
    [
        "x = " + "[" * 60 + ", ".join("[1, 2]" for _ in range(10_000)) + "]" * 60,
        "x = [" + ", ".join(f"({number}, [{number}, ['a']])" for number in range(2_000)) + "]",
        "x = [" + ", ".join("[" * 20 + "y" + "]" * 20 for _ in range(2_000)) + "]",
        "x = {" + ", ".join(f"{number}: {{'a': {number}}}" for number in range(5_000)) + "}",
    ],
)
def test_reading_literals_has_an_end(text: str) -> None:
    started_s = time.process_time()
    seen_in([text])
    assert time.process_time() - started_s < 30.0


def test_nested_literals_are_seen_as_they_stand() -> None:
    seen = seen_in(["CASES = [([1, 2], {'a': (739231, 'quo')}), (f(3), -4711)]"])
    assert guess_bits(telling([1, 2], (739_231, "quo"), 739_231, -4711, {"a": (739_231, "quo")}), seen) == 0.0


def test_estimating_has_an_end() -> None:
    runs = "\x1f".join(f"n{number}" for number in range(400_000))
    many = telling(*([number, number + 2, number + 1] * 60 for number in range(0, 6_000, 2)))
    started_s = time.process_time()
    guess_bits(many, Visible(runs=runs, numbers=frozenset({1.0})))
    assert guess_bits(many, Visible(runs=runs * 12)) == 0.0
    assert time.process_time() - started_s < 30.0


def test_what_is_seen_does_not_depend_on_what_was_looked_at_before() -> None:
    """Parts of files are remembered: by their text, and by their place where several share a line."""
    method = "class Test:\n    @mark('decorated', 515151)\n    def test(self):\n        x = 11\n"
    first = f"a = 'quo vadis'; b = 739231\n\n\n{method}"
    assert guess_bits(telling("quo vadis", 739_231, "decorated", 515_151), seen_in([first])) == 0.0
    other = first.replace("739231", "111213").replace("11\n", "12\n")
    assert guess_bits(telling("quo vadis", 111_213, 515_151), seen_in([other])) == 0.0
    assert guess_bits(telling(739_231), seen_in([other])) > 0.0
    assert guess_bits(telling(111_213), seen_in([other.replace("\n", "\r")])) == 0.0
