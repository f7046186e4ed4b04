"""Runs ``amp-tf rewrite`` and ``explain``, on models and graphs on disk."""

from __future__ import annotations

import argparse
import itertools
import os.path
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from amp_tf.cli.commands import DEFAULT_SIGNATURE
from amp_tf.cli.options import batch_of, load_signature, read_config, read_inputs
from amp_tf.config import WEIGHTS, AmpConfig
from amp_tf.errors import AmpError, GraphError, first_line
from amp_tf.graph.names import closest, describe_unmatched, missing_node, node_of
from amp_tf.hooks.switch import disable
from amp_tf.offline import reading
from amp_tf.offline.explain import explain
from amp_tf.offline.saved_model import (
    ModelGraph,
    convert_saved_model,
    read_graphs,
    rewrite_saved_model,
)
from amp_tf.oplists.hardware import Hardware
from amp_tf.oplists.targets import hardware_for, resolve_target
from amp_tf.painting.reasons import Rule
from amp_tf.reporting.graphs import GraphReport
from amp_tf.reporting.reports import RewriteReport
from amp_tf.rewriting.pipeline import rewrite
from amp_tf.tools.comparing.verdicts import error_text
from amp_tf.tools.progress import during, on_stderr
from amp_tf.values import ANY_BATCH

_IN_FLOAT32 = (
    "On this CPU float32 computes the matmuls and convolutions, of rounded numbers. For another "
    "machine add --target cpu (one with bfloat16) or --target gpu."
)


def run_rewrite(args: argparse.Namespace) -> int:
    """Converts and prints what was done, op by op."""
    config = read_config(args)
    batch = batch_of(args)
    is_model = os.path.isdir(args.source) or reading.is_keras_file(args.source)
    _check_options(args, is_model)
    # The original answers first: the copy may be written in its place.
    expected = {}
    if args.check:
        expected = _answer(args, args.source)
    convert = _convert_graph
    if is_model:
        convert = _convert_model
    with during(on_stderr("amp-tf rewrite"), f"rewriting {args.source}"):
        report, ends = convert(args, config, batch)
    if ends:
        what = f"Results of 16 bit: {', '.join(ends)}. With --preserve NODE a node stays float32."
        print(what, file=sys.stderr)
    print(report)
    if args.check:
        print("check:", *_errors(args, expected), sep="\n  ")
    _tell_result(args, report)
    _tell_target(report)
    resolution = resolve_target(config, hardware_for(config))
    _tell_batch(batch, decides=resolution.uses_cost_model)
    target = resolution.target
    if target is not None and target.rounded:
        print(_IN_FLOAT32, file=sys.stderr)
    idle = describe_unmatched(report.unmatched, [node.name for node in report.nodes])
    if idle:
        print(f"No node's name matches: {idle}", file=sys.stderr)
    return 0


def _check_options(args: argparse.Namespace, is_model: bool) -> None:
    """Checks that the options fit each other and the input, before anything is written."""
    if not args.dry_run:
        if args.result is None:
            raise AmpError(
                "there is no OUT", fix="Name a file or folder to write, or add --dry-run"
            )
        if not args.force and os.path.isfile(args.result):
            what = "the file exists"
            if os.path.exists(args.source) and os.path.samefile(args.source, args.result):
                what = "it is the input, which would be overwritten"
            raise AmpError(
                what,
                where=args.result,
                fix="Name another file, or replace it with --force; nothing was written",
            )
    is_graph = not is_model and os.path.exists(args.source)
    if is_graph and (args.check or args.weights != WEIGHTS[0]):
        where = "--weights"
        if args.check:
            where = "--check"
        raise AmpError(
            "is for models, and this is a GraphDef file",
            where=where,
            fix="Name a SavedModel's folder or a Keras file, or leave it out",
        )
    if args.check and args.dry_run:
        raise AmpError("there is no copy to check", where="--check", fix="Leave --dry-run out")
    if is_model and args.preserve:
        raise AmpError(
            "is for GraphDef files, and this is a model",
            where="--preserve",
            fix=(
                "What a SavedModel's signatures name is preserved without it; --keep-float32 keeps "
                "other nodes"
            ),
        )


def _tell_result(args: argparse.Namespace, report: RewriteReport) -> None:
    """Prints to stderr what was written."""
    is_or_would = "is"
    if args.dry_run:
        is_or_would = "would be"
    if not report.converted:
        result = args.result or "The result"
        print(f"{result} {is_or_would} an unconverted copy of {args.source}.", file=sys.stderr)
    elif not args.dry_run:
        print(f"{args.result} is written.", file=sys.stderr)


