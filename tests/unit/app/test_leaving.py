"""What may leave the state directory, by the data class of what it was made of; and what enters with a class."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from ropewalk.app import reporting
from ropewalk.app.building import Sources
from ropewalk.app.custody import Custody
from ropewalk.app.exporting import export_raw, exported, write_export
from ropewalk.app.images import ImageWork
from ropewalk.app.machines import Machines
from ropewalk.app.reporting import loaded_run, write_report
from ropewalk.core.errors import CallerError, DeniedError, UnavailableError
from ropewalk.lake.ingest import Terms
from ropewalk.rollout.begin import begin_run
from ropewalk.rollout.plan import Plan, PolicyName, RunPlan, SourcePlan
from ropewalk.rollout.plan_file import plan_from_settings
from ropewalk.sandbox.images import ImageStore
from tests.integration import sample_packages
from tests.unit.app.samples import report
from tests.unit.rollout.worlds import Durable


@pytest.fixture
def custody(tmp_path: Path) -> Iterator[Custody]:
    with Custody.open(state=tmp_path / "state") as opened:
        yield opened


def run_of(custody: Custody, *classes: str) -> str:
    """A run of one task of each class; nothing is played."""
    durable = Durable(Path(), blobs=custody.blobs)  # type: ignore[arg-type]
    plan = Plan(run=RunPlan(policies=(PolicyName.NOOP,), group=1))
    tasks = [durable.task(name, data_class=name) for name in classes]
    return begin_run(durable.world(), custody.journal, plan, tasks)


@pytest.fixture
def rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "report_of", lambda *args, **kwargs: report())


@pytest.mark.usefixtures("rendered")
@pytest.mark.parametrize("classes", [("restricted",), ("public", "restricted"), ("internal", "unheard-of")])
def test_a_report_does_not_leave_where_a_class_forbids_it(
    custody: Custody, tmp_path: Path, classes: tuple[str, ...]
) -> None:
    run = run_of(custody, *classes)
    (custody.layout.runs / "door").symlink_to(tmp_path)
    (tmp_path / "way-in").symlink_to(custody.layout.runs)
    inside = custody.layout.runs / "x.html"
    upwards = inside / ".." / ".." / ".." / "x.html"
    for outside in (tmp_path / "x.html", custody.layout.runs / "door" / "x.html", upwards):
        with pytest.raises(DeniedError) as denied:
            write_report(custody, loaded_run(custody, run), outside)
        assert denied.value.rule == f"data_class:{classes[-1]}:export" and "report.html" in denied.value.next_step
    assert not (tmp_path / "x.html").exists()
    for allowed in (None, inside, tmp_path / "way-in" / "y.html"):
        assert write_report(custody, loaded_run(custody, run), allowed).read_text().startswith("<!")


@pytest.mark.usefixtures("rendered")
def test_a_report_leaves_where_its_classes_allow_it(custody: Custody, tmp_path: Path) -> None:
    run = run_of(custody, "public", "internal")
    assert write_report(custody, loaded_run(custody, run), tmp_path / "new" / "x.html").is_file()


@pytest.mark.parametrize("format", ["jsonl", "atif"])
def test_exports_ask_the_same_question(custody: Custody, tmp_path: Path, format: str) -> None:
    with pytest.raises(DeniedError):
        write_export(custody, run_of(custody, "public", "restricted"), format, tmp_path / "x")  # type: ignore[arg-type]
    assert not (tmp_path / "x").exists()
    assert list(exported(custody, run_of(custody, "internal"), format)) == []  # type: ignore[arg-type]


@pytest.mark.parametrize(("format", "said"), [("jsonl", "name a file"), ("atif", "name a folder")])
def test_an_export_says_what_it_is_written_as(custody: Custody, tmp_path: Path, format: str, said: str) -> None:
    there = tmp_path / "there"
    there.mkdir() if format == "jsonl" else there.touch()
    with pytest.raises(CallerError) as refused:
        write_export(custody, run_of(custody, "public"), format, there)  # type: ignore[arg-type]
    assert said in refused.value.next_step


@pytest.mark.usefixtures("rendered")
def test_a_report_that_does_not_fit_leaves_the_one_before(custody: Custody, tmp_path: Path) -> None:
    run = run_of(custody, "public")
    target = tmp_path / "out" / "x.html"
    target.parent.mkdir()
    target.write_text("the one before")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(UnavailableError):
            write_report(custody, loaded_run(custody, run), target)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert target.read_text() == "the one before" and list(target.parent.iterdir()) == [target]


def test_sources_of_a_plan_enter_with_its_class_and_keep_it(custody: Custody, tmp_path: Path) -> None:
    source = str(sample_packages.archive(tmp_path, "1.0.0"))

    def class_with(given: str | None) -> str:
        gathered = Sources(custody).ingest(SourcePlan(uris=(source,), data_class=given), lambda uri, result: None)
        ((release,),) = gathered.releases.values()
        return release.data_class

    assert [class_with(given) for given in (None, "internal", "restricted", None)] == [
        "public", "internal", "restricted", "restricted",
    ]  # fmt: skip
    with pytest.raises(DeniedError):
        class_with("internal")
    with pytest.raises(CallerError, match="secret"):
        plan_from_settings({"source.data_class": "secret"})


@pytest.mark.parametrize(("data_class", "leaves"), [("public", True), ("internal", True), ("restricted", False)])
def test_a_raw_file_leaves_where_its_class_allows_it(
    custody: Custody, tmp_path: Path, data_class: str, leaves: bool
) -> None:
    source = sample_packages.archive(tmp_path, "1.0.0")
    terms = Terms(attested_by="test bench", data_class=data_class)
    (record,) = custody.ingest(str(source), terms=terms).records
    out = tmp_path / "out"
    out.mkdir()
    if leaves:
        assert export_raw(custody, record.id, out) == (record, out / record.name)
        assert (out / record.name).read_bytes() == source.read_bytes()
        with pytest.raises(CallerError, match="there already"):
            export_raw(custody, record.id, out)
    else:
        with pytest.raises(DeniedError) as denied:
            export_raw(custody, record.id, out / "x")
        assert denied.value.rule == "data_class:restricted:export" and not list(out.iterdir())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root" / "bin").mkdir(parents=True)
    (tmp_path / "root" / "bin" / "sh").write_text("#!")
    return tmp_path / "root"


def test_an_image_keeps_its_class(custody: Custody, root: Path) -> None:
    images = ImageStore(custody.layout)
    assert images.from_directory(root).data_class == "public"
    image = images.from_directory(root, data_class="internal")
    assert images.from_directory(root, data_class="restricted").digest == image.digest
    assert images.from_directory(root).data_class == images.get(image.digest).data_class == "restricted"
    with pytest.raises(DeniedError) as denied:
        images.from_directory(root, data_class="public")
    assert denied.value.rule == "data_class" and image.digest[:16] in str(denied.value)
    assert [each.data_class for each in images.records()] == ["restricted"]
    images.remove(image.digest)
    images.remove(image.digest)
    assert not list(images.records())
    assert images.from_directory(root, data_class="public").data_class == "public"


async def test_a_sandbox_is_of_the_class_of_its_image_at_least(custody: Custody, root: Path) -> None:
    machines = Machines(custody)
    internal = machines.images.from_directory(root, data_class="internal").digest
    for given, spec_class in ((None, "internal"), ("public", "internal"), ("restricted", "restricted")):
        assert (await machines.spec(internal, data_class=given)).data_class == spec_class
    with pytest.raises(CallerError, match="Unknown data class"):
        await ImageWork(machines).import_file(root, data_class="secret")
    taken = await ImageWork(machines).import_file(root, data_class="restricted")
    assert (await machines.spec(taken, data_class="public")).data_class == "restricted"
    assert machines.images.get(internal).data_class == "restricted", "what the directory holds is, from now on"
    machines.driver_name = "elsewhere"
    with pytest.raises(DeniedError) as denied:
        await machines.spec(internal)
    assert denied.value.rule == "data_class:restricted:driver"
