"""One root, four branches, each telling the caller what to do next.

    RopewalkError
    ├── CallerError        fix the call                         exit code 2
    ├── DeniedError        not allowed; names the rule          exit code 6
    ├── UnavailableError   try again, or install what is missing exit code 7
    └── IntegrityError     stop: tampered with, or lost         exit code 5

A layer may subclass a branch where a caller needs to tell cases apart; it never adds a fifth branch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar


class RopewalkError(Exception):
    """What happened and where (`message`), and what to do about it (`next_step`)."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, next_step: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step

    def __str__(self) -> str:
        return f"{self.message} Next: {self.next_step}" if self.next_step else self.message


class CallerError(RopewalkError):
    """The call is wrong: bad input, an unknown name, a file that does not fit. Repeating it will not help."""

    exit_code = 2


class DeniedError(RopewalkError):
    """The call is understood and refused. `rule` names the rule that refused it."""

    exit_code = 6

    def __init__(self, message: str, *, rule: str, next_step: str = "") -> None:
        super().__init__(message, next_step=next_step)
        self.rule = rule


class UnavailableError(RopewalkError):
    """Something needed is missing, full or not answering. `retry_after_s` is None where waiting will not help."""

    exit_code = 7

    def __init__(self, message: str, *, retry_after_s: float | None = None, next_step: str = "") -> None:
        super().__init__(message, next_step=next_step)
        self.retry_after_s = retry_after_s


class IntegrityError(RopewalkError):
    """Bytes do not match their digest, signature or log: they were changed or lost. Do not go on."""

    exit_code = 5


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The errors inside groups of errors, which task groups raise and callers do not know; others as they are."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error
