"""The line at exit: what was converted, or why nothing was."""

from __future__ import annotations

from pathlib import Path

import pytest

from amp_tf.hooks import evidence, summary
from amp_tf.reporting.process import Totals
from amp_tf.reporting.schema import RewriteReport
from tests.hooks import running

PRODUCT = "f = tf.function(lambda x: tf.nn.relu(x @ x) @ x); f(tf.ones((32, 32)))"
PLUGIN, XLA = "amp_tf.hooks.grappler.plugin", "amp_tf.hooks.xla"
PROGRAMS = {
    "eager": ("tf.ones((32, 32)) @ tf.ones((32, 32))", {}, "TensorFlow ran no graph of four nodes or more"),
    "no op for 16 bit": ("tf.function(lambda x: tf.sin(tf.exp(x) + x) * x)(tf.ones((32, 32)))", {}, "allow list"),
    "excluded": (PRODUCT, {"AMP_TF_KEEP_FLOAT32": ".*"}, "keep_float32"),
    "op removed": (
        PRODUCT,
        {"TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_ALLOWLIST_REMOVE": "MatMul,_FusedMatMul"},
        "allow list",
    ),
}


@pytest.mark.parametrize("case", PROGRAMS)
def test_nothing_converted_comes_with_the_reason(case: str, site_folder: Path) -> None:
    code, variables, reason = PROGRAMS[case]
    ended = running.run(["-c", f"import tensorflow as tf; {code}"], site_folder, {**running.switched_on(), **variables})
    assert ended.status == 0, ended.err
    assert ended.converted == 0
    assert reason in ended.summary[6]
    assert ended.warnings == []


def test_a_process_without_tensorflow_says_nothing(site_folder: Path) -> None:
    ended = running.run(["-c", "import amp_tf; amp_tf.enable()"], site_folder, running.switched_on())
    assert (ended.status, ended.out, ended.err) == (0, "", "")


def test_the_line_is_held_back_where_the_user_asked_for_errors_only(site_folder: Path) -> None:
    code = "from absl import logging; logging.set_verbosity(logging.ERROR); import tensorflow"
    ended = running.run(["-c", code], site_folder, running.switched_on())
    assert ended.status == 0
    assert "amp_tf" not in ended.err


@pytest.mark.parametrize(
    ("graphs", "seen", "reason"),
    [
        ({"grappler": 3}, evidence.Evidence(idle="another plugin is loaded"), "another plugin is loaded"),
        ({"grappler": 2}, evidence.Evidence(xla_graphs=2), summary.ONLY_XLA),
        ({}, evidence.Evidence(failures=2), summary.ALL_FAILED),
        ({}, evidence.Evidence(), summary.EAGER),
        ({}, evidence.Evidence(not_installed={PLUGIN: "OSError: no"}), summary.NO_PLUGIN),
        ({}, evidence.Evidence(not_installed={XLA: "OSError: no"}), summary.EAGER),
    ],
)
def test_the_evidence_tells_why(graphs: dict[str, int], seen: evidence.Evidence, reason: str) -> None:
    assert summary.why_nothing(RewriteReport(), Totals(graphs=graphs), seen) == reason


def test_a_part_is_added_once_and_is_left_out_when_it_has_nothing_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary, "_parts", [])

    def scale() -> str:
        return "loss scale 32,768"

    for part in (scale, scale, lambda: ""):
        summary.add_part(part)
    assert summary.line().endswith("; loss scale 32,768")
    assert summary.line().count("loss scale") == 1


@pytest.mark.parametrize(("home", "reason"), [(PLUGIN, f": {summary.NO_PLUGIN}"), (XLA, "")])
def test_a_hook_that_failed_to_install_is_named_with_its_error(home: str, reason: str, site_folder: Path) -> None:
    broken = f"import {home} as hook; hook.install = None; import tensorflow as tf; {PRODUCT}"
    ended = running.run(["-c", broken], site_folder, {running.SWITCH: "1", "AMP_TF_PRECISION": "bfloat16"})
    assert ended.status == 0, ended.err
    error = "TypeError: 'NoneType' object is not callable"
    assert ended.summary[6] == f"{reason}; not installed: {home} ({error})"
    assert (ended.converted > 0) is (home == XLA)
    (warning,) = ended.warnings
    assert f"a hook was not installed ({error})" in warning


def test_a_later_success_takes_a_failure_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "_seen", evidence.Evidence())
    evidence.note_install(XLA, "OSError: no")
    evidence.note_install(PLUGIN, "OSError: neither")
    evidence.note_install(XLA)
    assert evidence.seen().not_installed == {PLUGIN: "OSError: neither"}
