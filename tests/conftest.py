from __future__ import annotations

import pytest

from amp_tf.config import ENV_VARS


@pytest.fixture(autouse=True)
def unset_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The developer's own settings must not decide a test; subprocesses inherit this environment too."""
    for row in ENV_VARS:
        monkeypatch.delenv(row.name, raising=False)