def _convert_model(
    args: argparse.Namespace, config: AmpConfig, batch: Any
) -> tuple[RewriteReport, Sequence[str]]:
    """Converts a model, and writes the copy unless ``--dry-run`` is given.

    Returns the report, and no names of nodes.
    """
    options: dict[str, Any] = {"weights": args.weights, "batch": batch}
    if args.dry_run:
        _, report = rewrite_saved_model(args.source, config, **options)
    else:
        report = convert_saved_model(
            args.source, args.result, config, replace=args.force, **options
        )
    return report, ()


def _convert_graph(
    args: argparse.Namespace, config: AmpConfig, batch: Any
) -> tuple[RewriteReport, Sequence[str]]:
    """Converts a graph file, and writes the result unless ``--dry-run`` is given.

    Returns the report, and the names of 16-bit nodes that no node reads.
    """
    graph = reading.read_graph_file(args.source)
    _check_preserved(args.preserve, graph)
    result = rewrite(graph, config, preserve=args.preserve, batch=batch)
    if not args.dry_run:
        reading.write_graph_file(result.graph, args.result)
    # Nodes that no other node reads are probably fetched.
    read: set[str] = set()
    for proto in result.graph.node:
        read.update(map(node_of, proto.input))
    ends = []
    for node in result.report.graphs[0].nodes:
        if node.precision.is_f16 and node.name not in read:
            ends.append(node.name)
    return result.report, ends


def _answer(args: argparse.Namespace, model: str) -> dict[str, Any]:
    """Runs a model, as it is saved, on the inputs of ``--check``; returns its outputs by name."""
    disable()  # the environment may have turned amp_tf on
    _model, signature = load_signature(model, DEFAULT_SIGNATURE)
    tensors = read_inputs(args.check, signature)
    try:
        return dict(signature(**tensors))
    except Exception as error:  # of another shape, or what the model itself cannot compute
        arguments = []
        for name, spec in signature.structured_input_signature[1].items():
            arguments.append(f"{name} {spec.dtype.name}{list(spec.shape)}")
        raise AmpError(
            f"the model does not take its arrays ({first_line(error)})",
            where=args.check,
            fix=f"It takes {', '.join(arguments)}",
        ) from None


def _errors(args: argparse.Namespace, expected: Mapping[str, Any]) -> Iterator[str]:
    """Yields a line for each output, with its difference between the copy and the original."""
    answers = _answer(args, args.result)
    for name, value in sorted(expected.items()):
        original = np.asarray(value)
        converted = np.asarray(answers[name])
        if original.shape != converted.shape:  # it has what passes a threshold, for instance
            yield f"{name}: its shape is {converted.shape}, and {original.shape} in the original"
            continue
        if not (value.dtype.is_floating or value.dtype.is_complex):
            differing = np.count_nonzero(original != converted)
            yield f"{name}: {differing:,} of {original.size:,} values differ"
            continue
        wide = np.complex128 if value.dtype.is_complex else np.float64
        original = original.astype(wide)
        converted = converted.astype(wide)
        finite = np.isfinite(original)
        lost = np.count_nonzero(finite & ~np.isfinite(converted))
        if lost:
            raise AmpError(
                f"it is written, and {lost:,} of {original.size:,} values of {name} are inf or "
                "nan, which they were not",
                where=args.result,
                fix=f"What to keep in float32: {shlex.join(_comparison(args))}",
            )
        errors = np.abs(original[finite] - converted[finite])
        worst = np.max(errors, initial=0)
        largest = np.max(np.abs(original), initial=0, where=finite)
        relative = ""
        if largest:
            relative = f", {error_text(worst / largest)} of the largest value"
        mean = errors.sum() / max(errors.size, 1)
        yield f"{name}: error at most {worst:.3g}{relative}, {mean:.3g} on average"


def _comparison(args: argparse.Namespace) -> list[str]:
    """Returns the command that compares the model under the settings of this one.

    It repeats the options; other settings stand in the environment.
    """
    command = ["amp-tf", "compare", args.source, "--inputs", args.check]
    for option, value in (("--precision", args.precision), ("--target", args.target)):
        if value is not None:
            command += [option, value]
    for patterns in args.keep_float32:
        command += ["--keep-float32", patterns]
    return command


def _check_preserved(names: Iterable[str], graph: Any) -> None:
    """Checks that the graph itself has each node of ``--preserve``.

    No other node would be preserved.
    """
    names_of = _names_by_function(graph)
    for name in set(names).difference(names_of[""]):
        if not any(name in inside for inside in names_of.values()):
            raise missing_node(name, names_of[""], "--preserve")
        raise GraphError(
            f"node {name!r} is in a function, and only nodes of the graph itself are preserved",
            where="--preserve",
            fix=f"Keep it in float32 with --keep-float32 '^{re.escape(name)}$'",
        )


