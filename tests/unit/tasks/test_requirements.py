from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from ropewalk.core.errors import CallerError
from ropewalk.lake.archives import ArchiveError, unpack
from ropewalk.sandbox.layers import LayerStore
from ropewalk.store.layout import Layout
from ropewalk.tasks import requirements
from ropewalk.tasks.requirements import check_plugins, read_requirements, resolve_wheels, site_folder, wheel_layer

SITE = "usr/local/lib/python3.11/site-packages"


@pytest.mark.parametrize("name", ["pytest-mock", "pytest mock", "", "a..b"])
def test_a_plugin_that_is_no_module_is_refused(name: str) -> None:
    check_plugins(["pytest_asyncio.plugin", "xdist"])
    with pytest.raises(CallerError, match="no name of a module") as refused:
        check_plugins([name])
    assert "--plugin" in (refused.value.next_step or "")


def make_wheel(
    folder: Path, name: str, version: str = "1.0", *, requires: tuple[str, ...] = (), tag: str = "py3-none-any",
    files: Mapping[str, bytes] | None = None,
) -> Path:  # fmt: skip
    """A wheel that pip takes."""
    info = f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    members = {
        **(files if files is not None else {f"{name}.py": f"value = {version!r}\n".encode()}),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}".encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: {tag}\n".encode(),
    }
    rows = [
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b'=').decode()},{len(content)}"
        for path, content in members.items()
    ]
    members[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""]).encode()
    path = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)
    return path


@pytest.fixture
def store(tmp_path: Path) -> LayerStore:
    return LayerStore(Layout(tmp_path / "state").ensure())


@pytest.fixture
def image(store: LayerStore) -> tuple[str, ...]:
    return (store.add_files({f"{SITE}/_pytest/__init__.py": b"", f"{SITE}/pytest/__init__.py": b""}).digest,)


@pytest.fixture
def wheelhouse(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    make_wheel(folder, "leafy", "2.0")
    make_wheel(folder, "branchy", requires=("leafy>=1",))
    return folder


def test_wheels_and_what_they_require_become_one_layer(
    store: LayerStore, image: tuple[str, ...], wheelhouse: Path
) -> None:
    made = wheel_layer(["branchy"], store, image=image, unpack=unpack, wheelhouse=wheelhouse)
    assert [(wheel.name, wheel.version) for wheel in made.wheels] == [("branchy", "1.0"), ("leafy", "2.0")]
    assert made.wheels[1].sha256 == hashlib.sha256((wheelhouse / made.wheels[1].filename).read_bytes()).hexdigest()
    assert made.modules == ("branchy", "leafy")
    root = store.path(made.layer)
    assert (root / SITE / "leafy.py").read_bytes() == b"value = '2.0'\n"
    assert (root / SITE / "leafy-2.0.dist-info" / "METADATA").exists()
    again = wheel_layer(["branchy"], store, image=image, unpack=unpack, wheelhouse=wheelhouse)
    assert again == made


def test_no_requirements_no_layer(store: LayerStore) -> None:
    made = wheel_layer([], store, image=(), unpack=unpack)
    assert (made.layer, made.layers, made.wheels) == ("", (), ())


@pytest.fixture
def without_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheels of a wheelhouse as they are: pip's part is tested above."""

    def resolve(names: object, destination: Path, *, wheelhouse: Path) -> tuple[Path, ...]:
        return tuple(sorted(wheelhouse.glob("*.whl")))

    monkeypatch.setattr(requirements, "resolve_wheels", resolve)


@pytest.mark.usefixtures("without_pip")
def test_scripts_data_and_startup_files_stay_out(store: LayerStore, image: tuple[str, ...], tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    make_wheel(
        folder, "mixed",
        files={
            "mixed.py": b"", "mixed.pth": b"import os\n", "mixed-1.0.data/scripts/mixed": b"#!python\n",
            "mixed-1.0.data/purelib/extra.py": b"", "mixed-1.0.data/data/etc/x": b"", "mixed.pyc": b"",
        },
    )  # fmt: skip
    made = wheel_layer(["mixed"], store, image=image, unpack=unpack, wheelhouse=folder)
    site = store.path(made.layer) / SITE
    assert {path.name for path in site.iterdir()} == {"mixed.py", "extra.py", "mixed-1.0.dist-info"}


def test_what_the_wheelhouse_lacks_is_one_clear_error(wheelhouse: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(CallerError, match="pip found no wheels for rooty") as caught:
        resolve_wheels(["rooty"], tmp_path / "out", wheelhouse=wheelhouse)
    assert "No matching distribution" in caught.value.message


@pytest.mark.usefixtures("without_pip")
def test_a_wheel_for_another_machine_is_refused(store: LayerStore, image: tuple[str, ...], tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    make_wheel(folder, "native", tag="cp39-cp39-win_amd64")
    with pytest.raises(CallerError, match="native"):
        wheel_layer(["native"], store, image=image, unpack=unpack, wheelhouse=folder)


@pytest.mark.usefixtures("without_pip")
def test_two_wheels_with_the_same_file_are_refused(store: LayerStore, image: tuple[str, ...], tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    make_wheel(folder, "one", files={"shared.py": b"1"})
    make_wheel(folder, "two", files={"shared.py": b"2"})
    with pytest.raises(CallerError, match=r"both hold shared\.py"):
        wheel_layer(["one", "two"], store, image=image, unpack=unpack, wheelhouse=folder)


@pytest.mark.usefixtures("without_pip")
def test_a_wheel_that_leaves_its_folder_is_refused(store: LayerStore, image: tuple[str, ...], tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    make_wheel(folder, "climber", files={"../climber.py": b""})
    with pytest.raises((ArchiveError, CallerError)):
        wheel_layer(["climber"], store, image=image, unpack=unpack, wheelhouse=folder)


def test_missing_wheelhouse(tmp_path: Path) -> None:
    with pytest.raises(CallerError, match="not a folder of wheels"):
        resolve_wheels(["x"], tmp_path, wheelhouse=tmp_path / "none")


def test_an_image_without_pytest_is_refused(store: LayerStore) -> None:
    bare = store.add_files({"usr/bin/x": b""}).digest
    with pytest.raises(CallerError, match="has no pytest"):
        site_folder(store, [bare])


def test_reading_requirements(tmp_path: Path) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text("# tests\nleafy>=1  # why\n\nbranchy[extra]==1.0 ; python_version > '3'\n")
    assert read_requirements(file) == ("leafy>=1", "branchy[extra]==1.0 ; python_version > '3'")


@pytest.mark.parametrize(
    "line", ["-r other.txt", "--index-url https://x", "./local", "pkg @ https://example.org/p.whl", "a b"]
)
def test_lines_that_are_no_requirements_name_their_place(line: str, tmp_path: Path) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text(f"fine\n{line}\n")
    with pytest.raises(CallerError, match="line 2"):
        read_requirements(file)


def test_missing_requirements_file(tmp_path: Path) -> None:
    with pytest.raises(CallerError, match="cannot be read"):
        read_requirements(tmp_path / "none.txt")
