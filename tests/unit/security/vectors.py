"""Where test vectors that nobody here wrote lie: `$ROPEWALK_VECTORS`, or `../shared/vectors` beside the project."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_BESIDE = Path(__file__).parents[4] / "shared" / "vectors"


def vectors(name: str, *, without: str) -> Path:
    """The folder of one collection; the test skips where it is absent. They may not be handed on with the project.

    Args:
        without: what is tried of the same where they are absent, for the reason of the skip.
    """
    folder = Path(os.environ.get("ROPEWALK_VECTORS", _BESIDE)) / name
    if not folder.is_dir():
        pytest.skip(f"no test vectors of others at {folder} (set ROPEWALK_VECTORS); without them: {without}")
    return folder
