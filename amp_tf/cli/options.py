"""Command-line options that fill an AmpConfig, for the commands that rewrite graphs on disk."""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Iterable
from typing import Any

from amp_tf.config import LIST_NAMES, PRECISIONS, TARGETS, AmpConfig
from amp_tf.errors import GraphError
from amp_tf.offline.explain import missing_node
from amp_tf.oplists.hardware import MIN_COMPUTE_CAPABILITY, Hardware


def add_config_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options; those that are not given leave the environment's settings as they are."""
    parser.add_argument("--precision", choices=PRECISIONS, help="the 16-bit type")
    parser.add_argument("--target", choices=TARGETS, help="the device type of nodes that carry no device")
    for name in LIST_NAMES:
        for action in ("add", "remove"):
            parser.add_argument(f"--{name}-{action}", metavar="OPS", help=argparse.SUPPRESS)
    parser.add_argument("--keep-float32", action="append", metavar="REGEX", help="nodes that stay in float32")
    parser.add_argument("--force-f16", action="append", metavar="REGEX", help="nodes that are converted if they can be")


def read_config(args: argparse.Namespace) -> AmpConfig:
    """The environment's settings, changed by the options.

    Raises:
        ConfigError: a setting means nothing.
    """
    config = AmpConfig.from_env()
    changes: dict[str, object] = {}
    for field in dataclasses.fields(AmpConfig):
        value = getattr(args, field.name, None)
        if value is None:
            continue
        names = [name for part in value.split(",") if (name := part.strip())] if isinstance(value, str) else value
        is_list = field.name.endswith(("_add", "_remove", "float32", "f16"))
        changes[field.name] = (*getattr(config, field.name), *names) if is_list else value
    return dataclasses.replace(config, **changes)  # type: ignore[arg-type]


def check_preserved(names: Iterable[str], graph: Any) -> None:
    """Sees that each node that is to be preserved is there: a name that no node has would preserve nothing.

    Args:
        names: what ``--preserve`` names.
        graph: the GraphDef. Nodes of its functions are never preserved.

    Raises:
        GraphError: a node is not there; the message names the closest ones.
    """
    present = [node.name for node in graph.node]
    for name in set(names).difference(present):
        if any(node.name == name for function in graph.library.function for node in function.node_def):
            raise GraphError(
                f"node {name!r} is in a function, and only nodes of the graph itself are preserved",
                where="--preserve",
                fix=f"Keep it in float32 with --keep-float32 '^{re.escape(name)}$'",
            )
        raise missing_node(name, present, "--preserve")


def hardware_for(config: AmpConfig) -> Hardware:
    """The devices to rewrite for: any current GPU for ``--target gpu``, else this machine's CPU."""
    return Hardware((MIN_COMPUTE_CAPABILITY,)) if config.target == "gpu" else Hardware.detect_cpu()
