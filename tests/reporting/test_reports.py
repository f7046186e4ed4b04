"""The report of a graph, and the report of the process, which keeps many."""

from __future__ import annotations

import dataclasses
import json
import threading

import pytest

import amp_tf
from amp_tf.errors import ConfigError
from amp_tf.oplists.hardware import Hardware
from amp_tf.painting.reasons import Reason, Rule
from amp_tf.precision import Precision
from amp_tf.reporting import files, reports
from amp_tf.reporting.files import SCHEMA_VERSION
from amp_tf.reporting.reports import (
    GRAPH_WEIGHT,
    MAX_UNTOUCHED,
    Ledger,
    RewriteReport,
    Totals,
)
from tests.reporting.rendering import shown
from tests.reporting.reported_graphs import use_own_ledger
from tests.small_graphs import function, graph

pytestmark = pytest.mark.usefixtures("local_rules")
BF16_CPU = Hardware(cpu_has_bf16=True)
TEXT = (
    "x = Placeholder()\ndeny1 = Exp(x)\nallow1 = MatMul(deny1, x)\ninfer1 = Tanh(allow1)\ninfer2 "
    "= Tanh(deny1)"
)
FUNCTION = "function f(x: float32) -> (y: float32)\nm = MatMul(x, x)\nreturn y = m:product:0"


def report(text=TEXT, *library, preserve=(), hardware=BF16_CPU, **settings):
    settings.setdefault("precision", "bfloat16")
    config = amp_tf.AmpConfig(**settings)
    return amp_tf.rewrite(
        graph(text, *library), config, hardware=hardware, preserve=preserve
    ).report


def test_every_node_has_its_precision_and_a_typed_reason():
    nodes = [
        (node.name, node.op, node.function, node.precision, node.reason) for node in report().nodes
    ]
    assert nodes == [
        ("x", "Placeholder", "", Precision.FLOAT32, Reason(Rule.NOT_LISTED)),
        ("deny1", "Exp", "", Precision.FLOAT32, Reason(Rule.DENY_LIST)),
        ("allow1", "MatMul", "", Precision.BFLOAT16, Reason(Rule.ALLOW_LIST)),
        ("infer1", "Tanh", "", Precision.BFLOAT16, Reason(Rule.AFTER_ALLOW, "allow1")),
        ("infer2", "Tanh", "", Precision.FLOAT32, Reason(Rule.AFTER_DENY, "deny1")),
    ]


def test_the_graph_and_its_functions_are_counted_together_and_shown_apart():
    found = report(TEXT, function(FUNCTION))
    assert [(part.function, part.converted, part.total, part.casts) for part in found.graphs] == [
        ("", 2, 5, 2),
        ("f", 1, 3, 2),
    ]
    assert (found.converted, found.total, found.casts) == (3, 8, 4)
    assert (found.precisions, found.why_nothing) == ((Precision.BFLOAT16,), None)
    assert [node.function for node in found.nodes] == [""] * 5 + ["f"] * 3
    document = json.loads(found.to_json())
    assert document["schema_version"] == SCHEMA_VERSION
    assert (document["converted"], document["total"], document["casts"]) == (3, 8, 4)
    assert document["graphs"][0]["nodes"][3] == {
        "name": "infer1",
        "op": "Tanh",
        "precision": "bfloat16",
        "rule": "AFTER_ALLOW",
        "reason": "it directly follows the converted node 'allow1'",
        "cause": "allow1",
    }


def test_a_telling_reason_wins_over_graphs_that_have_nothing_to_convert():
    library = [function(f"function f{number}() -> ()\nn = NoOp()") for number in range(3)]
    assert report(TEXT, *library, preserve=["allow1"]).why_nothing.rule is Rule.PRESERVED


def test_a_name_rule_is_unmatched_only_if_it_matches_in_no_graph():
    found = report(TEXT, function(FUNCTION), keep_float32=("^m$", "^nobody$"))
    assert found.graphs[0].painting.obstacles.patterns == {"^m$": False, "^nobody$": False}
    assert found.unmatched == ("^nobody$",)


def test_a_report_does_not_keep_the_graph_alive():
    painting = report().graphs[0].painting
    assert painting.view.protos == []
    assert len(painting.view.edges) == 0


