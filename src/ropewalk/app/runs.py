"""A run in the hands of its user: started or found, watched, and read when it is through."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from ropewalk.app.custody import Custody
from ropewalk.app.exporting import Format, write_export
from ropewalk.app.reporting import loaded_run, write_report
from ropewalk.core.errors import IntegrityError
from ropewalk.provenance.verify import Anchors
from ropewalk.reward.verdict import Reward
from ropewalk.rollout import events
from ropewalk.rollout.loaded import signed_reward
from ropewalk.rollout.policies.contract import Policy
from ropewalk.rollout.ports import RunWorld
from ropewalk.rollout.rows import EpisodeState, RunRow
from ropewalk.rollout.run import RunLoop


class _Reader:
    """One who waits for rewards; each has an event of its own, since each has read another part."""

    def __init__(self) -> None:
        self._sealed: list[str] = []
        self._told = anyio.Event()

    def tell(self, *episodes: str) -> None:
        """These were sealed; without any: the run is through."""
        self._sealed += episodes
        self._told.set()

    async def news(self) -> list[str]:
        """What was sealed since the last call, as soon as there is anything."""
        await self._told.wait()
        self._told, sealed = anyio.Event(), self._sealed
        self._sealed = []
        return sealed


class Run:
    """One run. `rewards()` gives each signed reward as soon as it is durable, those from before first. Of one that this
    object did not start (`Ropewalk.open_run`) all is read as far as it is, and nothing is waited for."""

    def __init__(self, id: str, custody: Custody) -> None:
        self.id = id
        self._custody = custody
        self._error: BaseException | None = None
        self._ended = anyio.Event()
        self._readers: list[_Reader] = []
        self._working = False

    @property
    def row(self) -> RunRow:
        """Its state in the journal."""
        return self._custody.journal.run(self.id)

    async def rewards(self) -> AsyncIterator[Reward]:
        """Signed rewards, until the run is through.

        Raises:
            IntegrityError: the journal is not what was signed.
            RopewalkError: whatever ended the run early.
        """
        given: set[str] = set()
        reader = _Reader()
        self._readers.append(reader)
        try:
            sealed: list[str] | None = None  # all of them: at first, and at the end
            while True:
                over = self._ended.is_set() or not self._working
                for reward in await anyio.to_thread.run_sync(self._signed, None if over else sealed, given):
                    given.add(reward.episode)
                    yield reward
                if over:
                    self._raise()
                    return
                sealed = await reader.news()
        finally:
            self._readers.remove(reader)

    async def wait(self) -> RunRow:
        """Until it is through.

        Raises:
            RopewalkError: whatever ended the run early.
        """
        if self._working:
            await self._ended.wait()
        self._raise()
        return self.row

    async def export(self, out: Path | str, *, format: Format = "jsonl") -> int:
        """Writes what has a signed reward for a trainer, and returns how many episodes. See `exporting.write_export`.

        Args:
            out: a file for `jsonl`, a folder for `atif`.

        Raises:
            CallerError: there is a file where a folder is needed, or the reverse.
            DeniedError: the data class of a task forbids this export (rule `data_class:…`).
            IntegrityError: the run's records are not what was signed.
            UnavailableError: it cannot be written there.
        """
        return await anyio.to_thread.run_sync(write_export, self._custody, self.id, format, Path(out))

    async def report(self, path: Path | str | None = None, *, anchors: Anchors | None = None) -> Path:
        """Writes the HTML report and returns where it is.

        Args:
            path: by default in the run's folder.
            anchors: what was kept outside, for the line on verification.

        Raises:
            DeniedError: it would leave the state directory, and the data class of a task forbids that (rule
                `data_class:…`).
            IntegrityError: the run's records are not what was signed.
            UnavailableError: it cannot be written there.
        """
        target = Path(path) if path is not None else None

        def write() -> Path:
            return write_report(self._custody, loaded_run(self._custody, self.id), target, anchors=anchors)

        return await anyio.to_thread.run_sync(write)

    def start(
        self,
        group: TaskGroup,
        world: RunWorld,
        policies: dict[str, Policy[Any]],
        observe: events.Observer = events.ignore,
    ) -> None:
        """Lets a task group play, grade and seal what is open. Errors come out of `wait` and `rewards`."""
        self._working = True
        group.start_soon(self._work, world, policies, observe)

    def _signed(self, sealed: list[str] | None, given: set[str]) -> list[Reward]:
        """Rewards of these sealed episodes (None: of all) that are not given yet, as the log has them."""
        journal = self._custody.journal
        rows = journal.episodes(self.id) if sealed is None else journal.chosen_episodes(sealed)
        fresh = [row for row in rows if row.state is EpisodeState.SEALED and row.id not in given]
        signed = {s.subjects[0].sha256: s for s in self._custody.signed.of_run(self.id)} if fresh else {}
        for row in fresh:
            if row.reward not in signed:
                raise IntegrityError(f"The reward of {row.id} was never signed.", next_step="see `ropewalk verify`.")
        return [signed_reward(row, signed[row.reward or ""]) for row in fresh]

    async def _work(self, world: RunWorld, policies: dict[str, Policy[Any]], observe: events.Observer) -> None:
        def watch(event: events.Event) -> None:
            observe(event)
            if isinstance(event, events.RewardSealed):
                for reader in self._readers:
                    reader.tell(event.episode)

        try:
            await RunLoop(world, self._custody.journal, self.id, policies=policies, observe=watch).work()
        except Exception as error:
            self._error = error
        finally:
            try:
                await self._close_all(policies)
            finally:
                self._ended.set()
                for reader in self._readers:
                    reader.tell()

    async def _close_all(self, policies: dict[str, Policy[Any]]) -> None:
        """A policy that cannot be closed is the run's error where it has none yet; nobody waits for ever."""
        with anyio.CancelScope(shield=True):
            for policy in policies.values():
                try:
                    await policy.close()
                except Exception as error:
                    self._error = self._error or error

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error
