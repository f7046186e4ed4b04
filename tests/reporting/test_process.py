from __future__ import annotations

import dataclasses
import threading

import pytest

import amp_tf
from amp_tf.oplists.hardware import Hardware
from amp_tf.precision import Precision
from amp_tf.reporting import process
from amp_tf.reporting.process import GRAPH_WEIGHT, MAX_CONVERTED, MAX_UNTOUCHED, Ledger, Totals
from amp_tf.reporting.schema import RewriteReport
from tests.reporting.reported_graphs import use_own_ledger
from tests.small_graphs import graph

BF16_CPU = Hardware(cpu_has_bf16=True)
BF16 = amp_tf.AmpConfig(precision="bfloat16")


def rewrite(proto):
    return amp_tf.rewrite(proto, BF16, hardware=BF16_CPU)


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
    assert [part.way for part in ledger.report().graphs] == ["grappler", "xla"]
    assert converted.graphs[0].way == "offline", "the report that was passed in must not change"


def test_totals_count_graphs_nodes_and_casts(ledger, converted, untouched):
    for report, way in ((converted, "grappler"), (untouched, "grappler"), (converted, "xla")):
        ledger.record(report, way=way)
    assert ledger.totals() == Totals(
        graphs={"grappler": 2, "xla": 1}, total=6, converted=2, casts=2, precisions=(Precision.BFLOAT16,)
    )
    assert ledger.totals().products.nodes == (2, 0, 2)


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
    """A ledger with room for 10 graphs of 2 nodes in which something was converted, and for 3 others."""
    monkeypatch.setattr(process, "MAX_CONVERTED", 10 * (2 + GRAPH_WEIGHT))
    monkeypatch.setattr(process, "MAX_UNTOUCHED", 3 * (2 + GRAPH_WEIGHT))
    return Ledger()


def with_nodes(report, count):
    return RewriteReport((dataclasses.replace(report.graphs[0], total=count),))


def test_only_the_last_graphs_are_kept_and_all_are_counted(small, converted, untouched):
    for _ in range(44):
        small.record(converted, way="grappler")
        small.record(untouched, way="xla")
    kept = [part.converted for part in small.report().graphs]
    assert (kept.count(1), kept.count(0)) == (10, 3)
    assert small.totals().graphs == {"grappler": 44, "xla": 44}


def test_graphs_without_a_product_do_not_push_out_those_that_were_converted(small, converted, untouched):
    small.record(converted, way="grappler")
    for _ in range(30):
        small.record(untouched, way="grappler")
    assert small.report().graphs[0].converted == 1


def test_a_large_graph_pushes_out_many_small_ones_and_is_kept_whatever_its_size(small, converted):
    for _ in range(10):
        small.record(converted, way="grappler")
    small.record(with_nodes(converted, 4 * (2 + GRAPH_WEIGHT) - GRAPH_WEIGHT), way="grappler")
    assert len(small.report().graphs) == 1 + 10 - 4
    small.record(with_nodes(converted, 10**9), way="grappler")
    assert [part.total for part in small.report().graphs] == [10**9]
    small.record(converted, way="grappler")
    assert [part.total for part in small.report().graphs] == [2]


def test_threads_may_record_and_read_at_once(ledger, converted):
    start = threading.Barrier(8)

    def work():
        start.wait(30)
        for _ in range(50):
            ledger.record(converted, way="grappler")
            assert ledger.report().graphs

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert ledger.totals().graphs == {"grappler": 400}
    assert ledger.totals().casts == 400


def test_the_public_report_is_that_of_the_process_and_without_rewrites_by_hand(converted, monkeypatch):
    use_own_ledger(monkeypatch)  # as if the process had just begun
    rewrite(graph("x = Placeholder()\na = MatMul(x, x)"))
    assert amp_tf.report() == RewriteReport()
    process.record(converted, way="xla")
    assert amp_tf.report().converted == process.totals().converted == 1
    process.reset()
    assert amp_tf.report() == RewriteReport()
    assert process.totals() == Totals()


def with_obstacles(report, **found):
    obstacles = dataclasses.replace(report.painting.obstacles, **found)
    return dataclasses.replace(report, painting=dataclasses.replace(report.painting, obstacles=obstacles))


def test_a_rule_that_matched_in_a_graph_that_is_not_kept_any_more_still_counts_as_matched(ledger, untouched):
    for unmatched in (("typo",), ("used", "typo")):
        missed = with_obstacles(untouched.graphs[0], unmatched=unmatched)
        ledger.record(RewriteReport((dataclasses.replace(missed, total=MAX_UNTOUCHED),)), way="grappler")
    assert len(ledger.report().graphs) == 1
    assert ledger.totals().unmatched == ("typo",)


def test_a_pattern_of_a_scope_is_idle_if_it_matched_in_no_graph_that_has_the_scope(untouched):
    ledger = Ledger()
    marked = [{"a": False, "b": False}, {}, {"a": True}]
    for of_scopes in marked:
        graph = with_obstacles(untouched.graphs[0], of_scopes=of_scopes)
        ledger.record(RewriteReport((graph,)), way="grappler")
    assert ledger.totals().idle_patterns == ["b"]
    assert ledger.report().unmatched == ("b",)


def test_graphs_that_are_kept_for_figures_weigh_more(ledger, converted):
    with_basis = dataclasses.replace(converted.graphs[0], total=MAX_CONVERTED // 10, basis=object())
    for _ in range(3):
        ledger.record(RewriteReport((with_basis,)), way="grappler")
    assert len(ledger.report().graphs) == 1
    for _ in range(3):
        ledger.record(RewriteReport((dataclasses.replace(with_basis, basis=None),)), way="grappler")
    assert len(ledger.report().graphs) == 4
