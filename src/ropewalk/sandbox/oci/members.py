"""What a layer holds while it is unpacked, and the description of it that `trees.describe` would give of the result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ropewalk.sandbox import trees
from ropewalk.sandbox.trees import Tree, TreeEntry


@dataclass
class LayerFile:
    """One file, however many names it has."""

    mode: int
    uid: int
    gid: int
    size: int
    sha256: str
    attributes: dict[str, bytes] = field(default_factory=dict)


@dataclass
class LayerFolder:
    """A folder."""

    mode: int
    uid: int = 0
    gid: int = 0
    mtime_ns: int = 0
    opaque: bool = False
    explicit: bool = False
    """Whether the archive says what it is, or it is only on the way to something."""
    attributes: dict[str, bytes] = field(default_factory=dict)


@dataclass
class LayerLink:
    """A symbolic link."""

    uid: int
    gid: int
    target: str


@dataclass
class LayerWhiteout:
    """Hides what lower layers hold in its place."""


LayerMember = LayerFile | LayerFolder | LayerLink | LayerWhiteout


def as_tree(members: Mapping[tuple[str, ...], LayerMember], *, skipped: int) -> Tree:
    """The description of all of them. A file's first name in walking order is the file, the others are links to it."""
    entries: list[TreeEntry] = []
    first: dict[int, str] = {}
    size = 0
    for parts in sorted(members):
        member, path = members[parts], trees.text("/".join(parts))
        if isinstance(member, LayerFolder):
            entry = TreeEntry(path=path, kind="directory", mode=member.mode, uid=member.uid, gid=member.gid,
                              opaque=member.opaque, attributes=trees.encoded(member.attributes))  # fmt: skip
        elif isinstance(member, LayerLink):
            entry = TreeEntry(path=path, kind="link", uid=member.uid, gid=member.gid, target=trees.text(member.target))
        elif isinstance(member, LayerWhiteout):
            entry = TreeEntry(path=path, kind="whiteout")
        elif id(member) in first:
            entry = TreeEntry(path=path, kind="hardlink", target=first[id(member)])
        else:
            first[id(member)] = path
            size += member.size
            entry = TreeEntry(path=path, kind="file", mode=member.mode, uid=member.uid, gid=member.gid,
                              size=member.size, sha256=member.sha256,
                              attributes=trees.encoded(member.attributes))  # fmt: skip
        entries.append(entry)
    return Tree(entries=tuple(sorted(entries, key=trees.order)), size=size, skipped=skipped)
