"""``amp-tf explain GRAPH NODE``: why a node, or every node, has its precision, and what would change it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from amp_tf.cli.options import add_config_options, check_preserved, hardware_for, read_config, tell_target
from amp_tf.config import AmpConfig
from amp_tf.errors import AmpError, GraphError
from amp_tf.graph.names import closest, matcher, missing_node, tell_unmatched
from amp_tf.offline.explain import explain
from amp_tf.offline.reading import read_graphs
from amp_tf.reporting.schema import GraphReport, RewriteReport
from amp_tf.rewriting.pipeline import rewrite


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Adds the command to the parser of ``amp-tf``."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "explain",
        help="say why a node has its precision",
        description="Says why a node of a SavedModel or GraphDef has its precision, and what would change it.",
    )
    parser.add_argument(
        "graph",
        metavar="GRAPH",
        help="a SavedModel's folder, a Keras file (.keras, .h5), or a GraphDef file (.pb, .pbtxt)",
    )
    parser.add_argument("node", metavar="NODE", nargs="?", help="the node's name; not with --all")
    parser.add_argument(
        "--all", action="store_true", help="a line for each node: precision, op, function, name, reason"
    )
    parser.add_argument("--op", action="append", default=[], metavar="OP", help="with --all, only nodes of this op")
    parser.add_argument("--json", action="store_true", help="with --all, print JSON")
    parser.add_argument("--function", default="", metavar="NAME", help="the library function that holds the node")
    parser.add_argument("--preserve", action="append", default=[], metavar="NODE", help="a node that stays as it is")
    add_config_options(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """Prints the explanation.

    Raises:
        AmpError: there is no such graph, function or node, or a setting is wrong.
    """
    if args.all == (args.node is not None):
        raise AmpError("name one NODE, or add --all for all of them", where="explain", fix="amp-tf explain --help")
    config = read_config(args)
    graphs = read_graphs(args.graph)
    if args.all:
        return _print_all(graphs, args, config)
    graph, named = next((found for found in graphs if args.node in _names(found[0])), graphs[0])
    check_preserved(args.preserve, graph)
    home = args.function or _home_of(graph, args.node, args.graph)
    functions = {function.signature.name: function for function in graph.library.function}
    if home and home not in functions:
        some = closest(home, list(functions)) or list(functions)[:3]
        fix = f"The closest names: {', '.join(some)}" if some else "It has no functions: leave --function out"
        raise GraphError(f"the graph has no function {home!r}", where=args.graph, fix=fix)
    explanation = explain(
        functions[home] if home else graph,
        args.node,
        config,
        preserve=() if home else (*args.preserve, *named),  # as the rewrite does
        hardware=hardware_for(config),
        library=graph.library,
        where=args.graph,
    )
    print(explanation)
    names = [name for graph, _ in graphs for name in _names(graph)]
    patterns = dict.fromkeys((*config.keep_float32, *config.force_f16))
    if idle := tell_unmatched((each for each in patterns if not any(map(matcher(each), names))), names):
        print(f"No node's name matches: {idle}", file=sys.stderr)
    return 0


def _print_all(graphs: Iterable[tuple[Any, set[str]]], args: argparse.Namespace, config: AmpConfig) -> int:
    reports: list[GraphReport] = []
    for graph, named in graphs:
        check_preserved(args.preserve, graph)
        preserve = (*args.preserve, *named)
        reports += rewrite(graph, config, preserve=preserve, hardware=hardware_for(config)).report.graphs
    tell_target(RewriteReport(tuple(reports)))
    nodes = (node for report in reports for node in report.nodes)
    rows = [
        {"precision": node.precision.value, "op": node.op, "function": node.function, "name": node.name}
        | {"rule": node.reason.rule.name, "reason": str(node.reason)}
        for node in nodes
        if (not args.op or node.op in args.op) and (not args.function or node.function == args.function)
    ]
    if args.json:
        print(json.dumps(rows, indent=1))
    else:
        for row in rows:
            print("\t".join(row[key] for key in ("precision", "op", "function", "name", "reason")))
    return 0


def _names(graph: Any) -> Iterator[str]:
    for body in (graph.node, *(function.node_def for function in graph.library.function)):
        yield from (item.name for item in body)


def _home_of(graph: Any, node: str, where: str) -> str:
    """The function that holds a node; empty for a node of the graph itself.

    Raises:
        GraphError: no node has that name, or nodes of several functions have it.
    """
    if any(item.name == node for item in graph.node):
        return ""
    homes = [f.signature.name for f in graph.library.function if any(item.name == node for item in f.node_def)]
    if len(homes) > 1:
        raise GraphError(
            f"{len(homes)} functions hold a node {node!r}",
            where=where,
            fix=f"Choose with --function: {', '.join(homes)}",
        )
    if not homes:
        raise missing_node(node, list(_names(graph)), where)
    return str(homes[0])
