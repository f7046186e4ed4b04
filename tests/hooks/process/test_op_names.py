"""Misspelt op names in the variables: the program is converted all the same, and is told once."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from amp_tf.config import AmpConfig
from amp_tf.hooks.process import notices
from tests.hooks import running
from tests.oplists.late_op import register_op

PREFIX = "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_"


def test_program_with_misspelt_op_names_is_converted_and_told_each_once(site_folder: Path) -> None:
    names = {f"{PREFIX}ALLOWLIST_ADD": "MatMull", f"{PREFIX}CLEARLIST_REMOVE": "Relu,rellu"}
    ended = running.run(
        [str(running.PROGRAMS / "custom_loop.py")],
        site_folder,
        {**running.switched_on(), "AMP_TF_PRECISION": "bfloat16", **names},
    )
    assert ended.status == 0, ended.err
    assert ended.converted > 0
    assert len(ended.warnings) == 2
    added, removed = sorted(ended.warnings)
    assert f"AmpConfig.allow_add ({PREFIX}ALLOWLIST_ADD): TensorFlow knows no op 'MatMull'" in added
    assert "so the name is left out. Did you mean 'MatMul'?" in added
    assert f"AmpConfig.clear_remove ({PREFIX}CLEARLIST_REMOVE): TensorFlow knows no op 'rellu'" in removed
    assert "Did you mean 'Relu'" in removed


def test_op_that_the_program_loads_later_counts_from_then_on(caplog: pytest.LogCaptureFixture) -> None:
    config = AmpConfig(precision="bfloat16", infer_add=("AmpTfOwnOp", "Sin"))
    notices.forget()
    with caplog.at_level(logging.WARNING, logger="absl"):
        for _ in range(2):
            assert notices.known_only(config).infer_add == ("Sin",)
        register_op("AmpTfOwnOp")
        assert notices.known_only(config) is config
    (message,) = [record.getMessage() for record in caplog.records]
    assert "counts from the first graph after it was loaded" in message
    notices.forget()
