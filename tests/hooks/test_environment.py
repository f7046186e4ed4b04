"""Programs that set the variables themselves."""

from __future__ import annotations

import pytest

from tests.hooks import running

PRECISION = {"AMP_TF_PRECISION": "bfloat16"}
ON = {"TF_ENABLE_AUTO_MIXED_PRECISION": "1"}
LOOP = f"""
import os, runpy
before, late, main = {{before!r}}, {{late!r}}, {str(running.PROGRAMS / "custom_loop.py")!r}
if before: os.environ["TF_ENABLE_AUTO_MIXED_PRECISION"] = before
import tensorflow
if late: os.environ.update({{{{"TF_ENABLE_AUTO_MIXED_PRECISION": late}}}})
runpy.run_path(main)
"""


def trained(site_folder, variables, before="", late=""):
    """A training whose script sets the switch itself, before or after its imports."""
    ended = running.run(
        ["-c", LOOP.format(before=before, late=late)], site_folder, variables | PRECISION
    )
    assert ended.warnings == []
    return ended


@pytest.fixture(scope="module")
def from_outside(site_folder):
    return trained(site_folder, ON)


@pytest.mark.parametrize("script", [{"before": "1"}, {"late": "1"}], ids=str)
def test_a_script_that_sets_the_switch_itself_is_converted(script, site_folder, from_outside):
    ended = trained(site_folder, {}, **script)
    assert (ended.result, ended.converted) == (from_outside.result, from_outside.converted)
    assert ended.converted > 0


@pytest.mark.parametrize("script", [{"before": "0"}, {"late": "0"}], ids=str)
def test_a_script_that_turns_the_switch_off_is_not_converted_but_told_what_converts_it(
    script, site_folder, from_outside
):
    ended = trained(site_folder, ON, **script)
    what, _, proposed = ended.summary[6].partition("; to convert anyway, start it with ")
    assert what == ": amp_tf is off: the program itself set TF_ENABLE_AUTO_MIXED_PRECISION=0"
    assert ended.result != from_outside.result
    variables = dict(each.split("=") for each in proposed.split())
    assert len(variables) == 2
    again = trained(site_folder, variables, **script)
    assert (again.result, again.converted) == (from_outside.result, from_outside.converted)


STEPS = """
import os
import _amp_tf_start
_amp_tf_start._on_tensorflow("tensorflow")
_amp_tf_start._on_tensorflow("tensorflow")
from amp_tf.hooks import switch
environ, SWITCH, PRECISION = os.environ, "TF_ENABLE_AUTO_MIXED_PRECISION", "AMP_TF_PRECISION"
def say(): print(switch._active() and switch._active().config.precision)
"""
#: A program, the variables with which it starts, what is on after each step, a message, and how
#: often it appears.
CASES: dict[str, tuple[str, dict[str, str], str, str, int]] = {
    "every way to change the environment is followed": (
        """
environ[SWITCH] = "1"; say()
environ[PRECISION] = "bfloat16"; say()
environ.pop(PRECISION); say()
del environ[SWITCH]; say()
environ.setdefault(SWITCH, "true"); say()
environ |= {"AMP_TF_DISABLE": "1"}; say()
environ["AMP_TF_DISABLE"] = "0"; say()
environ.clear(); say()
environ[SWITCH + "_GRAPH_REWRITE"] = "1"; say()
""",
        {},
        "auto bfloat16 auto None auto None auto None auto",
        "WARNING",
        0,
    ),
    "the same value again changes nothing": (
        """
before = switch._active()
environ[SWITCH] = "1"
print(switch._active() is before is not None)
""",
        ON,
        "True",
        "WARNING",
        0,
    ),
    "what Python turned on is left alone until it is taken back": (
        """
import amp_tf
handle = amp_tf.enable(amp_tf.AmpConfig(precision="float16")); say()
environ[PRECISION] = "bfloat16"; say()
environ[SWITCH] = "0"; say()
environ[SWITCH] = "1"; say()
handle.uninstall(); say()
environ[PRECISION] = "float16"; say()
environ[SWITCH] = "1"; say()
""",
        {},
        "float16 float16 float16 float16 bfloat16 float16 float16",
        "WARNING",
        0,
    ),
    "the variable that disables wins over the program": (
        """
import amp_tf
handle = amp_tf.enable(amp_tf.AmpConfig(precision="float16")); say()
print(amp_tf.is_enabled(), handle.config.precision)
handle.uninstall(); say()
environ["AMP_TF_DISABLE"] = "0"; say()
amp_tf.enable(handle.config); say()
environ["AMP_TF_DISABLE"] = "1"; say()
environ["AMP_TF_DISABLE"] = "0"; say()
""",
        {"AMP_TF_DISABLE": "1"},
        "None False float16 None None float16 None None",
        "amp_tf: stays off, although the program calls amp_tf.enable(): AMP_TF_DISABLE is set",
        1,
    ),
    "a bad value turns it off with one message": (
        """
name = "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_LEVEL"; say()
environ[name] = "nonsense"; say()
environ[PRECISION] = "float16"; say()
print(environ[name])
""",
        ON,
        "auto None None nonsense",
        "amp_tf: stays off, the program runs in float32: "
        "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_LEVEL",
        1,
    ),
    "a bad value that is corrected turns it on again": (
        """
for value in ("bfloat16", "half", "float16", "half"):
    environ[PRECISION] = value; say()
del environ[PRECISION]; say()
environ[PRECISION] = "half"; say()
import amp_tf
amp_tf.disable()
environ[PRECISION] = "float16"; say()
""",
        ON | {"AMP_TF_PRECISION": "brain16"},
        "bfloat16 None float16 None auto None None",
        "amp_tf: stays off, the program runs in float32: AMP_TF_PRECISION",
        4,
    ),
    "a failure leaves the variable set and says so": (
        'switch._asked_by_environment = None; environ[SWITCH] = "1"; print(environ[SWITCH])',
        {},
        "1",
        "amp_tf: TF_ENABLE_AUTO_MIXED_PRECISION was not followed: TypeError: ",
        1,
    ),
    "errors of the environment stay its own": (
        """
for change in (lambda: environ.pop(PRECISION), lambda: environ.update({PRECISION: 1})):
    try:
        change()
    except (KeyError, TypeError) as error:
        print(type(error).__name__)
""",
        {},
        "KeyError TypeError",
        "amp_tf",
        0,
    ),
    "a dict in the place of the environment disturbs nothing": (
        """
os.environ = dict(environ)
_amp_tf_start._on_tensorflow("tensorflow")
os.environ[SWITCH] = "1"; say()
os.environ = environ
os.environ[SWITCH] = "1"; say()
""",
        {},
        "None auto",
        "WARNING",
        0,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_programs_do_to_the_environment_is_followed(case, site_folder):
    code, variables, words, said, times = CASES[case]
    ended = running.run(["-c", STEPS + code], site_folder, variables)
    assert (ended.status, ended.out.split()) == (0, words.split()), ended.err
    assert ended.err.count(said) == times, ended.err
