"""The table of decisions: figures of a rewritten graph, and the check of a change."""

import dataclasses

import pytest

from benchmarks.decisions import __main__ as command
from benchmarks.decisions import prices, rewriting, table, traces
from benchmarks.decisions.figures import Figures, figures_of

NAMES = ["dense_without_bias_ln_gelu", "dense_relu_bn"]


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traces")
    for name in NAMES:
        traces.make(name, traces.WAYS, traces.DEVICES, folder)
    return folder


def in_this_process(work, names, at_once):
    """For calls after the first, which shows that other processes do it."""
    return map(work, names)


@pytest.fixture(scope="module")
def targets(tmp_path_factory):
    return rewriting.targets(tmp_path_factory.mktemp("tables"))


def test_figures_are_those_of_the_report(kept, targets):
    """The share of the products' work and the casts, which a report counts from the painting."""
    from amp_tf.config import AmpConfig
    from amp_tf.rewriting.pipeline import rewrite_serialized

    for way in traces.WAYS:
        trace = traces.read(traces.path_of(kept, NAMES[0], way, "CPU"))
        found = figures_of(
            trace, rewriting.rewrite(trace, targets["amd-zen5"]).graph, targets["amd-zen5"].table
        )
        hardware = rewriting._hardware(targets["amd-zen5"].table)
        config = AmpConfig(report_path="kept.json")  # what is asked for keeps the basis
        report = rewrite_serialized(
            trace.graph,
            config,
            hardware=hardware,
            preserve=trace.preserve,
            functions=False,
            shapes=trace,
        ).report
        assert found.products == pytest.approx(
            100 * report.to_dict()["figures"]["products_share_f16"], abs=0.1
        )
        assert found.casts == report.casts
        assert found.gain > 1


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({}, False),
        ({"products": 89.1}, False),
        ({"products": 88.9}, True),
        ({"elements": 51.1}, True),
        ({"casts": 201}, False),
        ({"casts": 203}, True),
        ({"gain": 1.49}, False),
        ({"gain": 1.48}, True),
    ],
)
def test_a_change_of_more_than_one_per_cent_is_shown_in_both_forms(change, differs):
    key = ("bert", "fit", "amd-zen5")
    before = Figures(90.0, 50.0, 200, 1.5)
    now = dataclasses.replace(before, **change)
    shown = table.differences({key: before}, {key: now})
    assert [line[0] for line in shown] == (["-", "+"] if differs else [])
    assert len(table.differences({key: before}, {})) == 1


def test_a_worse_decision_fails_the_check_and_prints_its_row(kept, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "TABLE", tmp_path / "table.txt")
    given = ["--names", NAMES[0], "--traces", str(kept), "--at-once", "1"]
    assert command.main(given) == 0
    monkeypatch.setattr(table, "each", in_this_process)
    assert command.main([*given, "--check"]) == 0
    text = (tmp_path / "table.txt").read_text()
    first = next(line for line in text.splitlines() if " amd-zen5 " in line)
    name, way, target, products, *rest = first.split()
    (tmp_path / "table.txt").write_text(
        text.replace(first, " ".join([name, way, target, "12.5", *rest]))
    )
    capsys.readouterr()
    assert command.main([*given, "--check"]) == 1
    printed = capsys.readouterr().out
    assert f"- {name:32} {way:7} {target:16}  12.5" in printed
    assert f"+ {name:32} {way:7} {target:16} {float(products):5.1f}" in printed


def test_a_rule_has_its_price_beside_the_decision_that_is_written_by_hand(
    kept, tmp_path, monkeypatch
):
    monkeypatch.setattr(prices, "each", in_this_process)
    monkeypatch.setattr(prices, "KEPT", tmp_path / "prices.json")
    monkeypatch.setattr(prices, "PAGE", tmp_path / "prices.md")
    rule = prices.contract()[0]
    prices.KEPT.write_text(
        f'{{"{rule}": {{"decision": "kept"}}, "a rule that is gone": {{"decision": "gone"}}}}'
    )
    assert (
        prices.main(["--names", NAMES[0], "--rules", rule, "--traces", str(kept), "--at-once", "1"])
        == 0
    )
    page = prices.PAGE.read_text()
    assert f"| {rule} | amd-zen5 |" in page
    assert page.index("| kept |") > page.index(rule)
    assert "a rule that is gone" in prices.KEPT.read_text()
