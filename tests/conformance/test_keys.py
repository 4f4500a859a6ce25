"""Every key driver keeps the contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from ropewalk.security.contract import Keys
from ropewalk.security.drivers.file import FileKeys
from ropewalk.testing.keys import KeysConformance


class TestFile(KeysConformance):
    @pytest.fixture
    def keys(self, tmp_path: Path) -> Keys:
        return FileKeys(tmp_path / "keys")

    def again(self, keys: Keys) -> Keys:
        assert isinstance(keys, FileKeys)
        return FileKeys(keys.folder)


class TestEncryptedFile(TestFile):
    @pytest.fixture
    def keys(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Keys:
        monkeypatch.setenv("KEYS_TEST_PASSPHRASE", "correct horse")
        return FileKeys(tmp_path / "keys", passphrase="env:KEYS_TEST_PASSPHRASE")

    def again(self, keys: Keys) -> Keys:
        assert isinstance(keys, FileKeys)
        return FileKeys(keys.folder, passphrase="env:KEYS_TEST_PASSPHRASE")
