"""`ropewalk doctor`: what this machine can do."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from ropewalk.cli.apps import HERE, Place, verb
from ropewalk.cli.exit_codes import EXIT_UNAVAILABLE
from ropewalk.cli.output import print_json, say
from ropewalk.core.errors import DeniedError

if TYPE_CHECKING:
    from ropewalk.machinery.profile import Profile

app = verb("doctor", examples=["ropewalk doctor", "ropewalk doctor --offline --json"])

_MARKS = {"ok": ("✓", "green"), "limited": ("!", "yellow"), "missing": ("✗", "red")}


@app.default
def doctor(*, offline: bool = False, json: bool = False, place: Place = HERE) -> int:
    """Tries what the main job needs (sandboxes, room for them, the state directory, keys, the network), and says how
    to get what is missing.

    Exits with 7 where the main job cannot run here.

    Args:
        offline: Do not ask the package index.
        json: Print JSON.
    """
    from ropewalk.app.configuration import FleetSettings, SandboxSettings, open_profile
    from ropewalk.app.doctor import examine
    from ropewalk.app.machines import probe_driver, probe_fleet
    from ropewalk.store.layout import Layout, default_state_dir

    profile = open_profile(place.profile)
    layout = Layout(place.state or default_state_dir())
    found = examine(
        profile,
        layout,
        probe=lambda: probe_driver(profile.family(SandboxSettings).driver, layout),
        fleet=lambda: probe_fleet(profile.family(FleetSettings)),
        network=not offline,
    )
    if json:
        print_json(found)
        return 0 if found.ready else EXIT_UNAVAILABLE
    area = ""
    for check in found.checks:
        if check.area != area:
            area = check.area
            say(area, style="bold")
        mark, style = _MARKS[check.state]
        say(f"  {mark} {check.name}: {check.detail}", style=style if check.state != "ok" else "")
        if check.next_step:
            say(f"      next: {check.next_step}", style="dim")
    say()
    if found.ready:
        say(f"This machine can run the main job. Next: {_demo_of(profile, place)}", style="green")
        return 0
    say("This machine cannot run the main job yet; see the lines marked ✗.", style="red")
    return EXIT_UNAVAILABLE


def _demo_of(profile: Profile, place: Place) -> str:
    """The command that runs it under this profile."""
    words = ["ropewalk demo"]
    if place.profile:
        words.append(f"--profile {shlex.quote(place.profile)}")
    try:
        profile.allow_source("pypi")
    except DeniedError:
        words.append("--source OLDER --source NEWER")
    return " ".join(words)
