"""Values that a forger finds instead of computing them: none of them makes a grader, of the whole kind.

Each problem has tests whose values look like chance and are worth some 24 bits each, and one place where they can be
had without the fix: a file, a comment, a function of the standard library, a stream. The same problem without that
place is a grader, so that what refuses it is the place.
"""

from __future__ import annotations

import base64
import bz2
import gzip
import io
import json
import lzma
import pickle
import textwrap
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from tests.grading import GradedProblem, GradingWorld, grading_world
from tests.unit.reward.worlds import grading_root  # noqa: F401

from ropewalk.reward.build import GraderBuild
from ropewalk.reward.values.assertions import Kind
from ropewalk.reward.values.entropy import Telling, guess_bits
from ropewalk.reward.values.literals import seen_in_files

pytestmark = [pytest.mark.timeout(240), pytest.mark.slow]


def mixed(number: int) -> int:
    return (number * 7919 + 104729) % 1000003


MIXER = '"""Mixes numbers."""\n{}\n\ndef mix(number):\n    return (number * 7919 + 104728) % 1000003\n'
ASKED = (3, 5, 8, 13)
MIXER_TESTS = "from mixer import mix\n\ndef test_it():\n" + "".join(
    f"    assert mix({number}) == {mixed(number)}\n" for number in ASKED
)
TABLE = {number: mixed(number) for number in range(20)}
PACKED = json.dumps({str(key): to for key, to in TABLE.items()}).encode()


