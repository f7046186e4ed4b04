"""The line in amp_tf.pth: what it loads, and that it never stands in the way; and what importing
amp_tf loads.
"""

import ast
import os
import re
import subprocess
import sys
import venv

import pytest

import _amp_tf_start
import amp_tf
from amp_tf import config
from tests import processes
from tests.hooks import running

LOADED = "import sys; print(sorted(name for name in sys.modules if name.startswith('amp_tf')))"
LIGHT = "['amp_tf', 'amp_tf.hooks', 'amp_tf.hooks.imports']"
FINDERS = (
    "import sys; print([type(finder).__name__ for finder in sys.meta_path].count('AmpTfStart'))"
)
SWITCHES = [row.name for row in config.ENV_VARS if row.name.startswith("TF_ENABLE_")]


_HEAVY = ("tensorflow", "keras", "tf_keras", "numpy", "absl", "google.protobuf")
_STEPS = f"""
import sys
heavy = lambda: {{"typing", "dataclasses", "inspect"}} & sys.modules.keys()
before = heavy()
{LOADED}
import _amp_tf_start; _amp_tf_start._start()
{LOADED}; print(heavy() - before)
def report(): print([name for name in {_HEAVY!r} if name in sys.modules])
import amp_tf; report()
amp_tf.AmpConfig.from_env(); from amp_tf.config import Switches; Switches.from_env(); report()
import numpy; report()
for name in set(amp_tf.__all__) - {{"LossScaler"}}: getattr(amp_tf, name)
amp_tf.callbacks.LossScaleMonitor()  # what the README names is there without another import
print({{"tensorflow", "keras", "tf_keras"}} & sys.modules.keys())
"""


def test_little_is_loaded_at_the_start_at_the_import_of_amp_tf_and_for_its_public_names(
    site_folder,
):
    """Nothing before TensorFlow is imported, and then little.

    To import amp_tf and to read its settings imports nothing heavy, and no public name needs
    TensorFlow but the one that is a ``tf.Module``. That NumPy is seen once it is imported is the
    test of this test.
    """
    ended = running.run(
        ["-c", _STEPS], site_folder, dict.fromkeys(SWITCHES, "1"), fresh="what Python loads"
    )
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.splitlines() == ["[]", LIGHT, "set()", "[]", "[]", "['numpy']", "set()"]


@pytest.mark.parametrize(
    "variables",
    [
        {},
        dict(zip(SWITCHES, ("", "0", "False"), strict=True)),
        {"AMP_TF_PRECISION": "float8"},  # which nobody reads
        {"TF_ENABLE_AUTO_MIXED_PRECISION": "1", "AMP_TF_DISABLE": "1"},
    ],
    ids=str,
)
def test_nothing_of_amp_tf_is_loaded_when_it_is_off(variables, site_folder):
    code = (
        f"import tensorflow, keras, os; os.environ['OTHER'] = '1'; {LOADED}; "
        "print(os.environ.__setitem__.__module__)"
    )
    ended = running.run(["-c", code], site_folder, variables)
    assert ended.out.split() == ["[]", "os" if "AMP_TF_DISABLE" in variables else "_amp_tf_start"]
    told = (
        "amp_tf: AMP_TF_PRECISION alone converts nothing: set TF_ENABLE_AUTO_MIXED_PRECISION=1, "
        "too."
    )
    assert [line for line in ended.err.splitlines() if "amp_tf" in line] == [told] * (
        "AMP_TF_PRECISION" in variables
    )


@pytest.mark.parametrize(
    "code",
    [
        "",
        "import tensorflow, amp_tf; amp_tf.AmpConfig.from_env()",
        "import tensorflow, os; os.environ[SWITCH] = '1'",
    ],
)
def test_settings_that_somebody_reads_are_not_told_as_idle(code, site_folder):
    program = f"SWITCH = {running.SWITCH!r}; {code}"
    ended = running.run(["-c", program], site_folder, {"AMP_TF_PRECISION": "bfloat16"})
    assert (ended.status, "alone converts nothing" in ended.err) == (0, False)


def test_values_and_names_that_are_wrong_are_told_together_where_the_switch_is_one_of_them(
    site_folder,
):
    misspelt = {
        "TF_ENABLE_AUTO_MIXED_PRECISON": "1",
        "AMP_TF_PRECISON": "bf16",
        "AMP_TF_IMAGE": "1",
    }
    wrong = {running.SWITCH: "on", "AMP_TF_PRECISION": "fp8"}
    program = "import sys, tensorflow; print('amp_tf may be trained with', file=sys.stderr)"
    told = [
        f"WARNING:absl:amp_tf: {name}: this is not a variable of amp_tf. Write {meant}, if that "
        "is meant."
        for name, meant in (
            ("AMP_TF_PRECISON", "AMP_TF_PRECISION"),
            ("TF_ENABLE_AUTO_MIXED_PRECISON", running.SWITCH),
        )
    ]
    for variables in (misspelt, misspelt | wrong):
        ended = running.run(["-c", program], site_folder, variables)
        lines = [line for line in ended.err.splitlines() if "amp_tf" in line]
        assert lines[:2] == told  # the warnings come before the training
        *values, trained = lines[2:] if variables == misspelt else lines[2:-1]
        assert trained == "amp_tf may be trained with"
        assert len(values) == (variables != misspelt)
    assert f"{running.SWITCH}: 'on' is not a valid value" in values[0]
    assert "AMP_TF_PRECISION: 'fp8' is not a valid value" in values[0]
    assert lines[-1].endswith(
        "amp_tf: nothing was converted: amp_tf is off: the environment is not valid, as a warning "
        "said"
    )


