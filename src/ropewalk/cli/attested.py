"""Who vouches for which sources, said where they enter: the statement is signed in that name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ropewalk.cli.output import counted

if TYPE_CHECKING:
    from ropewalk.lake.records import IngestResult


def attestations(results: Iterable[IngestResult]) -> list[str]:
    """One line for each who vouches, as the raw records have it."""
    vouched: dict[tuple[str, str], int] = {}
    for result in results:
        for record in result.records:
            key = (record.attestation.claim.replace("_", " "), record.attestation.who)
            vouched[key] = vouched.get(key, 0) + 1
    return [
        f"Attested and signed: {claim} in {counted(files, 'file')}, says {who} (--attested-by names another)"
        for (claim, who), files in vouched.items()
    ]
