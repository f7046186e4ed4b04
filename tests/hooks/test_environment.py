"""Programs that set the variables themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hooks import running

PROGRAM = str(running.PROGRAMS / "own_switch.py")
PRECISION = {"AMP_TF_PRECISION": "bfloat16"}
ON = {"TF_ENABLE_AUTO_MIXED_PRECISION": "1"}


@pytest.fixture(scope="module")
def site_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("site")


@pytest.fixture(scope="module")
def from_outside(site_folder: Path) -> running.Ended:
    return running.run([PROGRAM, "nowhere"], site_folder, ON | PRECISION)


@pytest.mark.parametrize("where", ["top", "flag", "late"])
def test_a_script_that_sets_the_switch_itself_is_converted(
    where: str, site_folder: Path, from_outside: running.Ended
) -> None:
    ended = running.run([PROGRAM, where], site_folder, PRECISION)
    assert ended.status == 0
    assert ended.result == from_outside.result
    assert (ended.converted, ended.warnings) == (from_outside.converted, [])
    assert ended.converted > 0


def test_a_script_that_turns_the_switch_off_is_not_converted(site_folder: Path, from_outside: running.Ended) -> None:
    ended = running.run([PROGRAM, "off"], site_folder, ON | PRECISION)
    plain = running.run([PROGRAM, "nowhere"], site_folder, {})
    assert ended.status == plain.status == 0
    assert "amp_tf" not in plain.err
    assert ended.warnings == []
    assert ended.summary[6] == (
        ": amp_tf is off: the program itself set TF_ENABLE_AUTO_MIXED_PRECISION=0; to convert all the same, start it "
        "with TF_ENABLE_AUTO_MIXED_PRECISION_GRAPH_REWRITE=1 TF_ENABLE_AUTO_MIXED_PRECISION_LOSS_SCALING=1"
    )
    assert ended.result == plain.result != from_outside.result


@pytest.mark.parametrize("where", ["off", "off first"])
def test_what_the_line_at_exit_proposes_converts_such_a_script(
    where: str, site_folder: Path, from_outside: running.Ended
) -> None:
    on = {"TF_ENABLE_AUTO_MIXED_PRECISION_GRAPH_REWRITE": "1", "TF_ENABLE_AUTO_MIXED_PRECISION_LOSS_SCALING": "1"}
    ended = running.run([PROGRAM, where], site_folder, on | PRECISION)
    assert (ended.result, ended.converted) == (from_outside.result, from_outside.converted)


def test_a_script_that_turns_the_switch_off_before_its_imports_is_told_so_too(site_folder: Path) -> None:
    ended = running.run([PROGRAM, "off first"], site_folder, ON | PRECISION)
    assert ": amp_tf is off: the program itself set TF_ENABLE_AUTO_MIXED_PRECISION=0; " in ended.summary[6]


STEPS = """
import os
import _amp_tf_start
from amp_tf.hooks import switch
switch.follow()
switch.follow()
def say(): print(switch._switch.active and switch._switch.active.config.precision)
"""


def said(code: str, site_folder: Path, variables: dict[str, str] | None = None) -> tuple[list[str], str]:
    ended = running.run(["-c", STEPS + code], site_folder, variables or {})
    assert ended.status == 0, ended.err
    return ended.out.split(), ended.err


def test_every_way_to_change_the_environment_is_followed(site_folder: Path) -> None:
    code = """
name = "TF_ENABLE_AUTO_MIXED_PRECISION"
os.environ[name] = "1"; say()
os.environ["AMP_TF_PRECISION"] = "bfloat16"; say()
os.environ.pop("AMP_TF_PRECISION"); say()
del os.environ[name]; say()
os.environ.setdefault(name, "true"); say()
os.environ |= {"AMP_TF_DISABLE": "1"}; say()
os.environ["AMP_TF_DISABLE"] = "0"; say()
os.environ.clear(); say()
os.environ["TF_ENABLE_AUTO_MIXED_PRECISION_GRAPH_REWRITE"] = "1"; say()
"""
    words, err = said(code, site_folder)
    assert words == ["auto", "bfloat16", "auto", "None", "auto", "None", "auto", "None", "auto"]
    assert "amp_tf" not in err.replace("INFO:absl:amp_tf", "")


def test_the_same_value_again_changes_nothing(site_folder: Path) -> None:
    code = """
before = switch._switch.active
os.environ["TF_ENABLE_AUTO_MIXED_PRECISION"] = "1"
print(switch._switch.active is before is not None)
"""
    assert said(code, site_folder, ON)[0] == ["True"]


def test_what_python_turned_on_or_off_is_left_alone(site_folder: Path) -> None:
    code = """
