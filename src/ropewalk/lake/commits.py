"""Versions of the lake: commits are immutable records in the blob store, branches are files that move by swap."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from ropewalk.core.errors import CallerError, IntegrityError, UnavailableError
from ropewalk.core.records import canonical_bytes
from ropewalk.lake.files import read_text
from ropewalk.lake.records import Change, Commit
from ropewalk.machinery.files import locked, replace_whole
from ropewalk.security.tenants import check_tenant
from ropewalk.store.contract import Blobs
from ropewalk.store.records import read_record

_BRANCH = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_HEX = frozenset("0123456789abcdef")


class BranchMovedError(UnavailableError):
    """Somebody else moved the branch first: look at its new head and try again."""

    def __init__(self, branch: str, expected: str | None, found: str | None) -> None:
        super().__init__(
            f"Branch {branch!r} is at {found or 'no commit'}, not at {expected or 'no commit'}.",
            retry_after_s=0.0,
            next_step="read the head and commit on top of it.",
        )


class Commits:
    """One tenant's commits and branches. Safe for any number of threads and processes."""

    def __init__(self, root: Path, blobs: Blobs, *, tenant: str) -> None:
        """
        Args:
            root: the lake's folder.
        """
        self.tenant = check_tenant(tenant)
        self._index = root / "commits" / self.tenant
        self._branches = root / "branches" / self.tenant
        self._blobs = blobs

    def head(self, branch: str = "main") -> Commit | None:
        """The branch's newest commit, None before its first.

        Raises:
            CallerError: not a branch's name.
            IntegrityError: the branch points to what is no commit, or to a lost one.
        """
        digest = read_text(self._branch(branch))
        if digest is None:
            return None
        try:
            return self.load(digest)
        except CallerError as error:
            raise IntegrityError(f"Branch {branch!r} points to no commit: {error.message}") from error

    def branches(self) -> tuple[str, ...]:
        """Names, in order."""
        if not self._branches.is_dir():
            return ()
        return tuple(sorted(entry.name for entry in self._branches.iterdir() if _BRANCH.fullmatch(entry.name)))

    def append(
        self,
        commit: Commit,
        *,
        branch: str = "main",
        expected: str | None,
        before: Callable[[], None] | None = None,
    ) -> str:
        """Stores a commit and makes it the branch's head, if that still is `expected`. Returns its digest.

        Args:
            expected: digest of the head that the commit was made on; None for a branch's first.
            before: called once nothing but this can move the branch any more; where it raises, the branch stays.

        Raises:
            BranchMovedError: the head is another one.
            CallerError: the commit is another tenant's, or its parents do not hold `expected`.
        """
        path = self._branch(branch)
        if commit.tenant != self.tenant:
            raise CallerError(f"The commit is tenant {commit.tenant!r}'s, not {self.tenant!r}'s.")
        follows = expected in commit.parents if expected is not None else not commit.parents
        if not follows:
            raise CallerError("A commit's parents must hold the head that it is to follow.")
        digest = self._blobs.put(canonical_bytes(commit))
        # Before the branch moves, so that every commit that a branch ever had is found by its id.
        replace_whole(self._index / digest[:32], f"{digest}\n".encode(), parents=True)
        with locked(self._branches / ".lock", parents=True):
            found = read_text(path)
            if found != expected:
                raise BranchMovedError(branch, expected, found)
            if before is not None:
                before()
            replace_whole(path, f"{digest}\n".encode(), parents=True)
        return digest

    def load(self, id: str) -> Commit:
        """A commit by its digest or `commit:…` id, verified.

        Raises:
            CallerError: no such commit of this tenant.
            IntegrityError: its bytes were changed or lost.
        """
        prefix = id.removeprefix("commit:")
        if len(prefix) not in (32, 64) or not _HEX.issuperset(prefix):
            raise CallerError(f"{id[:80]!r} is neither the id of a commit (commit:…) nor its digest.")
        digest = read_text(self._index / prefix[:32])
        if digest is None or not digest.startswith(prefix):
            raise CallerError(f"No commit {id} of tenant {self.tenant}.", next_step="`ropewalk lake log` lists them.")
        if not self._blobs.exists(digest):
            raise IntegrityError(f"Commit {digest} is lost: the blob store does not hold it.")
        commit = read_record(self._blobs, digest, Commit, what=f"commit {digest}")
        if commit.tenant != self.tenant:
            raise IntegrityError(f"Commit {digest} is tenant {commit.tenant!r}'s, filed under {self.tenant!r}.")
        return commit

    def log(self, branch: str = "main", *, count_max: int = 1000) -> Iterator[Commit]:
        """From the head back along first parents, newest first."""
        commit = self.head(branch)
        for _ in range(count_max):
            if commit is None:
                return
            yield commit
            commit = self.load(commit.parents[0]) if commit.parents else None

    def _branch(self, branch: str) -> Path:
        if not _BRANCH.fullmatch(branch):
            raise CallerError(f"{branch[:80]!r} is not a branch's name.", next_step="use letters, digits, '-' and '_'.")
        return self._branches / branch


def diff(before: Commit | None, after: Commit) -> tuple[Change, ...]:
    """The paths whose raw file differs, in order; `before` None stands for an empty lake."""
    old = before.entries if before is not None else {}
    return tuple(
        Change(path=path, before=old.get(path), after=after.entries.get(path))
        for path in sorted({*old, *after.entries})
        if old.get(path) != after.entries.get(path)
    )
