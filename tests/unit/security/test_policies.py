"""Tenants, data classes, commitments, references."""

from __future__ import annotations

from pathlib import Path

import pytest

from ropewalk.core.errors import CallerError, DeniedError
from ropewalk.security.commitments import check_commitment, commit_to, new_cohort_key
from ropewalk.security.data_classes import Use, check_allowed, data_class, most_restricted
from ropewalk.security.references import resolve_secret
from ropewalk.security.tenants import TenantContext, check_tenant


@pytest.mark.parametrize("name", ["a", "acme", "acme-1", "0" * 39])
def test_tenant_names(name: str) -> None:
    assert check_tenant(name) == name
    assert TenantContext(tenant=name).tenant == name


@pytest.mark.parametrize("name", ["", "-a", "Acme", "a/b", "..", "a" * 40, "a\n", "ä", "a b"])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(CallerError):
        check_tenant(name)
    with pytest.raises(CallerError):
        TenantContext(tenant=name)


def test_what_is_another_tenants_does_not_exist() -> None:
    context = TenantContext(tenant="acme")
    context.check_owns("acme", what="such sandbox")
    with pytest.raises(DeniedError) as caught:
        context.check_owns("rival", what="such sandbox")
    assert caught.value.rule == "tenant"
    assert "rival" not in str(caught.value)


def test_classes_allow_what_they_list_and_nothing_else() -> None:
    check_allowed("public", Use.ENDPOINT, "api.example.com")
    check_allowed("internal", Use.ENDPOINT, "localhost")
    check_allowed("restricted", Use.DRIVER, "sandbox:process")
    denied = [
        ("internal", Use.ENDPOINT, "api.example.com"),
        ("internal", Use.ENDPOINT, "127.0.0.1.example.com"),
        ("restricted", Use.EXPORT, "jsonl"),
        ("restricted", Use.DRIVER, "blobs:s3"),
        ("restricted", Use.DRIVER, "sandbox:processes"),
    ]
    for name, use, target in denied:
        with pytest.raises(DeniedError) as caught:
            check_allowed(name, use, target)
        assert caught.value.rule == f"data_class:{name}:{use}"


def test_an_unknown_class_is_refused_everything() -> None:
    for use in Use:
        with pytest.raises(DeniedError):
            check_allowed("secret", use, "localhost")
    with pytest.raises(CallerError, match="one of public, internal, restricted"):
        data_class("secret")


def test_what_touched_several_classes_is_of_the_strictest() -> None:
    assert most_restricted() == "public"
    assert most_restricted("public", "restricted", "internal") == "restricted"
    with pytest.raises(CallerError):
        most_restricted("public", "secret")


def test_commitments_need_the_key() -> None:
    key, other = new_cohort_key(), new_cohort_key()
    made = commit_to("Jane Doe", key=key, field="subject")
    assert made.startswith("hmac-sha256:")
    assert len(made) == 12 + 64
    assert check_commitment(made, b"Jane Doe", key=key, field="subject")
    assert not check_commitment(made, "Jane Doe", key=other, field="subject")
    assert not check_commitment(made, "Jane Doe", key=key, field="site")
    assert not check_commitment(made, "John Doe", key=key, field="subject")
    for arguments in ({"key": b"short", "field": "subject"}, {"key": key, "field": ""}, {"key": key, "field": "a\0b"}):
        with pytest.raises(CallerError):
            commit_to("x", **arguments)  # type: ignore[arg-type]


def test_secrets_by_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLICY_TEST_SECRET", "s3cret")
    assert resolve_secret("env:POLICY_TEST_SECRET") == "s3cret"
    path = tmp_path / "secret"
    path.write_bytes(b"line\n\n")
    path.chmod(0o600)
    assert resolve_secret(f"file:{path}") == "line\n"
    path.write_bytes(b"\xff")
    with pytest.raises(CallerError, match="UTF-8"):
        resolve_secret(f"file:{path}")
    path.write_bytes(b"x" * 70_000)
    with pytest.raises(CallerError, match="larger"):
        resolve_secret(f"file:{path}")
    with pytest.raises(CallerError, match="There is no"):
        resolve_secret(f"file:{tmp_path / 'absent'}")
