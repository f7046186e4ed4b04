"""Importing amp_tf must cost nothing and bring in no TensorFlow: the autostart relies on it."""

from __future__ import annotations

import subprocess
import sys

import pytest

import amp_tf

_HEAVY = ("tensorflow", "keras", "tf_keras", "numpy", "absl", "google.protobuf")
_REPORT = f"import sys; print(*[name for name in {_HEAVY!r} if name in sys.modules])"


def _heavy_modules_after(code: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{_REPORT}"], capture_output=True, text=True, check=True, timeout=120
    )
    return done.stdout.split()


def test_importing_amp_tf_imports_nothing_heavy():
    assert _heavy_modules_after("import amp_tf") == []


def test_reading_the_settings_imports_nothing_heavy():
    code = "import amp_tf; amp_tf.AmpConfig.from_env(); from amp_tf.config import Switches; Switches.from_env()"
    assert _heavy_modules_after(code) == []


def test_naming_every_public_name_imports_no_tensorflow_but_for_the_one_that_is_a_tf_module():
    code = "import amp_tf\nfor name in set(amp_tf.__all__) - {'LossScaler'}: getattr(amp_tf, name)"
    assert {"tensorflow", "keras", "tf_keras"}.isdisjoint(_heavy_modules_after(code))


def test_a_tool_is_loaded_only_where_it_is_asked_for():
    is_loaded = "print(any(name.startswith('amp_tf.tools') for name in sys.modules))"
    code = f"import sys, keras, amp_tf; amp_tf.enable(); {is_loaded}; amp_tf.enable(watchdog=True); {is_loaded}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == ["False", "True"]


def test_this_test_sees_a_module_that_is_imported():
    assert _heavy_modules_after("import amp_tf, numpy") == ["numpy"]


def test_every_public_name_is_found_and_listed():
    assert set(amp_tf.__all__) <= set(dir(amp_tf))
    for name in amp_tf.__all__:
        assert getattr(amp_tf, name).__name__.rpartition(".")[2] == name


def test_what_the_readme_names_is_there_without_another_import():
    code = "import amp_tf; amp_tf.callbacks.LossScaleMonitor()"
    assert "tensorflow" not in _heavy_modules_after(code)


def test_an_unknown_name_is_refused_with_the_names_that_exist():
    with pytest.raises(AttributeError) as caught:
        amp_tf.rewrit  # noqa: B018  the access is the test
    assert str(caught.value) == (
        f"module 'amp_tf' has no attribute 'rewrit'; its public names: {', '.join(amp_tf.__all__)}"
    )
