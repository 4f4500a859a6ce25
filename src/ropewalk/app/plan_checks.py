"""What is wrong with a plan that can be known at once: found before anything is fetched, built or begun."""

from __future__ import annotations

from pathlib import Path

from ropewalk.app.building import CATALOGUE
from ropewalk.app.costs import prices_of
from ropewalk.app.custody import source_kind
from ropewalk.core.errors import CallerError
from ropewalk.lake.licences import check_licence
from ropewalk.machinery.profile import Profile
from ropewalk.rollout.plan import Plan, PolicyName, SourcePlan
from ropewalk.rollout.policies.registry import key_of
from ropewalk.tasks.pins import load_pins
from ropewalk.tasks.pytest_settings import check_settings
from ropewalk.tasks.requirements import check_plugins, read_requirements


def check_plan(plan: Plan, profile: Profile) -> None:
    """Returns if nothing is known to be wrong with a plan before anything is fetched or built: its endpoint and the key
    for it, its prices, and its sources unless it names its tasks.

    Raises:
        CallerError: a source, a licence, a requirements file, a price or a key that is not there or not of its kind.
        DeniedError: the profile does not allow a source or an endpoint of the plan.
    """
    check_policies(plan, profile)
    check_prices(plan)
    if not plan.tasks.ids:
        check_sources(plan.source, profile)


def check_policies(plan: Plan, profile: Profile) -> None:
    """Returns if the endpoint of a plan may be called, and there is a key where one is named.

    Raises:
        CallerError: no URL; nothing where the key should be.
        DeniedError: the profile does not allow the endpoint; others may read the key's file.
    """
    openai = plan.policy.openai
    if openai is not None and PolicyName.OPENAI in plan.run.policies:
        profile.allow_endpoint(openai.base_url)
        key_of(openai)


def check_prices(plan: Plan) -> None:
    """Returns if a plan's prices can be read and make sense: they are used when everything is over, and the plan is
    kept as it is.

    Raises:
        CallerError: a file that cannot be read, an unknown price, one that makes no sense.
    """
    try:
        prices_of(plan.price)
    except CallerError as error:
        raise CallerError(f"[price]: {error.message}", next_step=error.next_step) from error


def check_sources(source: SourcePlan, profile: Profile) -> None:
    """Returns if the sources of a plan can be read at all; nothing of them is read yet.

    Raises:
        CallerError: no source; one that does not exist; no such licence; requirements that nobody can read.
        DeniedError: the profile does not allow a source.
    """
    if not source.uris:
        raise CallerError("No source was named.", next_step="give --source, or source.uris in the plan.")
    for uri in source.uris:
        if uri.startswith(CATALOGUE):
            load_pins(uri.removeprefix(CATALOGUE))
        else:
            profile.allow_source(source_kind(uri))
    if source.licence is not None:
        check_licence(source.licence)
    check_plugins(source.plugins)
    check_settings(source.pytest_ini)
    if source.requirements:
        read_requirements(Path(source.requirements))
    if source.wheelhouse and not Path(source.wheelhouse).is_dir():
        raise CallerError(
            f"The wheelhouse {source.wheelhouse} is no folder.",
            next_step="fill one with `pip download -d FOLDER -r REQUIREMENTS`, and name it.",
        )
