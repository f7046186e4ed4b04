"""The ablation takes each part out of a rewrite; that each rule does something is for tests/painting."""

from __future__ import annotations

import pytest

from amp_tf.cpu import economy, folding, hoisting
from amp_tf.hooks import xla
from amp_tf.oplists import fusions
from amp_tf.painting import paint
from amp_tf.rewriting import form as planning
from benchmarks.step_time import ablation, parts
from benchmarks.step_time.parts import PARTS

MODULES = (economy, folding, fusions, hoisting, paint, planning, xla)


@pytest.mark.parametrize("part", PARTS)
def test_a_part_is_found_where_it_is_taken_out(part: str) -> None:
    before = [dict(vars(module)) for module in MODULES]
    try:
        parts.remove(part)
        changed = [
            name
            for module, attributes in zip(MODULES, before, strict=True)
            for name, value in vars(module).items()
            if attributes[name] is not value  # KeyError: what the part replaces has moved
        ]
    finally:
        for module, attributes in zip(MODULES, before, strict=True):
            vars(module).update(attributes)
    assert changed


def test_one_command_counts_nodes_and_casts_with_and_without(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AMP_TF_PRECISION", "bfloat16")
    assert ablation.main(["shared casts", "--models", "bert", "--size", "tiny", "--rounds", "0"]) == 0
    cells = capsys.readouterr().out.splitlines()[-1].strip("| ").split(" | ")
    assert cells[:6] == ["shared casts", "BERT encoder", "fit", "–", "–", "–"]
    nodes, same, casts, more = (int(cell.replace(",", "")) for cell in cells[6:])
    assert nodes == same > 0
    assert 0 < casts < more