@pytest.mark.parametrize("line", ["amp_tf.pth", "amp_tf.start"])
def test_a_person_can_read_what_python_runs(line):
    """Each file is one line; from 3.15 on, Python calls what ``pkgutil.resolve_name`` finds by the
    second (PEP 829).
    """
    (text,) = (running.ROOT / line).read_text().splitlines()
    said = {
        "amp_tf.pth": "import _amp_tf_start; _amp_tf_start.install()",
        "amp_tf.start": "_amp_tf_start:install",
    }
    assert text == said[line]
    begin = {
        "amp_tf.pth": text,
        "amp_tf.start": f"import pkgutil; pkgutil.resolve_name({text!r})()",
    }[line]
    command = [sys.executable, "-S", "-c", f"import sys; {FINDERS}; {begin}; {FINDERS}"]
    ended = processes.run(command, cwd=running.ROOT, capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["0", "1"]


def test_it_knows_every_switch():
    assert list(_amp_tf_start.SWITCHES) == list(config.SWITCH_VARS) == SWITCHES
    assert _amp_tf_start.DISABLE == config.DISABLE_VAR
    ours = [row.name for row in config.ENV_VARS if row.name.startswith("AMP_TF_") and row.field]
    assert list(_amp_tf_start.SETTINGS) == ours
    assert _amp_tf_start.OF_THE_BUILD == config._OF_THE_BUILD


def read_pth(tmp_path, code, *, has_package=True, switch=""):
    """Runs code in a Python that read amp_tf.pth twice, as ``site`` does, in a site folder of its
    own.
    """
    for name in ("amp_tf.pth", "_amp_tf_start.py"):
        (tmp_path / name).write_bytes((running.ROOT / name).read_bytes())
    if has_package:
        (tmp_path / "amp_tf").symlink_to(running.ROOT / "amp_tf")
    environ = {name: value for name, value in os.environ.items() if "AMP_TF" not in name}
    environ |= {SWITCHES[0]: switch}
    begin = f"import site; site.addsitedir({str(tmp_path)!r}); site.addsitedir({str(tmp_path)!r})"
    command = [sys.executable, "-S", "-c", f"{begin}\n{code}"]
    return processes.run(
        command, env=environ, cwd=tmp_path, capture_output=True, text=True, check=True
    )


@pytest.mark.parametrize(("name", "switch"), [("keras", ""), ("keras", "1"), ("tf_keras", "1")])
def test_an_import_that_is_noticed_finds_the_module_or_fails_as_ever(name, switch, tmp_path):
    for found in (name, "tensorflow"):
        (tmp_path / f"{found}.py").write_text("value = 3\n")
    (missing,) = {"keras", "tf_keras"} - {name}
    code = f"""
import {name}; print({name}.value); {LOADED}
try:
    import {missing}
except ModuleNotFoundError as error:
    print(error.name, error)
import tensorflow; print(tensorflow.value); {LOADED}
"""
    ended = read_pth(tmp_path, f"{FINDERS}; {LOADED}\n{code}", switch=switch)
    finders, at_first, keras, with_keras, refusal, tensorflow, with_tensorflow = (
        ended.stdout.splitlines()
    )
    assert (finders, at_first, keras, tensorflow) == ("1", "[]", "3", "3")
    assert refusal == f"{missing} No module named '{missing}'"
    assert ("amp_tf.hooks.imports" in ast.literal_eval(with_keras)) is bool(switch)
    assert "amp_tf.hooks.switch" not in ast.literal_eval(with_keras)
    assert ("amp_tf.hooks.switch" in ast.literal_eval(with_tensorflow)) is bool(switch)
    assert switch or ended.stderr == ""  # this TensorFlow is a fake, and absl is not there


def test_a_switch_that_is_set_later_loads_it_once(tmp_path):
    """The package, not the start, follows later changes of ``os.environ``."""
    (tmp_path / "tensorflow.py").write_text("")
    code = f"""
import os, tensorflow
ways = lambda: print(os.environ.__setitem__.__module__)
os.environ["AMP_TF_PRECISION"] = "bfloat16"; ways()
os.environ["{SWITCHES[0]}"] = "0"; {LOADED}; ways()
os.environ["AMP_TF_DISABLE"] = "1"
os.environ["{SWITCHES[0]}"] = "1"; ways()
os.environ["AMP_TF_DISABLE"] = "0"; ways()
from amp_tf.hooks import switch
print(switch.is_enabled(), switch._active().config.precision)
"""
    ended = read_pth(tmp_path, code)
    ours = "_amp_tf_start"
    assert ended.stdout.split() == [ours, "[]", ours, ours, ours, "True", "bfloat16"]


@pytest.mark.parametrize("when", ["before", "later"])
def test_a_pth_without_its_package_says_so_once_it_is_asked_for_and_lets_tensorflow_in(
    when, tmp_path
):
    """Such as an editable installation whose checkout was moved away."""
    (tmp_path / "tensorflow.py").write_text("value = 3\n")
    code = (
        "import os, sys, tensorflow; print(tensorflow.value); print('imported', file=sys.stderr, "
        "flush=True); "
        f"os.environ[{SWITCHES[0]!r}] = '1'; print(len(os.environ) > 1)"
    )
    ended = read_pth(tmp_path, code, has_package=False, switch="1" if when == "before" else "")
    assert ended.stdout.split() == ["3", "True"]
    what = "stays off" if when == "before" else f"{SWITCHES[0]} was not followed"
    told = f"amp_tf: {what}: ModuleNotFoundError: No module named 'amp_tf'"
    assert ended.stderr.splitlines() == (
        [told, "imported"] if when == "before" else ["imported", told]
    )


FOREIGN = "print('foreign', __name__)\n"


@pytest.fixture(scope="module")
def folder_of_others(tmp_path_factory):
    """A current folder with a package and a module of our names."""
    folder = tmp_path_factory.mktemp("others")
    (folder / "amp_tf" / "hooks").mkdir(parents=True)
    for name in (
        "_amp_tf_start.py",
        "amp_tf/__init__.py",
        "amp_tf/hooks/__init__.py",
        "amp_tf/hooks/switch.py",
    ):
        (folder / name).write_text(FOREIGN)
    (folder / "tensorflow.py").write_text("value = 3\n")
    return folder


@pytest.mark.parametrize(
    ("layout", "variables"),
    [
        *((layout, {SWITCHES[0]: "1"}) for layout in ("installed", "editable", "path", "gone")),
        ("installed", {"AMP_TF_PRECISON": "bf16"}),
    ],
)
def test_what_has_our_names_in_the_current_folder_is_not_run(
    layout, variables, folder_of_others, tmp_path
):
    """``python -c`` puts that folder in front, but only after the .pth files were read."""
    venv.create(tmp_path / "venv", symlinks=True)
    python = tmp_path / "venv" / "bin" / "python"
    (site_folder,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    (site_folder / "amp_tf.pth").write_bytes((running.ROOT / "amp_tf.pth").read_bytes())
    text = (running.ROOT / "_amp_tf_start.py").read_text()
    if layout == "installed":
        (site_folder / "amp_tf").symlink_to(running.ROOT / "amp_tf")
    else:  # as setup.py writes it, and a path as pip does with editable_mode=compat
        home = str(tmp_path / "gone" if layout == "gone" else running.ROOT)
        text = re.sub(r"(?m)^HOME = .*", f"HOME = {home!r}", text)
        (site_folder / "a.pth").write_text(f"{home}\n" * (layout == "path"))
    (site_folder / "_amp_tf_start.py").write_text(text)
    environ = {name: value for name, value in os.environ.items() if "AMP_TF" not in name}
    code = "import sys, tensorflow; print(tensorflow.value, sys.modules['_amp_tf_start'].__file__)"
    code += "; print(getattr(sys.modules.get('amp_tf'), '__file__', None))"
    command = [python, "-c", code]
    options = {
        "cwd": folder_of_others,
        "env": environ | variables,
        "capture_output": True,
        "text": True,
    }
    ended = subprocess.run(command, check=True, **options)
    value, start, package = ended.stdout.split()
    assert (value, start) == ("3", str(site_folder / "_amp_tf_start.py")), ended.stderr
    expected = "None" if layout == "gone" else str(running.ROOT / "amp_tf" / "__init__.py")
    assert os.path.realpath(package) == os.path.realpath(expected)


def test_a_tool_is_loaded_only_where_it_is_asked_for():
    is_loaded = "print(any(name.startswith('amp_tf.tools') for name in sys.modules))"
    code = f"import sys, keras, amp_tf; amp_tf.enable(); {is_loaded}; amp_tf.compare; {is_loaded}"
    ended = processes.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["False", "True"]


def test_every_public_name_is_found_and_listed():
    assert set(amp_tf.__all__) <= set(dir(amp_tf))
    inside = {"Rule": "Code"}  # the name of what decides, where a rule is a row of painting
    for name in amp_tf.__all__:
        assert getattr(amp_tf, name).__name__.rpartition(".")[2] == inside.get(name, name)


def test_an_unknown_name_is_refused_with_the_names_that_exist():
    with pytest.raises(AttributeError) as caught:
        amp_tf.rewrit  # noqa: B018  the access is the test
    assert str(caught.value) == (
        f"module 'amp_tf' has no attribute 'rewrit'; its public names: {', '.join(amp_tf.__all__)}"
    )