def _tell_target(report: RewriteReport) -> None:
    """Prints to stderr the options that would convert something, if this machine has no target."""
    if report.why_nothing is not None and report.why_nothing.rule is Rule.NO_TARGET:
        what = (
            "--precision float16 --target gpu is what a GPU would run; --precision bfloat16 "
            "--target cpu what a CPU with bfloat16 would"
        )
        print(f"{what}.", file=sys.stderr)


def _tell_batch(batch: tuple[int, ...] | None, *, decides: bool) -> None:
    """Prints to stderr for which batch sizes a copy was decided, or that they decide nothing."""
    if decides:
        sizes = [f"{size:,}" for size in dict.fromkeys(batch or ANY_BATCH)]
        what = f"Decided for a batch of {' and one of '.join(sizes)}: what is faster"
        if len(sizes) > 1:
            what = f"{what} in both"
        print(f"{what} is converted. --batch names other sizes.", file=sys.stderr)
    elif batch is not None:
        print(
            "--batch decides nothing here: it is for precision auto on a CPU, which converts what "
            "is faster.",
            file=sys.stderr,
        )


def run_explain(args: argparse.Namespace) -> int:
    """Prints the explanation."""
    if args.all == (args.node is not None):
        raise AmpError("name one NODE, or add --all for all of them")
    config = read_config(args)
    hardware = hardware_for(config)
    graphs = read_graphs(args.graph, config, hardware)
    if args.all:
        return _print_all(graphs, args, config, hardware)
    # The first graph that has the node; without any, the first graph says so.
    model_graph = graphs[0]
    for each in graphs:
        if any(args.node in names for names in _names_by_function(each.graph).values()):
            model_graph = each
            break
    graph = model_graph.graph
    _check_preserved(args.preserve, graph)
    body = graph
    preserve = (*args.preserve, *model_graph.preserve)
    home = _home_of(args, _names_by_function(graph))
    for function in graph.library.function:
        if function.signature.name == home:
            body = function
            preserve = ()  # as the rewrite does
    explanation = explain(
        body,
        args.node,
        config,
        preserve=preserve,
        hardware=hardware,
        library=graph.library,
        where=args.graph,
        batch=batch_of(args),
        beyond_range=model_graph.beyond_range,
    )
    print(explanation)
    return 0


def _home_of(args: argparse.Namespace, names_of: Mapping[str, Sequence[str]]) -> str:
    """Returns the name of the function with the node to explain; empty for the graph itself.

    Raises:
        GraphError: there is no such node or function, or several functions have such a node.
    """
    where = args.graph
    if args.function:
        _check_name("function", args.function, filter(None, names_of), where)
        return str(args.function)
    homes = [function for function, names in names_of.items() if args.node in names]
    if not homes:
        raise missing_node(args.node, list(itertools.chain(*names_of.values())), where)
    if len(homes) > 1 and "" not in homes:
        raise GraphError(
            f"{len(homes)} functions hold a node {args.node!r}",
            where=where,
            fix=f"Choose with --function: {', '.join(homes)}",
        )
    return homes[0]


def _print_all(
    graphs: Iterable[ModelGraph], args: argparse.Namespace, config: AmpConfig, hardware: Hardware
) -> int:
    """Prints a line for each node that ``--function`` and ``--op`` leave."""
    reports: list[GraphReport] = []
    functions: list[str] = []
    for each in graphs:
        _check_preserved(args.preserve, each.graph)
        functions += [function.signature.name for function in each.graph.library.function]
        result = each.rewritten(config, args.preserve, hardware=hardware, batch=batch_of(args))
        reports += result.report.graphs
    whole = RewriteReport(tuple(reports))
    nodes = whole.nodes
    if args.function:
        _check_name("function", args.function, functions, args.graph)
    for op in args.op:
        _check_name("op", op, {node.op for node in nodes}, args.graph)
    _tell_target(whole)
    for node in nodes:
        if args.function not in ("", node.function) or (args.op and node.op not in args.op):
            continue
        columns = (node.precision.value, node.op, node.function, node.name)
        print(*columns, node.reason, sep="\t")
    return 0


def _check_name(kind: str, name: str, names: Iterable[str], where: str) -> None:
    """Raises a GraphError with the closest names if a name is not among some."""
    known = sorted(names)
    if name in known:
        return
    fix = f"It has no {kind}s: leave --{kind} out"
    if known:
        fix = f"The closest names: {', '.join(closest(name, known) or known[:3])}"
    raise GraphError(f"the graph has no {kind} {name!r}", where=where, fix=fix)


def _names_by_function(graph: Any) -> dict[str, list[str]]:
    """Returns the names of nodes by function, ``""`` for the graph itself, which comes first."""
    names_of = {"": [node.name for node in graph.node]}
    for function in graph.library.function:
        names_of[function.signature.name] = [node.name for node in function.node_def]
    return names_of
