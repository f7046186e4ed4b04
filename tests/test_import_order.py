"""Importing amp_tf must cost nothing and bring in no TensorFlow: the autostart relies on it."""

from __future__ import annotations

import sys

import pytest

import amp_tf
from tests import processes

_HEAVY = ("tensorflow", "keras", "tf_keras", "numpy", "absl", "google.protobuf")
_STEPS = f"""
import sys
def report(): print([name for name in {_HEAVY!r} if name in sys.modules])
import amp_tf; report()
amp_tf.AmpConfig.from_env(); from amp_tf.config import Switches; Switches.from_env(); report()
import numpy; report()
for name in set(amp_tf.__all__) - {{"LossScaler"}}: getattr(amp_tf, name)
amp_tf.callbacks.LossScaleMonitor()  # what the README names is there without another import
print({{"tensorflow", "keras", "tf_keras"}} & sys.modules.keys())
"""


def _printed(code: str, fresh: str = "") -> list[str]:
    ended = processes.run([sys.executable, "-c", code], fresh=fresh, capture_output=True, text=True, check=True)
    return list(ended.stdout.splitlines())


def test_importing_amp_tf_and_reading_its_settings_imports_nothing_heavy_and_no_public_name_needs_tensorflow() -> None:
    """But for the one that is a ``tf.Module``; that NumPy is seen once it is imported is the test of this test."""
    assert _printed(_STEPS, fresh="what an import brings") == ["[]", "[]", "['numpy']", "set()"]


def test_a_tool_is_loaded_only_where_it_is_asked_for() -> None:
    is_loaded = "print(any(name.startswith('amp_tf.tools') for name in sys.modules))"
    code = f"import sys, keras, amp_tf; amp_tf.enable(); {is_loaded}; amp_tf.enable(watchdog=True); {is_loaded}"
    assert _printed(code) == ["False", "True"]


def test_every_public_name_is_found_and_listed() -> None:
    assert set(amp_tf.__all__) <= set(dir(amp_tf))
    for name in amp_tf.__all__:
        assert getattr(amp_tf, name).__name__.rpartition(".")[2] == name


def test_an_unknown_name_is_refused_with_the_names_that_exist() -> None:
    with pytest.raises(AttributeError) as caught:
        amp_tf.rewrit  # noqa: B018  the access is the test
    assert str(caught.value) == (
        f"module 'amp_tf' has no attribute 'rewrit'; its public names: {', '.join(amp_tf.__all__)}"
    )