def test_nodes_are_chosen_by_what_they_are_and_what_there_is_not_is_an_error_with_close_ones():
    nodes = report().nodes
    assert [node.name for node in nodes.where(op="Tanh", precision="bf16")] == ["infer1"]
    assert (
        nodes.where(precision=Precision.FLOAT16)
        == nodes.where(function="f")
        == nodes.where(op="Conv2D")
        == []
    )
    assert nodes.where(reason="allow list") == nodes.where(reason="ALLOW_LIST")
    assert nodes.where(reason="LOOP_DENIED") == nodes.where(reason="quantized values") == []
    assert [node.name for node in nodes.where(reason="deny-list node 'deny1'")] == ["infer2"]
    wrong = {
        "reason": ("DENYLIST", "DENY_LIST"),
        "precision": ("float8", "float16"),
        "op": ("Matmul", "MatMul"),
    }
    for argument, (value, close) in wrong.items():
        with pytest.raises(
            ConfigError, match=rf"\({argument}\): there is no {argument} '{value}'.*'{close}'"
        ):
            nodes.where(**{argument: value})


SHOWN = """\
1 graph, 2 of 5 nodes converted to bfloat16 (matmuls and convolutions: 1 of 1), 2 casts
  1 of 1 MatMul
  1 of 2 Tanh
left in float32:
  1 node (1 Exp), such as 'deny1': its op is on the deny list
  1 node (1 Tanh), such as 'infer2': it uses values of the deny-list node 'deny1'"""


def test_what_was_converted_is_shown_by_op_and_what_was_left_by_reason():
    assert str(report()) == repr(report()) == SHOWN


def test_many_nodes_of_one_reason_are_one_line():
    ops = ["Exp", "Exp", "Expm1", "L2Loss", "Pow", "Pow", "Pow"]
    lines = [f"n{number} = {op}({'x, x' if op == 'Pow' else 'x'})" for number, op in enumerate(ops)]
    shown = str(report("\n".join(["x = Placeholder()", "allow1 = MatMul(x, x)", *lines])))
    assert shown.splitlines()[-1] == (
        "  7 nodes (3 Pow, 2 Exp, 1 Expm1, …), such as 'n0': its op is on the deny list"
    )


def rewrite(proto):
    return amp_tf.rewrite(proto, amp_tf.AmpConfig(precision="bfloat16"), hardware=BF16_CPU)


@pytest.fixture(scope="module")
def converted() -> RewriteReport:
    """One graph: 1 of 2 nodes converted, 1 cast."""
    return rewrite(graph("x = Placeholder()\na = MatMul(x, x)")).report


@pytest.fixture(scope="module")
def untouched() -> RewriteReport:
    """One graph of 2 nodes in which nothing is converted."""
    return rewrite(graph("x = Placeholder()\nr = Relu(x)")).report


@pytest.fixture
def ledger():
    return Ledger()


def test_a_graph_is_kept_with_the_way_it_came(ledger, converted):
    ledger.record(converted, way="grappler")
    ledger.record(converted, way="xla")
    assert [part.way for part in ledger.of_process().graphs] == ["grappler", "xla"]
    assert ledger.totals() == Totals(
        graphs={"grappler": 1, "xla": 1},
        total=4,
        converted=2,
        casts=2,
        precisions=(Precision.BFLOAT16,),
    )
    assert converted.graphs[0].way == "offline", "the report that was passed in must not change"


def test_a_second_visit_is_counted_if_it_converts_more(ledger):
    once = rewrite(graph("x = Placeholder()\na = MatMul(x, x)"))
    ledger.record(once.report, way="grappler")
    ledger.record(rewrite(once.graph).report, way="grappler")
    assert ledger.totals().graphs == {"grappler": 1}
    assert (ledger.totals().total, ledger.totals().converted) == (2, 1)
    more = graph("b = MatMul(y, y)\ny = Placeholder()")
    more.node.extend(once.graph.node)
    report = rewrite(more).report
    assert report.graphs[0].is_revisit
    ledger.record(report, way="grappler")
    assert ledger.totals().converted == 2


