"""`ropewalk lake`: the raw zone and its commits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ropewalk.cli.apps import HERE, Place, command, noun
from ropewalk.cli.attested import attestations
from ropewalk.cli.board import Board
from ropewalk.cli.opening import custody
from ropewalk.cli.output import counted, print_json, print_table, say
from ropewalk.core.clock import utc
from ropewalk.core.errors import CallerError

if TYPE_CHECKING:
    from ropewalk.app.custody import Custody

app = noun("lake", "The raw zone, where sources enter with their licence and are never changed, and its commits.")


@command(
    app,
    "ingest",
    examples=[
        "ropewalk lake ingest pypi:toolz==1.0.0",
        "ropewalk lake ingest pypi:more-itertools --latest 3",
        "ropewalk lake ingest ./mypackage --licence Apache-2.0 --attested-by 'data office, example.org'",
    ],
)
def ingest(
    *sources: str,
    version: Annotated[list[str] | None, Parameter(name="--version")] = None,
    latest: int | None = None,
    licence: str | None = None,
    override_licence: bool = False,
    attested_by: str | None = None,
    data_class: str | None = None,
    lower_data_class: bool = False,
    message: str = "",
    json: bool = False,
    place: Place = HERE,
) -> int:
    """Brings sources into the raw zone, commits them and signs who vouches for them.

    Args:
        sources: pypi:NAME==VERSION, pypi:NAME with --version or --latest, a directory, or an archive.
        version: Release of pypi:NAME; may be repeated.
        latest: So many of the newest releases of pypi:NAME.
        licence: SPDX expression, where the source states none. Another one than it states is refused.
        override_licence: Allow a licence that the source does not state.
        attested_by: Role or organisation that states that there is no human data in it. Default: whom the profile
            names.
        data_class: Which drivers, endpoints and exports it may meet: public, internal or restricted. Default: that of
            the stored file, public for a new one.
        lower_data_class: Allow a class that is less restricted than the stored file's.
        message: Of the commit.
        json: Print JSON.
    """
    from ropewalk.lake.ingest import Terms
    from ropewalk.security.data_classes import data_class as known_class

    if not sources:
        raise CallerError("No source was named.", next_step="give pypi:NAME==VERSION, a directory or an archive.")
    if override_licence and licence is None:
        raise CallerError("No licence was named.", next_step="say with --licence which one holds.")
    if lower_data_class and data_class is None:
        raise CallerError("No data class was named.", next_step="say with --data-class to which one to lower.")
    named = known_class(data_class).name if data_class is not None else None
    results = []
    with custody(place) as kept, Board(quiet=json) as board:
        who = kept.attested_by if attested_by is None else attested_by
        terms = Terms(
            attested_by=who, licence=licence, overrides_licence=override_licence, data_class=named,
            lowers=lower_data_class,
        )  # fmt: skip
        board.begin("Ingest", total=len(sources))
        for source in sources:
            versions = list(version or ())
            if latest is not None and source.startswith("pypi:"):
                kept.profile.allow_source("pypi")
                releases = kept.lake.list_releases(source.removeprefix("pypi:"))
                versions += [release.version for release in releases[-latest:]]
            results.append(kept.ingest(source, terms=terms, versions=versions, message=message))
            board.advance(f"{source}: {counted(len(results[-1].stored), 'new file')}")
    if json:
        print_json(results)
        return 0
    for result in results:
        for record in result.records:
            new = "new" if record.sha256 in result.stored else "was there"
            say(f"{record.id}  {record.name}  {record.licence.expression}  {record.bytes} bytes  ({new})")
    for line in attestations(results):
        say(line)
    say(f"{results[-1].commit.id} on main holds {counted(len(results[-1].commit.entries), 'file')}.")
    return 0


@command(app, "log", examples=["ropewalk lake log", "ropewalk lake log --json"])
def log(branch: str = "main", *, count: int = 50, json: bool = False, place: Place = HERE) -> int:
    """Lists the commits of a branch, newest first.

    Args:
        branch: Its name.
        count: At most so many.
        json: Print JSON.
    """
    with custody(place) as kept:
        commits = kept.lake.log(branch, tenant=kept.tenant, count_max=count)
    if json:
        print_json([{"id": commit.id, "commit": commit} for commit in commits])
        return 0
    print_table(
        ("commit", "when", ">files", "message"),
        ((each.id, utc(each.created_s), len(each.entries), each.message) for each in commits),
        empty=f"The branch {branch} has no commit. Next: ropewalk lake ingest SOURCE",
    )
    return 0


@command(app, "ls", examples=["ropewalk lake ls", "ropewalk lake ls --json"])
def ls(*, json: bool = False, place: Place = HERE) -> int:
    """Lists all raw files with their licences.

    Args:
        json: Print JSON.
    """
    with custody(place) as kept:
        records = kept.lake.records(tenant=kept.tenant)
    if json:
        print_json([{"id": record.id, "record": record} for record in records])
        return 0
    print_table(
        ("raw file", "name", ">bytes", "licence", "from", "entered", "attested by"),
        (
            (
                r.id,
                r.name,
                r.bytes,
                r.licence.expression,
                r.source.partition(":")[0],
                utc(r.retrieved_s),
                r.attestation.who,
            )
            for r in sorted(records, key=lambda each: (each.name, each.retrieved_s))
        ),
        empty="The raw zone is empty. Next: ropewalk lake ingest SOURCE",
    )
    return 0


@command(app, "cp", examples=["ropewalk lake cp raw:0123… .", "ropewalk lake cp raw:0123… package.tar.gz"])
def cp(raw: str, target: Path, *, json: bool = False, place: Place = HERE) -> int:
    """Copies a raw file out of the lake, compared with its digest on the way, where its data class allows that.

    Args:
        raw: Its id or sha256.
        target: A new file, or a folder, which then gets it under its own name.
        json: Print JSON.
    """
    from ropewalk.app.exporting import export_raw

    with custody(place) as kept:
        record, path = export_raw(kept, raw, target)
    if json:
        print_json({"path": str(path), "record": record})
        return 0
    say(f"{path}  {record.bytes} bytes  {record.licence.expression}")
    return 0


@command(app, "diff", examples=["ropewalk lake diff commit:0123… commit:4567…", "ropewalk lake diff commit:0123…"])
def diff(before: str, after: str | None = None, *, json: bool = False, place: Place = HERE) -> int:
    """Lists the files that differ between two commits.

    Args:
        before: Id of a commit; empty: an empty lake.
        after: Id of another. Default: the newest one of main.
        json: Print JSON.
    """
    with custody(place) as kept:
        changes = kept.lake.diff(before or None, after or _newest(kept), tenant=kept.tenant)
    if json:
        print_json(list(changes))
        return 0
    print_table(
        ("path", "before", "after"),
        ((each.path, (each.before or "")[:16], (each.after or "")[:16]) for each in changes),
        empty="Nothing differs.",
    )
    return 0


@command(app, "verify", examples=["ropewalk lake verify", "ropewalk lake verify commit:0123… --json"])
def verify(commit: str | None = None, *, json: bool = False, place: Place = HERE) -> int:
    """Reads every raw file and record of a commit and compares it with its digest. Exits with 5 where one differs.

    Args:
        commit: Its id. Default: the newest one of main.
        json: Print JSON.
    """
    with custody(place) as kept:
        found = kept.lake.verify(commit or _newest(kept), tenant=kept.tenant)
    print_json(found) if json else say(
        f"{found.commit}: {counted(found.files, 'file')}, {found.bytes} bytes, all as they came in."
    )
    return 0


def _newest(kept: Custody) -> str:
    head = kept.lake.head(tenant=kept.tenant)
    if head is None:
        raise CallerError("The lake is empty.", next_step="ropewalk lake ingest SOURCE")
    return head.id
