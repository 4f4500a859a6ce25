"""Plans: strict, content-addressed, the same from a file and from settings."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.core.errors import CallerError, RopewalkError
from ropewalk.rollout.plan import OpenAISettings, Plan, PoliciesPlan, PolicyName, RunPlan
from ropewalk.rollout.plan_file import load_plan, parse_plan, plan_from_settings

WHOLE = """
[source]
uris = ["pypi:toolz", "pypi:more-itertools==10.0.0"]
licence = "BSD-3-Clause"

[tasks]
kinds = ["release"]
count = 40

[run]
policies = ["noop", "openai"]
group = 8
episode_timeout_s = 30

[policy.openai]
base_url = "http://127.0.0.1:8000/v1"
model = "m"
key = "env:MODEL_KEY"

[price]
set = { electricity = 0.2 }
"""


def test_a_whole_plan() -> None:
    plan = parse_plan(WHOLE)
    assert plan.run.group == 8 and plan.run.policies == (PolicyName.NOOP, PolicyName.OPENAI)
    assert plan.policy.openai is not None and plan.policy.openai.key == "env:MODEL_KEY"
    assert plan.price.set == {"electricity": 0.2}


def test_file_and_settings_make_the_same_plan(tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    file.write_text("[run]\ngroup = 2\npolicies = ['noop']\n[policy.search]\nforks_max = 9\n")
    settings = {"run.group": 2, "run.policies": ("noop",), "policy.search.forks_max": 9}
    assert load_plan(file).id == plan_from_settings(settings).id != Plan().id
    assert plan_from_settings({"run.seed": 1}, base=load_plan(file)).run.group == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[run]\n\ngruop = 4", r"line 3: unknown key 'gruop' in \[run\].*did you mean 'group'"),
        ("[rnu]\ngroup = 4", r"line 1: unknown key 'rnu' in the plan.*did you mean 'run'"),
        ("[policy.openai]\nbase_url = 'x'\nmodle = 'm'", r"line 3: .*\[policy.openai\].*'model'"),
        ("[run]\nzzzz = 1", "known here: policies, tasks, group"),
        ("[run]\ngroup = 'four'", r"line 2: run.group: Expected `int`"),
        ("[run]\ngroup = 0", "run.group: give a whole number, at least 1"),
        ("[run]\npolicies = []", "names no policy"),
        ("[run]\npolicies = ['noop', 'noop']", "twice"),
        ("[run]\npolicies = ['openai']", r"add a \[policy.openai\]"),
        ("[run]\npolicies = ['magic']", r"line 2: run.policies\[0\].*There are: noop, oracle, search, openai"),
        ("[run]\npolicies = ['serach']", "did you mean 'search'"),
        ("[tasks]\nkinds = ['mutants']", "did you mean 'mutant'"),
        ("[run]\npolicies = 'noop'", r'write policies = \["noop"\]'),
        ("[source]\nuris = './mypackage'", r'write uris = \["./mypackage"\]'),
        ("run = 3", "run: Expected `object`"),
        ("[run", "not TOML"),
        ("[tasks]\nmutant_share_max = 2.0", "mutant_share_max"),
        ("[run]\nepisode_timeout_s = nan", "episode_timeout_s"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(text: str, message: str) -> None:
    with pytest.raises(CallerError, match=f"(?s){message}"):
        parse_plan(text, where="plan.toml")


def test_a_secret_itself_is_refused_and_not_repeated() -> None:
    with pytest.raises(CallerError, match=r"(?s)policy\.openai\.key.*env:NAME or file:PATH") as caught:
        parse_plan("[policy.openai]\nbase_url='http://h/v1'\nmodel='m'\nkey='sk-very-secret'")
    assert "very-secret" not in str(caught.value)


def test_files_that_are_no_plans(tmp_path: Path) -> None:
    with pytest.raises(CallerError, match="cannot be read"):
        load_plan(tmp_path / "none.toml")
    with pytest.raises(CallerError, match=r"is a folder.*--source"):
        load_plan(tmp_path)
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(CallerError, match="UTF-8"):
        load_plan(binary)
    large = tmp_path / "large.toml"
    large.write_bytes(b"#" * (2**20 + 1))
    with pytest.raises(CallerError, match="larger"):
        load_plan(large)
    with pytest.raises(CallerError):
        parse_plan("a = " + "[" * 20_000)


@given(st.text(max_size=200))
def test_any_text_is_a_plan_or_a_caller_error(text: str) -> None:
    try:
        parse_plan(text)
    except RopewalkError as error:
        assert isinstance(error, CallerError)


def test_a_cap_without_prices_is_refused() -> None:
    openai = OpenAISettings(base_url="http://h/v1", model="m", cost_usd_max=1.0)
    plan = Plan(run=RunPlan(policies=(PolicyName.OPENAI,)), policy=PoliciesPlan(openai=openai))
    with pytest.raises(CallerError, match=r"policy\.openai\.cost_usd_max\) and gives its tokens no price"):
        plan.check()
    priced = msgspec.structs.replace(openai, price_usd_per_million_completion=2.0)
    msgspec.structs.replace(plan, policy=PoliciesPlan(openai=priced)).check()
