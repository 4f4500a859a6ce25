"""What enters the lake and what is signed of it: neither a kill nor another ingest comes between."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from ropewalk.app.custody import Custody
from ropewalk.core.errors import IntegrityError, UnavailableError
from ropewalk.lake import commits
from ropewalk.lake.ingest import Terms
from ropewalk.machinery.files import locked, replace_whole
from ropewalk.provenance.statement import StatementDraft
from ropewalk.provenance.verify import Anchors
from tests.integration import sample_packages

TERMS = Terms(attested_by="test bench")


class Crash(BaseException):
    """The process was killed here."""


@contextmanager
def opened(folder: Path) -> Iterator[Custody]:
    with Custody.open(state=folder / "state") as custody:
        yield custody


def source(folder: Path, version: str) -> str:
    return str(sample_packages.archive(folder, version))


def crash_at(place: str, custody: Custody, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills before statements are signed, after it, or after the branch moved."""
    plain = custody.recorder.record

    def record(drafts: tuple[StatementDraft, ...]) -> None:
        if place == "before signing":
            raise Crash
        plain(drafts)

    def move(path: Path, data: bytes, **options: Any) -> None:
        if path.name == "main" and place == "before moving":
            raise Crash
        replace_whole(path, data, **options)
        if path.name == "main" and place == "after moving":
            raise Crash

    monkeypatch.setattr(custody.recorder, "record", record)
    monkeypatch.setattr(commits, "replace_whole", move)


def problems(custody: Custody) -> list[str]:
    return [finding.message for finding in custody.verify(None, Anchors()).findings]


@pytest.mark.parametrize("place", ["before signing", "before moving", "after moving"])
@pytest.mark.parametrize("earlier", [False, True])
def test_a_kill_leaves_nothing_that_a_later_ingest_cannot_sign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, earlier: bool
) -> None:
    one, two, three = (source(tmp_path, version) for version in ("1.0.0", "1.1.0", "1.2.0"))
    with opened(tmp_path) as custody, monkeypatch.context() as killing:
        if earlier:
            custody.ingest(three, terms=TERMS)
        crash_at(place, custody, killing)
        with pytest.raises(Crash):
            custody.ingest(one, terms=TERMS)
    with opened(tmp_path) as custody:
        custody.ingest(two, terms=TERMS)
        assert problems(custody) == []
        raw = custody.ingest(one, terms=TERMS).records[0]
        assert problems(custody) == []
        assert custody.trace(raw.id).complete


def test_what_two_ingest_at_once_is_signed_in_the_order_of_the_lake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one goes as far as it can while the first one signs."""
    one, two = source(tmp_path, "1.0.0"), source(tmp_path, "1.1.0")
    got_far = threading.Event()

    @contextmanager
    def watched(path: Path, **options: Any) -> Iterator[None]:
        with ExitStack() as held:
            try:
                held.enter_context(locked(path, **options, held=UnavailableError("taken")))
            except UnavailableError:
                got_far.set()
                held.enter_context(locked(path, **options))
            yield

    def ingest_other() -> None:
        with opened(tmp_path) as custody:
            custody.ingest(two, terms=TERMS)
        got_far.set()

    other = threading.Thread(target=ingest_other)
    with opened(tmp_path) as custody:
        plain = custody.recorder.record

        def record(drafts: tuple[StatementDraft, ...]) -> tuple[str, ...]:
            if not other.ident:
                other.start()
                assert got_far.wait(30)
            return plain(drafts)

        monkeypatch.setattr(custody.recorder, "record", record)
        monkeypatch.setattr(commits, "locked", watched)
        custody.ingest(one, terms=TERMS)
        other.join(30)
        assert problems(custody) == []
        assert len(custody.lake.head(tenant=custody.tenant).entries) == 2  # type: ignore[union-attr]


@pytest.mark.parametrize("order", [lambda paths: paths, lambda paths: paths[::-1]])
def test_no_version_is_signed_over_files_that_nobody_vouches_for(
    tmp_path: Path, order: Callable[[list[str]], list[str]]
) -> None:
    """Whoever brought them in did not sign, or only wrote the lake's folder: what is asked for by name is signed."""
    paths = [source(tmp_path, version) for version in ("1.0.0", "1.1.0")]
    with opened(tmp_path) as custody:
        for path in paths:
            custody.lake.ingest(path, tenant=custody.tenant, terms=TERMS)
        with pytest.raises(IntegrityError, match="2 raw files that no statement") as caught:
            custody.ingest(source(tmp_path, "1.2.0"), terms=TERMS)
        assert "again" in caught.value.next_step
        first, last = order(paths)
        with pytest.raises(IntegrityError, match="1 raw files"):
            custody.ingest(first, terms=TERMS)
        custody.ingest(last, terms=TERMS)
        custody.ingest(source(tmp_path, "1.2.0"), terms=TERMS)
        assert problems(custody) == []