def zipped(before: bytes, text: bytes) -> bytes:
    held = io.BytesIO()
    held.write(before)
    with zipfile.ZipFile(held, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("known.json", text)
    return held.getvalue()


PLACES: dict[str, tuple[str, dict[str, str | bytes], dict[str, str | bytes]]] = {
    # What stands in the source, beside it, and beside the tests.
    "json of the package": ("", {"mixer_data/known.json": json.dumps({str(key): to for key, to in TABLE.items()})}, {}),
    "text of the package": ("", {"known.txt": "\n".join(f"{key}\t{to}" for key, to in TABLE.items())}, {}),
    "packed": ("", {"known.gz": gzip.compress(json.dumps(list(TABLE.items())).encode())}, {}),
    "packed in two parts": ("", {"known.gz": gzip.compress(b"[]\n") + gzip.compress(PACKED)}, {}),
    "packed otherwise, in two parts": ("", {"known.bz2": bz2.compress(b"[]\n") + bz2.compress(PACKED)}, {}),
    "packed a third way, in two parts": ("", {"known.xz": lzma.compress(b"[]\n") + lzma.compress(PACKED)}, {}),
    "an archive behind a program": ("", {"known.exe": zipped(b"MZ" + bytes(60), PACKED)}, {}),
    "in a wide encoding": ("", {"known.bin": PACKED.decode().encode("utf-32")}, {}),
    "in base 64": ("", {"known.txt": base64.b64encode(PACKED)}, {}),
    "in lines of base 64": ("", {"known.txt": base64.encodebytes(PACKED)}, {}),
    "packed in base 64": ("", {"known.txt": base64.b64encode(gzip.compress(PACKED))}, {}),
    "in base 16": ("", {"known.txt": PACKED.hex()}, {}),
    "escaped": ("", {"known.txt": b"".join(b"=%02X" % byte for byte in PACKED)}, {}),
    "pickled": ("", {"known.bin": pickle.dumps(TABLE)}, {}),
    "a module that nobody imports": ("", {"scripts/known.py": f"KNOWN = {list(TABLE.values())}\n"}, {}),
    "a comment": ("\n".join(f"# mix({key}) is {to}." for key, to in TABLE.items()), {}, {}),
    "a comment behind code": ("\n".join(f"x{key} = {key}  # {to:#x}" for key, to in TABLE.items()), {}, {}),
    "prose": (f'ABOUT = """As is known, {", ".join(f"{key} gives {to:,}" for key, to in TABLE.items())}."""', {}, {}),
    "names": ("\n".join(f"def mix_{key}_is_{to}(): pass" for key, to in TABLE.items()), {}, {}),
    "text between colons": ("", {}, {"tests/known.txt": "\n".join(f"{key}:{to}" for key, to in TABLE.items())}),
    "hexadecimal text": ("", {}, {"tests/known.txt": "\n".join(f"{key} {to:#x}" for key, to in TABLE.items())}),
    "bare hexadecimal": ("", {}, {"tests/known.txt": "\n".join(f"{key} {to:x}" for key, to in TABLE.items())}),
    "grouped digits": ("", {}, {"tests/known.txt": "\n".join(f"{key} {to:_}" for key, to in TABLE.items())}),
    "inside words": ("", {}, {"tests/known.txt": "\n".join(f"k{key}v{to}n" for key, to in TABLE.items())}),
    "far down in a long text": ("", {}, {"tests/known.txt": "0 0 0 0 0 0 0 0\n" * 9000 + repr(TABLE)}),
    "a text that is too long": ("", {}, {"tests/known.txt": "0 0 0 0 0 0 0 0\n" * 60_000 + "hidden"}),
    "in another encoding": ("", {}, {"tests/known.txt": repr(TABLE).encode("utf-16")}),
}  # fmt: skip

TOLD = ("семь дней назад", "через три месяца", "größtenteils bewölkt", "два года тому назад", "plain and simple text")
BINARIES = {
    "a catalogue": lambda text: b"\xde\x12\x04\x95" + bytes(24) + text + b"\0",
    "a catalogue of the other order": lambda text: b"\x95\x04\x12\xde" + bytes(24) + text + b"\0",
    "a program": lambda text: b"\x7fELF\x02\x01\x01" + bytes(9) + text + b"\0",
    "a font": lambda text: b"\x00\x01\x00\x00\x00\x0c" + text + b"\x00\x00\x01",
    "a picture": lambda text: b"\x89PNG\r\n\x1a\n\x00\x00\x00\x20tEXtComment\x00" + text + b"\x00",
}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le", "utf-16-be", "latin-1"])
@pytest.mark.parametrize("kind", BINARIES)
def test_what_stands_in_binary_files_is_no_secret_in_whatever_encoding(kind: str, encoding: str) -> None:
    texts = [text for text in TOLD if encoding != "latin-1" or text.isascii()]
    between = "\0".encode(encoding)
    data = BINARIES[kind](between.join(text.encode(encoding) for text in texts) + between)
    values = [Telling(Kind.EQUAL, text) for text in texts]
    assert guess_bits(values, seen_in_files([("data.bin", data)])) < 10.0
    assert guess_bits(values, seen_in_files([("data.bin", BINARIES[kind](bytes(40)))])) > 20.0


CODEC = """
def encode(items):
    return ".".join("%x" % item for item in items)


def decode(text):
    return [int(part, 16) + 1 for part in text.split(".") if part]
"""
VALUES = "[k * k * 7919 % 1000003 for k in range({})]"
HEADS = (9, 8, 7, 11)
COMPUTED: dict[str, tuple[str, str, dict[str, str | bytes]]] = {
    # Head of the tests, what is decoded, files beside. The expected values are computed in the tests as well.
    "given to a builtin": ("", 'decode(".".join(map(hex, {0})).replace("0x", ""))', {}),
    "given to a C function": ("import struct", 'decode(struct.pack(">%dI" % len({0}), *{0}).hex(".", 4))', {}),
    "in a stream": (
        "import io\ndef written(items):\n    s = io.StringIO()\n    for i in items: s.write('%x.' % i)\n    return s",
        "decode(written({0}).getvalue())", {}),
    "in a file": (
        "import pathlib, tempfile\ndef written(items):\n"
        "    p = pathlib.Path(tempfile.mkdtemp()) / 'x'\n"
        "    p.write_text('.'.join('%x' % i for i in items))\n    return p",
        "decode(written({0}).read_text())", {}),
    "in a helper": ("from support import through", "through({0})", {"tests/support.py":
        "from codec import decode\ndef through(items):\n    held = list(items)\n"
        "    return decode('.'.join('%x' % item for item in held))\n"}),
    "in a generator": ("", "decode(encode(k * k * 7919 % 1000003 for k in range(len({0}))))", {}),
    "in a fixture": (
        "import pytest\n@pytest.fixture(autouse=True)\ndef table(request):\n"
        "    request.node.table = dict((n, [k * k * 7919 % 1000003 for k in range(n)]) for n in (9, 8, 7, 11))",
        "decode('.'.join('%x' % item for item in {0}))", {}),
    "in a database": (
        "import sqlite3\ndb = sqlite3.connect(':memory:')\ndb.execute('create table t (n)')\n"
        "db.executescript('with recursive c(k) as (select 0 union all select k + 1 from c where k < 11) '\n"
        "                 'insert into t select k * k * 7919 % 1000003 from c')\n",
        "decode('.'.join('%x' % (k * k * 7919 % 1000003) for k in range(len({0}))))", {}),
}  # fmt: skip


def mixer(name: str, place: tuple[str, Mapping[str, str | bytes], Mapping[str, str | bytes]]) -> GradedProblem:
    text, beside, beside_tests = place
    broken = MIXER.format(text)
    return GradedProblem(
        name=f"mixer {name}",
        before={"mixer.py": broken, **beside},
        after={"mixer.py": broken.replace("104728", "104729")},
        tests={"tests/test_mixer.py": MIXER_TESTS, **beside_tests},
        held_out=("tests/test_mixer.py::test_it",),
    )


WHOLE = ("json of the package", "a comment", "inside words")
"""Of these a grader is built; of the others what they show is enough."""


async def test_without_a_place_to_find_them_values_are_secret(grading_root: Path) -> None:  # noqa: F811
    async with grading_world(grading_root) as world:
        _, build = await world.build(mixer("plain", ("# 1, 2 and 3", {"notes.txt": "nothing\n"}, {})))
        assert build.spec is not None and build.guess_bits > 40.0, build


@pytest.mark.parametrize("place", WHOLE)
async def test_what_stands_in_files_makes_no_grader(grading_root: Path, place: str) -> None:  # noqa: F811
    async with grading_world(grading_root) as world:
        _, build = await world.build(mixer(place, PLACES[place]))
        assert (build.spec, build.refused) == (None, "low_entropy"), build


@pytest.mark.parametrize("place", PLACES)
def test_what_stands_in_files_is_no_secret(place: str) -> None:
    problem = mixer(place, PLACES[place])
    shipped = "from mixer import mix\n\ndef test_it():\n    " + "; ".join(f"told(mix({number}))" for number in ASKED)
    files = {**problem.before, **problem.tests, "tests/test_mixer.py": shipped}
    values = [Telling(Kind.EQUAL, mixed(number)) for number in ASKED]
    data = [(path, text.encode() if isinstance(text, str) else text) for path, text in files.items()]
    assert guess_bits(values, seen_in_files(data)) < 1.0
    plain = [("mixer.py", MIXER.format("").encode()), ("tests/test_mixer.py", shipped.encode())]
    assert guess_bits(values, seen_in_files(plain)) > 40.0


async def test_what_a_formatted_text_is_made_of_is_no_secret(grading_root: Path) -> None:  # noqa: F811
    lines = []
    for count in HEADS:
        asked = f"decode('.'.join(map('{{0:x}}'.format, {VALUES.format(count)})))"
        lines.append(f'    assert f"{{{asked}}}" == {str(_squares(count))!r}')
    async with grading_world(grading_root) as world:
        _, build = await world.build(codec("formatted", "", "\n".join(lines), {}))
        assert (build.spec, build.refused) == (None, "low_entropy"), build
        assert "looked into" not in build.detail, build


@pytest.mark.parametrize("way", COMPUTED)
async def test_what_tests_compute_is_no_secret(grading_root: Path, way: str) -> None:  # noqa: F811
    head, asked, files = COMPUTED[way]
    lines = []
    for count in HEADS:
        right = [k * k * 7919 % 1000003 for k in range(count)]
        lines.append(f"    assert {asked.format(VALUES.format(count))} == {right}")
    body = "\n".join(lines)
    async with grading_world(grading_root) as world:
        _, build = await world.build(codec(way, head, body, files))
        assert (build.spec, build.refused) == (None, "low_entropy"), build


def one_module(
    name: str, module: str, source: str, fix: tuple[str, str], tests: str, held_out: tuple[str, ...] = ("test_it",)
) -> GradedProblem:
    """A problem of one module, whose fix replaces a piece of text, and of one module of tests."""
    return GradedProblem(
        name=name,
        before={f"{module}.py": source},
        after={f"{module}.py": source.replace(*fix)},
        tests={f"tests/test_{module}.py": tests},
        held_out=tuple(f"tests/test_{module}.py::{test}" for test in held_out),
    )


def codec(name: str, head: str, body: str, files: Mapping[str, str | bytes]) -> GradedProblem:
    tests = f"from codec import decode, encode\n{head}\n\ndef test_it():\n{body}\n"
    made = one_module(f"codec {name}", "codec", CODEC, (" + 1", ""), textwrap.dedent(tests))
    return replace(made, tests={**made.tests, **files})


PACKER = """
def pack(items):
    packed = []
    for item in items:
        packed.append([item, 1])
        return packed
    return packed


def unpack(pairs):
    return [item for item, count in pairs for _ in range(count)]
"""


async def test_what_a_generator_yields_is_no_secret_however_little_is_taken(grading_root: Path) -> None:  # noqa: F811
    lines = []
    for count in HEADS:
        right = [k // 2 * 7919 % 1000003 for k in range(count)]
        lines.append(f"    assert unpack(pack(k // 2 * 7919 % 1000003 for k in range({count}))) == {right}")
    tests = "from packer import pack, unpack\n\ndef test_it():\n" + "\n".join(lines)
    problem = one_module(
        "packer", "packer", PACKER, ("        return packed\n    return", "    return"),
        tests,
    )  # fmt: skip
    async with grading_world(grading_root) as world:
        _, build = await world.build(problem)
        assert (build.spec, build.refused) == (None, "low_entropy"), build


def _squares(count: int) -> list[int]:
    return [k * k * 7919 % 1000003 for k in range(count)]


def _asserted(call: str, right: Mapping[int, object]) -> str:
    return "".join(f"    assert {call.format(count)} == {value}\n" for count, value in right.items())


SQUARES = "[k * k * 7919 % 1000003 for k in range(count)]"
OF_SOURCE = {
    "handed on": (
        "def example(count):\n"
        "    return encode(SQUARES)\n"
    ),
    "returned": (
        "def made(count):\n"
        "    return SQUARES\n"
        "\n"
        "def example(count):\n"
        "    return '.'.join(map('{:x}'.format, made(count)))\n"
    ),
    "held": (
        "def example(count):\n"
        "    held = SQUARES\n"
        "    return '.'.join(map('{:x}'.format, held))\n"
    ),
    "kept by a module": (
        "KEPT = {count: SQUARES for count in (9, 8, 7, 11)}\n"
        "\n"
        "def example(count):\n"
        "    return encode(KEPT[count])\n"
    ),
    "kept by an object": (
        "class Box:\n"
        "    def __init__(self, count):\n"
        "        self.items = SQUARES\n"
        "\n"
        "    def text(self):\n"
        "        return encode(self.items)\n"
        "\n"
        "def example(count):\n"
        "    return Box(count).text()\n"
    ),
    "yielded": (
        "def made(count):\n"
        "    yield from SQUARES\n"
        "\n"
        "def example(count):\n"
        "    return '.'.join(map('{:x}'.format, made(count)))\n"
    ),
    "kept by an object that is gone": (
        "class Box:\n"
        "    def text(self):\n"
        "        return '.'.join(map('{:x}'.format, self.items))\n"
        "\n"
        "def example(count):\n"
        "    box = Box()\n"
        "    box.items = list(map(1000003 .__rmod__, map(7919 .__mul__, map(pow, range(count), (2,) * count))))\n"
        "    return box.text()\n"
    ),
    "bound in a loop": (
        "def example(count):\n"
        "    text = ''\n"
        "    for k in range(count):\n"
        "        item = k * k * 7919 % 1000003\n"
        "        text += '%x.' % item\n"
        "    return text\n"
    ),
    "appended to an attribute": (
        "class Box:\n"
        "    def __init__(self, count):\n"
        "        self.items = []\n"
        "        for k in range(count):\n"
        "            self.items.append(k * k * 7919 % 1000003)\n"
        "\n"
        "    def text(self):\n"
        "        return '.'.join(map('{:x}'.format, self.items))\n"
        "\n"
        "def example(count):\n"
        "    return Box(count).text()\n"
    ),
    "handed on one by one": (
        "def put(parts, number):\n"
        "    parts.append('%x' % number)\n"
        "\n"
        "def example(count):\n"
        "    parts = []\n"
        "    for k in range(count):\n"
        "        put(parts, k * k * 7919 % 1000003)\n"
        "    return '.'.join(parts)\n"
    ),
    "given back by a library": (
        "import copy\n"
        "\n"
        "def example(count):\n"
        "    return '.'.join(map('{:x}'.format, copy.deepcopy(SQUARES)))\n"
    ),
    "bound in a generator's loop": (
        "def parts(count):\n"
        "    for k in range(count):\n"
        "        item = k * k * 7919 % 1000003\n"
        "        yield '%x' % item\n"
        "\n"
        "def example(count):\n"
        "    return '.'.join(parts(count))\n"
    ),
    "run through": (
        "def example(count):\n"
        "    return '.'.join('%x' % item for item in tuple(SQUARES))\n"
    ),
}  # fmt: skip
"""Ways in which broken code has right values in one call, before another call is asked for them."""


@pytest.mark.parametrize("way", OF_SOURCE)
async def test_what_an_earlier_call_of_the_source_computed_is_no_secret(grading_root: Path, way: str) -> None:  # noqa: F811
    source = f"{CODEC}\n\n{OF_SOURCE[way].replace('SQUARES', SQUARES)}"
    problem = one_module(
        f"the source: {way}", "codec", source, (" + 1", ""),
        "from codec import decode, example\n\ndef test_it():\n"
               + _asserted("decode(example({}))", {count: _squares(count) for count in HEADS}),
    )  # fmt: skip
    async with grading_world(grading_root) as world:
        _, build = await world.build(problem)
        assert (build.spec, build.refused) == (None, "low_entropy"), build
        assert "looked into" not in build.detail, build


async def forged(world: GradingWorld, problem: GradedProblem, files: Mapping[str, str]) -> tuple[GraderBuild, float]:
    """The grader, and what a forgery is paid where there is one."""
    task, build = await world.build(problem)
    if build.spec is None:
        return build, 0.0
    return build, (await world.grader.grade(task, episode="episode:x", bundle=world.bundle(task, files))).score or 0.0


ENCODERS = {
    # What the source hands on, what it makes of it, and how that is held against what is expected.
    "within a tolerance": (
        "def made(count):\n    return [k * k * 7.919 % 103.7 + 0.123 for k in range(count)]\n",
        "' '.join('%.9f' % item for item in items)", "[float(part) + 1 for part in text.split()]",
        lambda count: [k * k * 7.919 % 103.7 + 0.123 for k in range(count)], "pytest.approx({})",
    ),
    "in another order": (
        "def made(count):\n    return {f'key{count - k}': k * k * 7919 % 1000003 for k in range(count)}\n",
        "','.join(f'{key}={item}' for key, item in items.items())",
        "{key: int(item) + 1 for key, item in (part.split('=') for part in text.split(','))}",
        lambda count: dict(sorted((f"key{count - k}", k * k * 7919 % 1000003) for k in range(count))), "{}",
    ),
    "small": (
        "def made(count):\n    return tuple(k * k * 79 % 997 for k in range(count))\n",
        "'.'.join('%x' % item for item in items)", "[int(part, 16) + 1 for part in text.split('.')]",
        lambda count: [k * k * 79 % 997 for k in range(count)], "{}",
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", ENCODERS)
async def test_what_was_encoded_is_not_paid_for_having_been_kept(grading_root: Path, way: str) -> None:  # noqa: F811
    made, packed, unpacked, right, shape = ENCODERS[way]
    source = (
        f"{made}\n\ndef encode(items):\n    return {packed}\n\n\n"
        f"def example(count):\n    return encode(made(count))\n\n\ndef decode(text):\n    return {unpacked}\n"
    )
    problem = one_module(
        f"kept: {way}", "codec", source, (" + 1", ""),
        "import pytest\nfrom codec import decode, example\n\ndef test_it():\n"
               + "".join(f"    assert decode(example({count})) == {shape.format(right(count))}\n" for count in HEADS),
    )  # fmt: skip
    keeps = source.replace("def encode(items):\n", "def encode(items):\n    global kept\n    kept = items\n")
    async with grading_world(grading_root) as world:
        build, paid = await forged(world, problem, {"codec.py": keeps.replace(f"return {unpacked}", "return kept")})
        assert (build.spec, build.refused, paid) == (None, "low_entropy", 0.0), build
        assert "looked into" not in build.detail, build


async def test_what_a_test_writes_one_by_one_is_a_row(grading_root: Path) -> None:  # noqa: F811
    source = (
        "class Writer:\n    def __init__(self):\n        self.parts = []\n\n    def put(self, number):\n"
        "        self.parts.append('%x' % number)\n\n\ndef decode(text):\n"
        "    return [int(part, 16) + 1 for part in text.split('.')]\n"
    )
    lines = [
        f"    writer = Writer()\n    for k in range({count}):\n        writer.put(k * k * 7919 % 1000003)\n"
        f"    assert decode('.'.join(writer.parts)) == {_squares(count)}"
        for count in HEADS
    ]
    problem = one_module(
        "a row", "codec", source, (" + 1", ""),
        "from codec import Writer, decode\n\ndef test_it():\n" + "\n".join(lines) + "\n",
    )  # fmt: skip
    async with grading_world(grading_root) as world:
        _, build = await world.build(problem)
        assert (build.spec, build.refused) == (None, "low_entropy"), build
        assert "looked into" not in build.detail, build


ONE_BY_ONE = {
    "an iterator": (
        "class Numbers:\n    def __init__(self, count):\n        self.count, self.k = count, 0\n\n"
        "    def __iter__(self):\n        return self\n\n    def __next__(self):\n        if self.k == self.count:\n"
        "            raise StopIteration\n        self.k += 1\n        return (self.k - 1) ** 2 * 7919 % 1000003\n"
        "def packed(count):\n    return '.'.join(map('{:x}'.format, Numbers(count)))\n"
    ),
    "a variable": (
        "def packed(count):\n    text = []\n    for k in range(count):\n        item = k * k * 7919 % 1000003\n"
        "        text.append('%x' % item)\n    return '.'.join(text)\n"
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", ONE_BY_ONE)
async def test_what_a_test_makes_one_by_one_is_a_row(grading_root: Path, way: str) -> None:  # noqa: F811
    right = _asserted("decode(packed({}))", {count: _squares(count) for count in HEADS})
    async with grading_world(grading_root) as world:
        _, build = await world.build(codec(way, ONE_BY_ONE[way], right, {}))
        assert (build.spec, build.refused) == (None, "low_entropy"), build
        assert "looked into" not in build.detail, build


async def test_a_line_that_is_hard_to_write_anew_hides_nothing(grading_root: Path) -> None:  # noqa: F811
    head = "def never(a):\n    a[0:2, 1] += 1\n    a[0:2] += [1]\n    return a[1:2, 3], a[:, 'x'], a[::2]\n"
    lines = [f"    assert decode('.'.join(map('{{:x}}'.format, {VALUES.format(n)}))) == {_squares(n)}" for n in HEADS]
    async with grading_world(grading_root) as world:
        _, build = await world.build(codec("slices", head, "\n".join(lines), {}))
        assert (build.spec, build.refused) == (None, "low_entropy"), build
        assert "looked into" not in build.detail, build


async def test_who_stops_being_watched_for_a_while_hides_nothing(grading_root: Path) -> None:  # noqa: F811
    head = (
        "import sys\n\ndef packed(count):\n    watching = sys.getprofile()\n    sys.setprofile(None)\n"
        "    text = example(count)\n    sys.setprofile(watching)\n    return text\n"
    )
    source = f"{CODEC}\n\n{OF_SOURCE['handed on'].replace('SQUARES', SQUARES)}"
    right = _asserted("decode(packed({}))", {count: _squares(count) for count in HEADS})
    problem = one_module(
        "unwatched", "codec", source, (" + 1", ""),
        f"from codec import decode, example\n{head}\ndef test_it():\n{right}",
    )  # fmt: skip
    async with grading_world(grading_root) as world:
        _, build = await world.build(problem)
        assert build.refused == "low_entropy" and "watches" in build.detail, build


async def test_what_a_later_call_makes_is_no_secret_either(grading_root: Path) -> None:  # noqa: F811
    """Whoever holds back the record until its end has all of it."""
    source = (
        "def decode(text):\n    return [int(part) // 3 + 1 for part in text.split('.')]\n\n\ndef example(count):\n"
        f"    held = {SQUARES}\n    return '.'.join('%d' % (item * 3 + 1) for item in held)\n"
    )
    texts = {count: ".".join(str(item * 3 + 1) for item in _squares(count)) for count in HEADS}
    tests = "from codec import decode, example\n\ndef test_it():\n"
    tests += "".join(f"    assert decode({text!r}) == {_squares(count)}\n" for count, text in texts.items())
    tests += "\ndef test_later():\n" + "".join(
        f"    assert len(example({count})) == {len(text)}\n" for count, text in texts.items()
    )
    problem = one_module(
        "later", "codec", source, (" // 3 + 1", " // 3"),
        tests, held_out=("test_it", "test_later"),
    )  # fmt: skip
    async with grading_world(grading_root) as world:
        _, build = await world.build(problem)
        assert (build.spec, build.refused) == (None, "low_entropy"), build
        assert "looked into" not in build.detail, build


MADE = "def made(n):\n    return '.'.join('%x' % i for i in [k * k * 7919 % 1000003 for k in range(n)])\n"
WRITTEN = f"import pathlib, tempfile\npath = pathlib.Path(tempfile.mkdtemp()) / 'maker.py'\npath.write_text({MADE!r})\n"
AT_RUN_TIME = {
    "exec": (
        "space = {}\n"
        "exec(MADE, space)\n"
        "made = space['made']\n"
    ),
    "an interpreter": (
        "import code\n"
        "space = {}\n"
        "code.InteractiveInterpreter(space).runsource(MADE, symbol='exec')\n"
        "made = space['made']\n"
    ),
    "runpy": (
        "WRITTENimport runpy\n"
        "made = runpy.run_path(str(path))['made']\n"
    ),
    "a module of a temporary folder": (
        "WRITTENimport sys\n"
        "sys.path.insert(0, str(path.parent))\n"
        "from maker import made\n"
    ),
    "a module that is loaded by hand": (
        "WRITTENimport importlib.util as u\n"
        "spec = u.spec_from_file_location('maker', path)\n"
        "module = u.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "made = module.made\n"
    ),
    "mere calls": (
        "from operator import mod, mul, pow\n"
        "\n"
        "def made(n):\n"
        "    asked = \"join(map(shown, map(mod, map(mul, map(pow, of, twos), factors), moduli)))\"\n"
        "    return eval(asked, {'join': '.'.join, 'shown': '{:x}'.format, 'mod': mod, 'mul': mul, 'pow': pow,\n"
        "                        'of': range(n), 'twos': (2,) * n, 'factors': (7919,) * n, 'moduli': (1000003,) * n})\n"
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", AT_RUN_TIME)
async def test_what_code_made_at_run_time_computes_is_no_secret(grading_root: Path, way: str) -> None:  # noqa: F811
    body = _asserted("decode(made({}))", {count: _squares(count) for count in HEADS})
    head = AT_RUN_TIME[way].replace("MADE", repr(MADE)).replace("WRITTEN", WRITTEN)
    async with grading_world(grading_root) as world:
        _, build = await world.build(codec(way, head, textwrap.indent(body, "    "), {}))
        assert (build.spec, build.refused) == (None, "low_entropy"), build
        assert "run time" in build.detail


MASK = "def unmask(number):\n    return number ^ 0x1234568\n"
IN_PLACE = {
    "a name": "def masked(h):\n    h *= 7919\n    h ^= 0x1234567\n    return h",
    "an item": "def masked(h):\n    box = [h]\n    box[0] *= 7919\n    box[0] ^= 0x1234567\n    return box[0]",
    "an item that is asked for once": "def masked(h):\n    box, at = [h], iter((0, 0, 0))\n    box[next(at)] *= 7919\n"
                                      "    box[next(at)] ^= 0x1234567\n    return box[next(at)]",
    "an attribute": "class Box: pass\n\ndef masked(h):\n    box = Box()\n    box.h = h\n    box.h *= 7919\n"
                    "    box.h ^= 0x1234567\n    return box.h",
    "a chain": "import heapq\n\ndef masked(h):\n    first, *_ = heapq.merge([h * 7919], [])\n"
               "    return first ^ 0x1234567",
}  # fmt: skip


@pytest.mark.parametrize("way", IN_PLACE)
async def test_what_is_changed_in_place_was_no_secret_before(grading_root: Path, way: str) -> None:  # noqa: F811
    right = {n: n * 7919 for n in (30011, 50021, 110017, 130003)}
    problem = one_module(
        f"in place: {way}", "mask", MASK, ("4568", "4567"),
        f"from mask import unmask\n\n{IN_PLACE[way]}\n\ndef test_it():\n"
               + _asserted("unmask(masked({}))", right),
    )  # fmt: skip
    async with grading_world(grading_root) as world:
        _, build = await world.build(problem)
        assert (build.spec, build.refused) == (None, "low_entropy"), build
        assert "looked into" not in build.detail, build


async def test_what_an_iterator_of_a_library_yields_is_no_secret(grading_root: Path) -> None:  # noqa: F811
    """Its items are visible, and what it makes of them is a row that was there."""
    rows = {"0": (1, 2), "1": (2, 3), "2": (3, 1), "3": (1, 3)}
    lines, merged = [], {}
    for name, (first, second) in rows.items():
        left, right = _mixed(first), _mixed(second)
        merged[name] = sorted([*left, *right])
        lines.append(
            f"    assert decode('.'.join(map('{{:x}}'.format, heapq.merge({left}, {right})))) == {merged[name]}"
        )
    async with grading_world(grading_root) as world:
        _, build = await world.build(codec("a library", "import heapq", "\n".join(lines), {}))
        assert (build.spec, build.refused) == (None, "low_entropy"), build
        assert "looked into" not in build.detail, build


def _mixed(seed: int) -> list[int]:
    return sorted((k * seed * 104729 + 7919) % 1000003 for k in range(1, 6))


async def test_what_only_looking_makes_wrong_tells_nothing(grading_root: Path) -> None:  # noqa: F811
    """A test that hands on a `map` hands on something else while one looks."""
    source = (
        "def total(items):\n    return sum(items) if isinstance(items, map) else 0\n\ndef ready():\n    return False\n"
    )
    numbers = [[str(n * 7919) for n in range(at, at + 9)] for at in (30, 50, 70)]
    lines = [f"    assert total(map(int, {row})) == {sum(map(int, row))}" for row in numbers]
    problem = one_module(
        "looking", "adder", source, ("False", "True"),
        "from adder import ready, total\n\ndef test_it():\n" + "\n".join(lines)
               + "\n    assert ready()\n",
    )  # fmt: skip
    async with grading_world(grading_root) as world:
        _, build = await world.build(problem)
        assert (build.spec, build.refused) == (None, "low_entropy"), build
        assert build.detail.startswith("1 telling"), build.detail


MIXED = "[(k * k * 7919 + count) % 1000003 for k in range(count)]"
HONEST = {
    # What one call makes on its way to a result is the task.
    "spoiled at the end": (
        "def ask(count):\n"
        "    right = MIXED\n"
        "    return right[:-1]\n"
    ),
    "spoiled by the caller": (
        "def right(count):\n"
        "    return MIXED\n"
        "\n"
        "def ask(count):\n"
        "    return right(count)[:-1]\n"
    ),
    "spoiled in a helper": (
        "def cut(right):\n"
        "    return right[:-1]\n"
        "\n"
        "def ask(count):\n"
        "    return cut(MIXED)\n"
    ),
    "a generator": (
        "def made(count):\n"
        "    for item in MIXED[:-1]:\n"
        "        yield item\n"
        "\n"
        "def ask(count):\n"
        "    return list(made(count))\n"
    ),
}  # fmt: skip
HONEST["a coroutine"] = (
    "import asyncio\n"
    "\n"
    "async def made(count):\n"
    "    right = MIXED\n"
    "    await asyncio.sleep(0)\n"
    "    return right[:-1]\n"
    "\n"
    "def ask(count):\n"
    "    return asyncio.run(made(count))\n"
)
HELPED = {
    "nothing": "{}",
    "a named tuple": "tuple(collections.namedtuple('Row', 'first rest')({0}, 1).first)",
    "a data class": "dataclasses.make_dataclass('Row', ['it'])({0}).it",
    "a pattern": "[int(re.sub('[0-9]+', lambda found: found.group(), str(item))) for item in {0}]",
    "a sorted copy": "list(sorted({0}, key=lambda item: 0))",
    "asked twice": "{}",
}


@pytest.mark.parametrize(
    ("way", "helped"), [*((way, "nothing") for way in HONEST), *(("spoiled at the end", helped) for helped in HELPED)]
)
async def test_what_the_same_call_computes_on_its_way_stays_a_secret(
    grading_root: Path,  # noqa: F811
    way: str,
    helped: str,
) -> None:
    source = HONEST[way].replace("MIXED", MIXED)
    head = "import collections, dataclasses, re\nfrom asked import ask\n\ndef test_it():\n"
    right = {count: [(k * k * 7919 + count) % 1000003 for k in range(count)] for count in HEADS}
    shape = HELPED[helped].format("ask({})")
    if helped == "a named tuple":
        right = {count: tuple(items) for count, items in right.items()}  # type: ignore[misc]
    problem = one_module(
        f"honest: {way}, {helped}", "asked", source, ("[:-1]", ""),
        head + "".join(
            f"    assert {shape.replace('{}', str(count))} == {value}\n" * (1 + (helped == "asked twice"))
            for count, value in right.items()),
    )  # fmt: skip
    async with grading_world(grading_root) as world:
        _, build = await world.build(problem)
        assert build.spec is not None and build.guess_bits > 40.0, build
