"""Records: canonical bytes, digests, and strict reading of what comes from outside."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.core.errors import CallerError, IntegrityError
from ropewalk.core.limits import JSON_DEPTH_MAX
from ropewalk.core.records import Record, canonical_bytes, content_id, decode, decode_own, digest, json_text


class Example(Record):
    name: str
    sizes: tuple[int, ...] = ()
    ratio: float = 0.5
    note: str


RECORDS = st.builds(
    Example,
    name=st.text(),
    sizes=st.lists(st.integers(-(2**53) + 1, 2**53 - 1)).map(tuple),
    ratio=st.floats(allow_nan=False, allow_infinity=False),
    note=st.text(),
)


@given(RECORDS)
def test_a_record_survives_its_canonical_bytes(record: Example) -> None:
    assert canonical_bytes(decode(canonical_bytes(record), Example)) == canonical_bytes(record)


def test_canonical_bytes_do_not_depend_on_the_order_of_keys() -> None:
    assert canonical_bytes({"b": 1, "a": [True, None, "ü"]}) == '{"a":[true,null,"ü"],"b":1}'.encode()
    assert digest({"b": 1, "a": 2}) == digest({"a": 2, "b": 1})


def test_a_content_id_names_its_kind_and_content() -> None:
    assert content_id("task", {"a": 1}) == "task:" + digest({"a": 1})[:32]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 2**53, {"x": -(2**60)}])
def test_what_has_no_canonical_form_is_refused(value: object) -> None:
    with pytest.raises(CallerError, match="no canonical JSON form"):
        canonical_bytes(value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('{"name":"a","note":"b","more":1}', "more"),
        ('{"name":"a"}', "note"),
        ('{"name":1,"note":"b"}', "name"),
        ('{"name":"a","name":"b","note":"c"}', "duplicate key 'name'"),
        ('{"name":"a","note":"b","ratio":NaN}', "NaN"),
        ('{"name":"a","note":"b"', "delimiter"),
        ("[" * 100_000 + "]" * 100_000, "nested deeper"),
        ("[" * (JSON_DEPTH_MAX + 3) + "]" * (JSON_DEPTH_MAX + 3), "nested deeper"),
        ("", "Expecting value"),
    ],
)
def test_bad_json_names_what_is_wrong(text: str, complaint: str) -> None:
    with pytest.raises(CallerError, match="Example: ") as caught:
        decode(text, Example)
    assert complaint in caught.value.message


def test_a_damaged_own_record_is_a_matter_of_integrity() -> None:
    with pytest.raises(IntegrityError):
        decode_own(json.dumps({"name": "a"}), Example)


def test_records_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Example(name="a", note="b").name = "c"  # type: ignore[misc]


@given(st.dictionaries(st.text(st.characters()), st.text(st.characters())), st.sampled_from([None, 2]))
def test_json_for_terminals_controls_none_and_loses_nothing(plain: dict[str, str], indent: int | None) -> None:
    hostile = "é\u202e\x9b31m\x7f\x1b[0m\u2066\u2028\U000e0041\ud800 \\u202e"
    text = json_text({**plain, "hostile": hostile}, indent=indent)
    assert json.loads(text) == {**plain, "hostile": hostile} and "é" in text
    assert all(letter.isprintable() for letter in text.replace("\n", ""))
