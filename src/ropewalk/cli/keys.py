"""`ropewalk keys`: signing keys."""

from __future__ import annotations

import sys
from pathlib import Path

from ropewalk.cli.apps import HERE, Place, command, noun
from ropewalk.cli.opening import custody
from ropewalk.cli.output import counted, print_json, print_table, say

app = noun("keys", "Signing keys: one Ed25519 and one ML-DSA-65 key that sign together.")


@command(app, "init", examples=["ropewalk keys init", "ropewalk keys init --passphrase env:ROPEWALK_PASSPHRASE"])
def init(*, passphrase: str = "", json: bool = False, place: Place = HERE) -> int:
    """Makes the first key pair; shows the active one where there is one already.

    Where that one is not encrypted and a passphrase is given, nothing changes and the command says so (exit code 2).

    Args:
        passphrase: Reference (env:NAME or file:PATH) to what encrypts the private keys.
        json: Print JSON.
    """
    with custody(place, passphrase=passphrase) as kept:
        pair = kept.keys.create()
        by = kept.keys.encrypted_by()[pair.id]
        if json:
            plain = {"pair": pair.id, "keyids": dict(pair.keyids), "created_s": pair.created_s, "encrypted_by": by}
            print_json(plain)
            return 0
        say(f"Active key pair: {pair.id}, {f'encrypted by {by}' if by else 'not encrypted'}")
        for algorithm, keyid in pair.keyids.items():
            say(f"  {algorithm:<10} {keyid}")
        say("Next: `ropewalk keys export FILE`, and keep that file on another machine: it is what `verify` believes.")
    return 0


@command(
    app, "export", examples=["ropewalk keys export /mnt/usb/trust-root.json", "ropewalk keys export > trust-root.json"]
)
def export(file: Path | None = None, *, json: bool = False, place: Place = HERE) -> int:
    """Writes the public half of all key pairs: the file to pin.

    Args:
        file: Where to. Default: standard output.
        json: With a file: print its sha256 and the pairs in it as JSON.
    """
    with custody(place) as kept:
        root = kept.keys.trust_root()
        if file is None:
            sys.stdout.write(root.to_bytes().decode())
        else:
            from ropewalk.security.trust import export_trust_root

            export_trust_root(root, file)
            if json:
                print_json({"file": str(file), "sha256": root.digest, "pairs": [pair.id for pair in root.pairs]})
                return 0
            say(f"{counted(len(root.pairs), 'key pair')} in {file}, sha256 {root.digest}")
    return 0


@command(
    app, "rotate", examples=["ropewalk keys rotate", "ropewalk keys rotate --passphrase file:/run/secrets/ropewalk"]
)
def rotate(*, passphrase: str = "", json: bool = False, place: Place = HERE) -> int:
    """Makes a new key pair that signs from the log's next entry on. Earlier entries stay trusted.

    Args:
        passphrase: Reference (env:NAME or file:PATH) to what encrypts the new private keys. Default: what encrypts
            those before.
        json: Print JSON.
    """
    with custody(place, passphrase=passphrase) as kept:
        pair = kept.rotate_keys()
        by = kept.keys.encrypted_by()[pair.id]
        if json:
            print_json({"pair": pair.id, "from_index": pair.from_index, "encrypted_by": by})
        else:
            how = f"encrypted by {by}" if by else "not encrypted"
            say(f"Active key pair: {pair.id}, from entry {pair.from_index} on, {how}.")
            say("Next: export and pin again; who pinned before does not know this pair.")
    return 0


@command(
    app,
    "revoke",
    examples=[
        "ropewalk keys revoke keypair:0123… --reason 'laptop stolen'",
        "ropewalk keys revoke ID --reason … --from-index 120",
    ],
)
def revoke(pair: str, *, reason: str, from_index: int | None = None, json: bool = False, place: Place = HERE) -> int:
    """Ends the trust in a key pair. What it signed from the given entry on no longer verifies.

    Args:
        pair: The pair's id, from `ropewalk keys ls`.
        reason: Why; it is published with the trust root.
        from_index: First log entry that is not believed any more. Default: the next one.
        json: Print JSON.
    """
    with custody(place) as kept:
        revoked = kept.revoke_keys(pair, reason=reason, from_index=from_index)
        first = revoked.revoked.from_index if revoked.revoked else None
        if json:
            print_json({"pair": revoked.id, "revoked_from_index": first})
        else:
            say(f"{revoked.id} is revoked from entry {first} on.")
            say("Next: export and pin again; who pinned before still believes it.")
    return 0


@command(app, "ls", examples=["ropewalk keys ls", "ropewalk keys ls --json"])
def ls(*, json: bool = False, place: Place = HERE) -> int:
    """Lists all key pairs, oldest first.

    Args:
        json: Print JSON.
    """
    with custody(place) as kept:
        pairs = kept.keys.trust_root().pairs if kept.keys.exists else ()
        by = kept.keys.encrypted_by() if pairs else {}
        if json:
            print_json(
                [
                    {"pair": pair.id, "keyids": dict(pair.keyids), "encrypted_by": by[pair.id], "record": pair}
                    for pair in pairs
                ]
            )
            return 0
        print_table(
            ("pair", "encrypted", ">from entry", ">until entry", "revoked"),
            (
                (
                    pair.id,
                    by[pair.id] or "no",
                    pair.from_index,
                    "" if pair.until_index is None else pair.until_index,
                    f"from {pair.revoked.from_index}: {pair.revoked.reason}" if pair.revoked else "",
                )
                for pair in pairs
            ),
            empty="No keys yet. Next: ropewalk keys init",
        )
    return 0
