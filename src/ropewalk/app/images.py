"""Images in and out: pulled from registries, imported from and exported to files, built; under the profile's rules."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.to_thread
import msgspec

from ropewalk.app.configuration import ImageSettings
from ropewalk.app.machines import Machines
from ropewalk.core.errors import CallerError, UnavailableError
from ropewalk.machinery.profile import ANY, Profile
from ropewalk.sandbox.images import ImageRecord
from ropewalk.sandbox.oci.assemble import Progress, assemble
from ropewalk.sandbox.oci.build import Builder, base_names
from ropewalk.sandbox.oci.credentials import Credentials
from ropewalk.sandbox.oci.documents import parse_platform
from ropewalk.sandbox.oci.export import Format, export
from ropewalk.sandbox.oci.known import KnownLayers
from ropewalk.sandbox.oci.references import Reference, is_host, parse_reference
from ropewalk.sandbox.oci.registry import Access, Registry
from ropewalk.sandbox.oci.sources import ImageSource, RegistrySource, opened
from ropewalk.sandbox.staging import staging_folder
from ropewalk.security.data_classes import Use, check_allowed
from ropewalk.security.data_classes import data_class as known_class

T = TypeVar("T")
_TRIES = 3
"""Of one assembly, whose layers others may remove meanwhile."""


class ImageWork:
    """What `Ropewalk` does with images. Belongs to one event loop."""

    def __init__(self, machines: Machines) -> None:
        ground = machines.ground
        self._layout = ground.layout
        self._profile: Profile = ground.profile
        self._settings = ground.profile.family(ImageSettings)
        self._machines = machines

    def reference(self, name: str) -> Reference:
        """What a person means by a name.

        Raises:
            CallerError: it is none.
        """
        return parse_reference(name, host=self._settings.registry)

    async def pull(
        self,
        name: str,
        *,
        platform: str = "",
        credentials: str = "",
        docker_config: Path | None = None,
        insecure_http: bool = False,
        data_class: str | None = None,
        progress: Progress | None = None,
    ) -> ImageRecord:
        """Fetches an image from its registry or a mirror; layers that are here already are not fetched again.

        Interrupted in whatever way, the layers that were whole stay, and the next pull goes on from there.

        Args:
            name: such as `debian:bookworm` or `ghcr.io/acme/tool@sha256:…`.
            platform: `linux/arm64`; this machine's by default.
            credentials: where `USER:PASSWORD` is, as `env:NAME` or `file:PATH`; by default what the profile says.
            docker_config: a `config.json` as `docker login` writes it.
            insecure_http: speak plain HTTP; with registries on this machine that is spoken anyway.
            data_class: of every sandbox on it.

        Raises:
            CallerError: no such image, none for that platform, or nothing that can be unpacked here.
            DeniedError: the profile or the registry forbids it.
            IntegrityError: the registry sends what is not what its digest says.
            UnavailableError: the registry does not answer or stalls, or there is no room.
        """
        reference = self.reference(name)
        references = {**self._settings.credentials, **({reference.host: credentials} if credentials else {})}
        config = docker_config or (Path(self._settings.docker_config) if self._settings.docker_config else None)
        stop = threading.Event()
        access = Access(
            allow=self._profile.allow_registry, credentials=Credentials(references, config),
            mirrors=self._mirrors(reference.host), insecure_http=insecure_http, stop=stop,
            proxies=self._any_registry,
        )  # fmt: skip
        access.allow(reference.host.rpartition(":")[0] or reference.host)

        def pull() -> ImageRecord:
            with _first_that_answers(reference, access) as source:
                return self._assemble(source, platform, progress, stop)

        def name_it(record: ImageRecord) -> ImageRecord:
            return msgspec.structs.replace(record, names=(reference.name,), label=reference.name)

        return await self._made(lambda: name_it(pull()), stop, data_class)

    async def import_file(
        self,
        path: Path,
        *,
        image: str = "",
        label: str = "",
        platform: str = "",
        data_class: str | None = None,
        progress: Progress | None = None,
    ) -> ImageRecord:
        """An image out of an OCI layout (folder or archive), a docker-archive, a root folder or an archive of one.

        Args:
            image: which one, where the file holds several.
            label: a name for people; by default its name in there, or the file's.

        Raises:
            CallerError: nothing of these, damaged, or for another platform.
            DeniedError: the same image is here as a more restricted one.
            IntegrityError: it holds what is not what its digest says.
            UnavailableError: there is no room.
        """
        stop = threading.Event()

        def load() -> ImageRecord | None:
            with opened(path, image=image) as source:
                if source is None:
                    return None
                record = self._assemble(source, platform, progress, stop)
                return msgspec.structs.replace(record, label=label or record.label or path.name)

        if (found := await _stoppable(load, stop)) is not None:
            return await self._keep(found, data_class)
        if image or platform:
            raise CallerError(
                f"{path} is a root file system, not an archive of images.", next_step="give its path alone."
            )
        images = self._machines.images
        plain = images.from_directory if path.is_dir() else images.from_tar
        async with self._machines.sandboxes.keeping():
            return await anyio.to_thread.run_sync(
                lambda: plain(path, label=label or path.name, data_class=data_class)
            )  # fmt: skip

    async def export(
        self, name: str, target: Path, *, form: Format | str = Format.OCI, gzip: bool = False
    ) -> ImageRecord:
        """Writes an image to a file or folder. See `sandbox.oci.export`.

        Raises:
            CallerError: no such image, or the target is there already.
            DeniedError: data of its class may not leave as a file.
            UnavailableError: it cannot be written.
        """
        record = await self._machines.image(name) if name == "default" else self._machines.images.find(name)
        check_allowed(record.data_class, Use.EXPORT, "file")
        async with self._machines.sandboxes.keeping():
            await anyio.to_thread.run_sync(
                lambda: export(record, self._machines.layers, target, Format(form), gzip=gzip)
            )  # fmt: skip
        return record

    async def build(
        self,
        context: Path,
        *,
        file: Path | None = None,
        name: str = "",
        arguments: Mapping[str, str] | None = None,
        target: str = "",
        data_class: str | None = None,
        tell: Callable[[str], None] = lambda line: None,
    ) -> ImageRecord:
        """Builds an image from a Dockerfile by buildah. Stages begin with images of that name here, else with a
        registry's where the profile allows any.

        Args:
            context: the folder whose files the Dockerfile may copy.
            file: the Dockerfile; by default `Dockerfile` or `Containerfile` in there.
            name: what to call the result.
            arguments: of the build, for its ARG lines.
            target: the stage to end with.
            tell: is told buildah's lines, from another thread.

        Raises:
            CallerError: no such file, or the build fails; the message ends with its last lines.
            UnavailableError: there is no buildah, or it takes too long.
        """
        called = self.reference(name).name if name else ""
        found = file or next((p for n in ("Dockerfile", "Containerfile") if (p := context / n).is_file()), None)
        if found is None or not context.is_dir():
            raise CallerError(f"{context} is no folder with a Dockerfile.", next_step="name both: CONTEXT --file FILE.")
        stop = threading.Event()

        def build() -> ImageRecord:
            with staging_folder(self._layout.images, "image") as folder:
                builder = Builder(folder, offline=not self._any_registry, stop=stop, tell=tell)
                for base in base_names(found):
                    self._lend(base, builder, folder / "base.tar")
                layout = builder.build(context, found, arguments=arguments or {}, target=target)
                with opened(layout) as source:
                    if source is None:
                        raise UnavailableError("buildah wrote no OCI layout.")
                    record = self._assemble(source, "", None, stop)
                origin = msgspec.structs.replace(record.origin, source=str(context)) if record.origin else None
                return msgspec.structs.replace(
                    record, names=(called,) if called else (), label=called or context.absolute().name, origin=origin
                )

        return await self._made(build, stop, data_class)

    def _lend(self, base: str, builder: Builder, archive: Path) -> None:
        """Gives a build the image that its stage begins with, if it is one of ours."""
        try:
            reference = self.reference(base)
            record = self._machines.images.find(reference.name)
        except CallerError:
            return  # a stage of its own, or a registry's
        full = f"{reference.host}/{reference.repository}:{reference.tag}"
        record = msgspec.structs.replace(record, names=(full,))
        export(record, self._machines.layers, archive, Format.DOCKER)
        builder.lend(archive)

    @property
    def _any_registry(self) -> bool:
        """Whether the network is open; where it is closed but for a list, nobody else is asked on the way either."""
        return ANY in self._profile.network.registries

    def _mirrors(self, host: str) -> tuple[str, ...]:
        mirrors = self._settings.mirrors.get(host, ())
        for each in mirrors:
            if not is_host(each):
                raise CallerError(
                    f"The profile's mirror {each[:80]!r} of {host} is no host.", next_step="write HOST:PORT."
                )
        return mirrors

    def _assemble(
        self, source: ImageSource, platform: str, progress: Progress | None, stop: threading.Event
    ) -> ImageRecord:
        layers = self._machines.layers
        known = KnownLayers(layers, self._layout.layers, self._machines.tenant)
        wanted = parse_platform(platform) if platform else None
        return assemble(source, layers, known, platform=wanted, progress=progress, stop=stop)

    async def _made(
        self, make: Callable[[], ImageRecord], stop: threading.Event, data_class: str | None
    ) -> ImageRecord:
        if data_class is not None:
            known_class(data_class)  # before anything is fetched or stored
        for tries in range(1, _TRIES + 1):
            record = await _stoppable(make, stop)
            try:
                return await self._keep(record, data_class)
            except CallerError:
                if tries == _TRIES or all(
                    self._machines.layers.is_usable(layer, self._machines.tenant) for layer in record.layers
                ):
                    raise  # it was not that somebody removed a layer meanwhile
        raise AssertionError

    async def _keep(self, record: ImageRecord, data_class: str | None) -> ImageRecord:
        async with self._machines.sandboxes.keeping():  # nobody removes layers meanwhile
            return await anyio.to_thread.run_sync(
                lambda: self._machines.images.add(record, data_class=data_class)
            )  # fmt: skip


@contextmanager
def _first_that_answers(reference: Reference, access: Access) -> Iterator[RegistrySource]:
    """The image at the first of the mirrors that knows it, else at the registry itself."""
    for mirror in access.mirrors:
        with Registry(reference, access, host=mirror) as registry:
            try:
                top = registry.manifest(reference.wanted)
            except (CallerError, UnavailableError):
                continue
            yield RegistrySource(registry, reference.name, reference.wanted, top=top)
            return
    with Registry(reference, access) as registry:
        yield RegistrySource(registry, reference.name, reference.wanted)


async def _stoppable(work: Callable[[], T], stop: threading.Event) -> T:
    """Runs work in a thread. Cancelled, it is told to stop and waited for, so that nothing is left behind."""
    result: list[T] = []
    errors: list[BaseException] = []

    async def run() -> None:
        with anyio.CancelScope(shield=True):
            try:
                result.append(await anyio.to_thread.run_sync(work))
            except BaseException as error:
                errors.append(error)
        done.set()

    done = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(run)
        try:
            await done.wait()
        except BaseException:
            stop.set()
            raise
    if errors:
        raise errors[0]
    return result[0]
