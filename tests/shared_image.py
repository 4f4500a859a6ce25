"""The default image built once for all tests, sessions and workers, and lent to any state directory.

Building it takes some 8 s of CPU. It is kept below `$ROPEWALK_TEST_CACHE`, or else a folder of this user's in the
temporary directory, under a key of all that decides its content; whoever comes first builds it, under a file lock.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
from pathlib import Path

from ropewalk.core.errors import DeniedError
from ropewalk.machinery.files import locked
from ropewalk.sandbox import default_image, images, layers, trees
from ropewalk.sandbox.images import ImageRecord, ImageStore
from ropewalk.store.layout import Layout

CACHE_VARIABLE = "ROPEWALK_TEST_CACHE"


def lend_default_image(layout: Layout) -> ImageRecord:
    """Makes the default image known to a state directory, by a link to the shared layer: `ImageStore.default` there
    then builds nothing. Nobody may write to the layer, which nobody does to layers anyway.

    Raises:
        UnavailableError: the image cannot be built here.
    """
    return _lend(layout.ensure(), _cache(os.geteuid()))


def lend_default_image_to(layout: Layout, uid: int) -> ImageRecord:
    """The same by root for another user, to whom a copy of the layer belongs (made once, too)."""
    cache = _cache(uid)
    with locked(cache.root / "lock"):
        if not (cache.root / "whole").exists():
            own = _cache(os.geteuid())
            for name in ("images", "layers"):
                shutil.rmtree(cache.root / name, ignore_errors=True)
            record = _built(own)
            shutil.copytree(own.images, cache.images)
            for layer in record.layers:
                shutil.copytree(own.layers / layer, cache.layers / layer, symlinks=True)
            for path in (cache.root.parent, cache.root, *cache.root.rglob("*")):
                os.chown(path, uid, uid, follow_symlinks=False)
            (cache.root / "whole").touch()
    return _lend(layout.ensure(), cache)


def _lend(layout: Layout, cache: Layout) -> ImageRecord:
    record = _built(cache)
    for layer in record.layers:
        if not (layout.layers / layer).exists():
            try:
                (layout.layers / layer).symlink_to(cache.layers / layer, target_is_directory=True)
            except FileExistsError:
                pass  # another worker was faster
    for source in cache.images.iterdir():
        if source.is_file() and not source.name.startswith("."):
            fresh = layout.images / f".{source.name}.{os.getpid()}"
            shutil.copy(source, fresh)
            fresh.replace(layout.images / source.name)
    return record


def _built(cache: Layout) -> ImageRecord:
    with locked(cache.root / "lock"):
        return ImageStore(cache).default()


def _cache(uid: int) -> Layout:
    """The cache for what is installed and written now. Old ones stay until the temporary directory is emptied."""
    named = os.environ.get(CACHE_VARIABLE)
    home = Path(f"{named or Path(tempfile.gettempdir(), 'ropewalk-test-cache')}-{uid}")
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = home.stat(follow_symlinks=False)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid not in (uid, os.geteuid()) or found.st_mode & 0o022:
        raise DeniedError(f"{home} is not a folder of this user's alone.", rule="files")
    sources = [Path(str(module.__file__)).read_bytes() for module in (default_image, images, layers, trees)]
    key = hashlib.sha256(b"\0".join((default_image.key().encode(), *sources))).hexdigest()[:16]
    return Layout(home / key).ensure()