@pytest.fixture
def small(monkeypatch):
    """A ledger with room for 10 graphs of 2 nodes in which something was converted, and for 3
    others.
    """
    monkeypatch.setattr(reports, "MAX_CONVERTED", 10 * (2 + GRAPH_WEIGHT))
    monkeypatch.setattr(reports, "MAX_UNTOUCHED", 3 * (2 + GRAPH_WEIGHT))
    return Ledger()


def test_only_the_last_graphs_are_kept_and_all_are_counted(small, converted, untouched):
    for _ in range(44):
        small.record(converted, way="grappler")
        small.record(untouched, way="xla")
    kept = [part.converted for part in small.of_process().graphs]
    assert (kept.count(1), kept.count(0)) == (10, 3)
    assert small.totals().graphs == {"grappler": 44, "xla": 44}


@pytest.fixture
def with_figures():
    """Makes the report of a graph of some nodes, one of them converted, with its basis."""

    def make(nodes):
        lines = [f"n{number} = NoOp()" for number in range(nodes - 2)]
        return report("\n".join(["x = Placeholder()", "a = MatMul(x, x)", *lines]), report_path="-")

    return make


def test_the_oldest_graphs_lose_their_figures_before_their_place(
    monkeypatch, with_figures, untouched
):
    """The limit holds where a report is asked for, too."""
    use_own_ledger(monkeypatch)
    monkeypatch.setattr(reports, "MAX_CONVERTED", 10 * (2 + GRAPH_WEIGHT))
    small = with_figures(2)
    reports.record(untouched, way="grappler")
    for _ in range(14):
        reports.record(small, way="grappler")
    found = amp_tf.report()
    kept = [graph.basis is not None for graph in found.graphs if graph.converted]
    assert kept == [False] * 8 + [True] * 2
    left_out = "nodes are those of 11 of 15 graphs, and figures are those of 2"
    assert found.left_out == left_out
    assert str(found).splitlines()[1] == f"({left_out})"
    assert f"Of this process, {left_out}." in shown(files.page([found.to_dict()]))


def test_an_evaluation_does_not_displace_the_training_before_it(monkeypatch, ledger, with_figures):
    monkeypatch.setattr(reports, "MAX_CONVERTED", 500)
    ledger.record(with_figures(90), way="grappler")
    ledger.record(with_figures(12), way="grappler")
    training, evaluation = ledger.of_process().graphs
    assert (training.total, evaluation.total) == (90, 12)
    assert training.basis is not None
    assert evaluation.basis is not None
    assert ledger.of_process().left_out == ""


def test_threads_may_record_and_read_at_once(ledger, converted):
    start = threading.Barrier(8)

    def work():
        start.wait(30)
        for _ in range(50):
            ledger.record(converted, way="grappler")
            assert ledger.of_process().graphs

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert ledger.totals().graphs == {"grappler": 400}
    assert ledger.totals().casts == 400


def test_the_public_report_is_that_of_the_process_and_without_rewrites_by_hand(
    converted, monkeypatch
):
    use_own_ledger(monkeypatch)  # as if the process had just begun
    rewrite(graph("x = Placeholder()\na = MatMul(x, x)"))
    assert amp_tf.report() == RewriteReport()
    reports.record(converted, way="xla")
    assert amp_tf.report().converted == reports.totals().converted == 1
    reports.reset()
    assert amp_tf.report() == RewriteReport()
    assert reports.totals() == Totals()


def with_obstacles(report, **found):
    obstacles = dataclasses.replace(report.painting.obstacles, **found)
    return dataclasses.replace(
        report, painting=dataclasses.replace(report.painting, obstacles=obstacles)
    )


def test_a_rule_that_matched_in_a_graph_that_is_not_kept_any_more_still_counts_as_matched(
    ledger, untouched
):
    for is_used in (True, False):
        missed = with_obstacles(untouched.graphs[0], patterns={"typo": False, "used": is_used})
        ledger.record(
            RewriteReport((dataclasses.replace(missed, total=MAX_UNTOUCHED),)), way="grappler"
        )
    assert len(ledger.of_process().graphs) == 1
    assert ledger.totals().unmatched == ("typo",)
