"""What commands exit with, beside 0 and what their errors say (`core.errors`)."""

from __future__ import annotations

from typing import Final

from ropewalk.core.errors import CallerError, IntegrityError, UnavailableError

EXIT_USAGE: Final = CallerError.exit_code
EXIT_TAINTED: Final = 3
EXIT_INCOMPLETE: Final = 4
"""It ended, and not all that was asked for is there: refused groups, a chain with a gap, another replay, no anchor."""
EXIT_INTEGRITY: Final = IntegrityError.exit_code
EXIT_UNAVAILABLE: Final = UnavailableError.exit_code
EXIT_TIMEOUT: Final = 124
"""As timeout(1): the command in the sandbox took too long."""
EXIT_INTERRUPTED: Final = 130
"""As shells: 128 and the number of SIGINT."""