import amp_tf
handle = amp_tf.enable(amp_tf.AmpConfig(precision="float16")); say()
os.environ["AMP_TF_PRECISION"] = "bfloat16"; say()
os.environ["TF_ENABLE_AUTO_MIXED_PRECISION"] = "0"; say()
os.environ["TF_ENABLE_AUTO_MIXED_PRECISION"] = "1"; say()
handle.uninstall(); say()
os.environ["AMP_TF_PRECISION"] = "float16"; say()
os.environ["TF_ENABLE_AUTO_MIXED_PRECISION"] = "1"; say()
"""
    assert said(code, site_folder)[0] == ["float16", "float16", "float16", "float16", "None", "None", "float16"]


def test_the_variable_that_disables_wins_over_the_program(site_folder: Path) -> None:
    code = """
import amp_tf
handle = amp_tf.enable(amp_tf.AmpConfig(precision="float16")); say()
print(amp_tf.is_enabled(), handle.config.precision)
handle.uninstall(); say()
os.environ["AMP_TF_DISABLE"] = "0"; say()
amp_tf.enable(handle.config); say()
os.environ["AMP_TF_DISABLE"] = "1"; say()
os.environ["AMP_TF_DISABLE"] = "0"; say()
"""
    words, err = said(code, site_folder, {"AMP_TF_DISABLE": "1"})
    assert words == ["None", "False", "float16", "None", "None", "float16", "None", "None"]
    assert err.count("amp_tf: stays off, although the program calls amp_tf.enable(): AMP_TF_DISABLE is set") == 1


def test_a_bad_value_turns_it_off_with_one_message(site_folder: Path) -> None:
    code = """
say()
os.environ["TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_LEVEL"] = "nonsense"; say()
os.environ["AMP_TF_PRECISION"] = "float16"; say()
print(os.environ["TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_LEVEL"])
"""
    words, err = said(code, site_folder, ON)
    assert words == ["auto", "None", "None", "nonsense"]
    assert err.count("amp_tf: stays off, the program runs in float32: TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_LEVEL") == 1


def test_a_bad_value_that_is_mended_turns_it_on_again(site_folder: Path) -> None:
    code = """
os.environ["AMP_TF_PRECISION"] = "bfloat16"; say()
os.environ["AMP_TF_PRECISION"] = "half"; say()
os.environ["AMP_TF_PRECISION"] = "float16"; say()
os.environ["AMP_TF_PRECISION"] = "half"; say()
del os.environ["AMP_TF_PRECISION"]; say()
os.environ["AMP_TF_PRECISION"] = "half"; say()
import amp_tf
amp_tf.disable()
os.environ["AMP_TF_PRECISION"] = "float16"; say()
"""
    words, err = said(code, site_folder, ON | {"AMP_TF_PRECISION": "brain16"})
    assert words == ["bfloat16", "None", "float16", "None", "auto", "None", "None"]
    assert err.count("amp_tf: stays off, the program runs in float32: AMP_TF_PRECISION") == 4


def test_a_failure_leaves_the_variable_set_and_says_so(site_folder: Path) -> None:
    code = """
switch.obey_environment = None
os.environ["TF_ENABLE_AUTO_MIXED_PRECISION"] = "1"
print(os.environ["TF_ENABLE_AUTO_MIXED_PRECISION"])
"""
    words, err = said(code, site_folder)
    assert words == ["1"]
    assert err.startswith("amp_tf: TF_ENABLE_AUTO_MIXED_PRECISION was not followed: TypeError: ")


def test_errors_of_the_environment_stay_its_own(site_folder: Path) -> None:
    code = """
for change in (lambda: os.environ.pop("AMP_TF_PRECISION"), lambda: os.environ.update({"AMP_TF_PRECISION": 1})):
    try:
        change()
    except (KeyError, TypeError) as error:
        print(type(error).__name__)
"""
    assert said(code, site_folder) == (["KeyError", "TypeError"], "")


def test_a_dict_in_the_place_of_the_environment_disturbs_nothing(site_folder: Path) -> None:
    code = """
import os
real, os.environ = os.environ, dict(os.environ)
from amp_tf.hooks import switch
switch.follow()
os.environ["TF_ENABLE_AUTO_MIXED_PRECISION"] = "1"
print(switch.is_enabled())
os.environ = real
os.environ["TF_ENABLE_AUTO_MIXED_PRECISION"] = "1"
print(switch.is_enabled())
"""
    ended = running.run(["-c", code], site_folder, {})
    assert (ended.status, ended.out.split()) == (0, ["False", "True"]), ended.err


def test_unfollow_leaves_no_trace(site_folder: Path) -> None:
    code = """
_amp_tf_start.unfollow(); _amp_tf_start.unfollow()
print({vars(type(os.environ))[name].__module__ for name in ("__setitem__", "__delitem__")} == {"os"})
os.environ["TF_ENABLE_AUTO_MIXED_PRECISION"] = "1"; say()
"""
    assert said(code, site_folder)[0] == ["True", "None"]


def test_a_wrapper_of_somebody_else_is_kept(site_folder: Path) -> None:
    code = """
ours = type(os.environ).__setitem__
type(os.environ).__setitem__ = lambda *args: (print("theirs"), ours(*args))[1]
_amp_tf_start.unfollow()
os.environ["TF_ENABLE_AUTO_MIXED_PRECISION"] = "1"; say()
"""
    assert said(code, site_folder)[0] == ["theirs", "None"]
