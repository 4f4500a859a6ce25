"""Commits and branches: immutable, verified, moved by swap."""

from __future__ import annotations

import concurrent.futures
from pathlib import Path

import pytest

from ropewalk.core.errors import CallerError, IntegrityError, UnavailableError
from ropewalk.lake.commits import BranchMovedError, Commits, diff
from ropewalk.lake.records import Change, Commit
from ropewalk.store.blobs import open_blobs
from ropewalk.store.layout import Layout


@pytest.fixture
def commits(layout: Layout) -> Commits:
    return Commits(layout.lake, open_blobs(layout.blobs), tenant="acme")


def commit(*parents: str, tenant: str = "acme", **entries: str) -> Commit:
    return Commit(parents=parents, entries=entries, records={}, message="m", tenant=tenant, created_s=1.0)


def test_a_branch_grows_and_its_log_goes_back(commits: Commits) -> None:
    assert commits.head() is None and list(commits.log()) == [] and commits.branches() == ()
    first = commits.append(commit(a="1"), expected=None)
    second = commits.append(commit(first, a="1", b="2"), expected=first)
    assert [one.digest for one in commits.log()] == [second, first]
    assert [one.digest for one in commits.log(count_max=1)] == [second]
    assert commits.load(f"commit:{first[:32]}").digest == first
    assert commits.branches() == ("main",)


def test_a_moved_branch_is_not_overwritten(commits: Commits) -> None:
    first = commits.append(commit(a="1"), expected=None)
    with pytest.raises(BranchMovedError, match="not at no commit"):
        commits.append(commit(b="2"), expected=None)
    second = commits.append(commit(first, b="2"), expected=first)
    with pytest.raises(BranchMovedError) as caught:
        commits.append(commit(first, c="3"), expected=first)
    assert isinstance(caught.value, UnavailableError) and caught.value.retry_after_s == 0.0
    assert commits.head() == commits.load(second)


def test_a_commit_must_follow_the_head_it_names(commits: Commits) -> None:
    first = commits.append(commit(a="1"), expected=None)
    for bad, expected in ((commit(b="2"), first), (commit(first), None), (commit("0" * 64), first)):
        with pytest.raises(CallerError, match="parents"):
            commits.append(bad, expected=expected)
    with pytest.raises(CallerError, match="zorg"):
        commits.append(commit(first, tenant="zorg"), expected=first)


def test_racing_writers_lose_no_commit(commits: Commits) -> None:
    def add(name: str) -> None:
        while True:
            head = commits.head()
            parents = (head.digest,) if head else ()
            entries = (head.entries if head else {}) | {name: name}
            try:
                commits.append(commit(*parents, **entries), expected=head.digest if head else None)
                return
            except BranchMovedError:
                continue

    names = [f"n{number}" for number in range(24)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(add, names))
    head = commits.head()
    assert head is not None and sorted(head.entries) == sorted(names)
    assert len(list(commits.log())) == 24


@pytest.mark.parametrize("branch", ["", "../x", "a/b", ".lock", "-a", "a b", "a" * 101, "a\n"])
def test_branches_have_plain_names(commits: Commits, branch: str) -> None:
    with pytest.raises(CallerError, match="branch"):
        commits.head(branch)


@pytest.mark.parametrize("id", ["", "commit:", "commit:xyz", "0" * 64, "commit:" + "0" * 32, "../" * 11])
def test_unknown_commits_are_the_callers_error(commits: Commits, id: str) -> None:
    with pytest.raises(CallerError):
        commits.load(id)


@pytest.mark.parametrize("text", ["", "garbage", "0" * 64])
def test_a_branch_to_nowhere_is_integrity(commits: Commits, layout: Layout, text: str) -> None:
    commits.append(commit(a="1"), expected=None)
    (layout.lake / "branches" / "acme" / "main").write_text(text)
    with pytest.raises(IntegrityError, match="main"):
        commits.head()


def test_another_tenants_commit_filed_here_is_integrity(commits: Commits, layout: Layout) -> None:
    other = Commits(layout.lake, open_blobs(layout.blobs), tenant="zorg")
    digest = other.append(commit(tenant="zorg", a="1"), expected=None)
    folder = layout.lake / "commits" / "acme"
    folder.mkdir(parents=True)
    (folder / digest[:32]).write_text(digest)
    with pytest.raises(IntegrityError, match="zorg"):
        commits.load(digest)


def test_a_place_that_cannot_be_written_moves_nothing(commits: Commits, layout: Layout) -> None:
    first = commits.append(commit(a="1"), expected=None)
    folder = layout.lake / "commits" / "acme"
    folder.rename(layout.lake / "commits" / "away")
    Path(folder).write_text("a file is in the way")
    with pytest.raises(UnavailableError, match="ROPEWALK_STATE"):
        commits.append(commit(first, b="2"), expected=first)
    assert (layout.lake / "branches" / "acme" / "main").read_text().strip() == first


def test_diff_names_what_came_went_and_changed() -> None:
    before, after = commit(same="1", gone="2", changed="3"), commit(same="1", changed="4", new="5")
    assert diff(before, after) == (
        Change(path="changed", before="3", after="4"),
        Change(path="gone", before="2", after=None),
        Change(path="new", before=None, after="5"),
    )
    assert len(diff(None, after)) == 3 and diff(after, after) == ()
