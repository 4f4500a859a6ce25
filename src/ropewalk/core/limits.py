"""Every bound with its name and default. What a bound cuts says so; nothing is unbounded.

Units are in the names. A caller that needs another value passes it; nobody edits these at run time.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

# Commands in a sandbox
EXEC_TIMEOUT_S: Final = 60.0
OUTPUT_BYTES_MAX: Final = 1 * MIB
"""Kept of each of a command's two output streams; the rest is read, dropped and counted."""
FRAME_BYTES_MAX: Final = 1 * MIB
"""One frame of the guest agent's protocol."""
FILE_BYTES_MAX: Final = 64 * MIB
"""One file read from or written to a sandbox in one call."""
FILE_CALL_TIMEOUT_S: Final = 120.0
"""For one call's answer, and for each piece of an upload to be taken. Then the sandbox is ended."""
LIST_ENTRIES_MAX: Final = 100_000
"""Of one listing."""
LIST_BYTES_MAX: Final = 32 * MIB
"""Of all its entries together, as the guest agent sends them: the path and about a hundred bytes each."""
EXEC_START_WAIT_S: Final = 60.0
"""For the guest agent's word that a command runs. Then the sandbox is ended."""
EXEC_KILL_WAIT_S: Final = 15.0
"""After a command's time limit, for the guest agent's word that its process tree is gone; the agent gives up on its
own after 10 s. Then the sandbox is ended: what runs beside the agent may have starved it."""

# Sandboxes
SANDBOX_MEMORY_BYTES: Final = 512 * MIB
SANDBOX_DISK_BYTES: Final = 1 * GIB
SANDBOX_PROCESSES_MAX: Final = 256
SANDBOX_CPUS: Final = 1.0
SANDBOX_IDLE_TIMEOUT_S: Final = 900.0
SNAPSHOT_LAYERS_MAX: Final = 16
"""Layers of one root file system before a snapshot is flattened; overlayfs fails at some dozens."""

# Directory trees: layers, and the saved state of sandboxes
TREE_DEPTH_MAX: Final = 128
TREE_MEMBERS_MAX: Final = 500_000
TREE_BYTES_MAX: Final = 8 * GIB

# Images from registries and archives
IMAGE_LAYERS_MAX: Final = 127
"""As Docker has it; overlayfs takes more."""
IMAGE_BYTES_MAX: Final = 64 * GIB
"""Of all its packed layers together, as its manifest says."""
IMAGE_MANIFEST_BYTES_MAX: Final = 4 * MIB
"""Distribution specification: what a registry must take at least, and usually at most."""
IMAGE_CONFIG_BYTES_MAX: Final = 4 * MIB
IMAGE_TOKEN_BYTES_MAX: Final = 256 * KIB
"""An authorization service's answer."""
IMAGE_LAYERS_AT_ONCE: Final = 4
"""Fetched and unpacked side by side."""
IMAGE_STALL_TIMEOUT_S: Final = 20.0
"""Without a byte from a registry."""
IMAGE_ANSWER_TIMEOUT_S: Final = 60.0
"""From a request to a whole manifest or token, or to a layer's headers, redirects and logins included."""
IMAGE_RATE_BYTES_PER_S_MIN: Final = 1024
"""Of a layer's download; a slower one is given up."""
IMAGE_ATTEMPTS_MAX: Final = 5
"""Failures in a row, without a byte gained, before a registry is given up."""
IMAGE_BUILD_TIMEOUT_S: Final = 3600.0

# Bundles
WORK_ENTRIES_MAX: Final = 10_000
"""In an episode's work folder, with all below it, as far as it is looked at. What holds more is not taken."""
WORK_LISTING_BYTES_MAX: Final = 8 * MIB
"""Of the listing of these."""
BUNDLE_FILES_MAX: Final = 200
BUNDLE_FILE_BYTES_MAX: Final = 2 * MIB
BUNDLE_BYTES_MAX: Final = 8 * MIB
BUNDLE_PATH_BYTES_MAX: Final = 1_000
BUNDLE_NAME_BYTES_MAX: Final = 255
"""One component of a path."""

# Tools of an agent's episode, whose descriptions say so
TOOL_CALLS_MAX: Final = 16
"""In one answer of a model; what is past it is dropped."""
TOOL_OUTPUT_CHARS_MAX: Final = 16_000
"""Of one result; the middle of what is longer is cut, with a marker."""
TOOL_READ_LINES_MAX: Final = 400
TOOL_READ_BYTES_MAX: Final = 2 * MIB
"""Of a file, held at a time, and at most of the lines to show."""
TOOL_PATH_BYTES_MAX: Final = 4096
"""Linux has no longer ones."""
TOOL_EDIT_BYTES_MAX: Final = 1 * MIB
TOOL_SHELL_TIMEOUT_S: Final = 60.0
TOOL_SHELL_TIMEOUT_S_MAX: Final = 300.0
"""That a call may ask for."""

# Archives
ARCHIVE_MEMBERS_MAX: Final = 20_000
ARCHIVE_BYTES_MAX: Final = 256 * MIB
ARCHIVE_RATIO_MAX: Final = 200
"""Unpacked over packed size."""
ARCHIVE_RATIO_FREE_BYTES: Final = 4 * MIB
"""So much may come out of an archive at any ratio: a small file of zeros is no bomb."""
ARCHIVE_DEPTH_MAX: Final = 64
"""Components of one member's path."""
ARCHIVE_NAME_BYTES_MAX: Final = 255
"""One component of a member's path, as the file systems have it."""
ARCHIVE_EXTENDED_BYTES_MAX: Final = 64 * KIB
"""One extended header of a tar: a long name or a member's attributes."""
ARCHIVE_EXTENDED_KEYS_MAX: Final = 100
"""Of one member; each keeps all that hold for the whole archive too."""
ARCHIVE_DIRECTORY_BYTES_MAX: Final = 8 * MIB
"""A zip's list of its members."""
INNER_BYTES_MAX: Final = 64 * MIB
"""That a search of one file unpacks, of archives inside archives too; where there is more, the file is not trusted."""
INNER_MEMBERS_MAX: Final = 5_000
"""Likewise."""
DOWNLOAD_BYTES_MAX: Final = 64 * MIB
DOWNLOAD_TIMEOUT_S: Final = 30.0
"""Without a byte from the other side."""
DOWNLOAD_HEADERS_TIMEOUT_S: Final = 60.0
"""From a request to its answer's headers, redirects included, however steadily they drip."""
DOWNLOAD_TOTAL_TIMEOUT_S: Final = 600.0
"""Of one file, from the request on, however steadily it drips."""
DOWNLOAD_RATE_BYTES_PER_S_MIN: Final = 1024
"""Of its body."""
DOWNLOAD_ATTEMPTS_MAX: Final = 4

# Documents
PLAN_BYTES_MAX: Final = 1 * MIB
PROFILE_BYTES_MAX: Final = 64 * KIB
SECRET_BYTES_MAX: Final = 64 * KIB
"""A file that holds a key or a passphrase."""
ENDPOINT_ANSWER_BYTES_MAX: Final = 8 * MIB
"""One answer of a model's endpoint."""
JSON_DEPTH_MAX: Final = 32
JSON_BYTES_MAX: Final = 16 * MIB
STATEMENT_BYTES_MAX: Final = 64 * KIB - 1
"""One log entry (C2SP tlog-tiles: an entry bundle stores lengths as uint16)."""
