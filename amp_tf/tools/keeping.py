"""Makes patterns of ``keep_float32``, and writes the text file of ``tune`` and ``compare``.

The file has a pattern a line, and comments that say what was measured and when; people may write
one by hand. ``AMP_TF_KEEP_FLOAT32=@FILE`` reads it (:func:`amp_tf.values.read_pattern_file`).
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from amp_tf.config import variable_of
from amp_tf.graph.names import Matcher, matcher
from amp_tf.reporting import files
from amp_tf.reporting.files import AnyPath
from amp_tf.values import LAYER, NODE, file_of_patterns

Patterns = tuple[str, ...]  #: of the setting ``keep_float32``


def layer_pattern(path: str) -> str:
    """Returns the pattern for a layer, by its path in Keras."""
    return LAYER + "/".join(map(re.escape, path.split("/")))


def scope_pattern(scope: str) -> str:
    """Returns the pattern for the nodes of a name scope that no layer in Keras opened.

    Without the ``$``, ``dense`` is also for ``dense_1``, which may be a second call of that layer.
    """
    return f"{layer_pattern(scope)}$"


def node_pattern(name: str) -> str:
    """Returns the pattern for one node."""
    return NODE + name


def any_matcher(patterns: Iterable[str]) -> Matcher:
    """Returns the predicate on names of nodes that is true where any of some patterns matches."""
    tests = list(map(matcher, patterns))
    return lambda node: any(test(node) for test in tests)


def write(
    path: AnyPath, patterns: Iterable[str], measured: Sequence[str], why: Mapping[str, str]
) -> None:
    """Writes a file of patterns.

    Args:
        path: the file, which is replaced if it is there.
        patterns: its lines.
        measured: what was measured, in lines of words; the first one gets the date.
        why: for some of the patterns, the reason in words.

    Raises:
        FileError: it cannot be written.
    """
    first, *others = measured
    lines = [f"{first}, {time.strftime('%Y-%m-%d')}", *others]
    lines.append(f"Read with {_setting(Path(path).name)}")
    text = [_comment(line) for line in lines]
    for pattern in patterns:
        if pattern in why:
            text += ["", _comment(why[pattern])]
        text.append(pattern)
    with files.writing(path):
        files.write(path, "\n".join([*text, ""]))


def written_message(path: AnyPath) -> str:
    """Says that a file of patterns is written, and how it is read."""
    return f"{path} is written. {_setting(path)} reads it"


def _setting(path: AnyPath) -> str:
    """Returns what to write in a shell so that a file of patterns is read."""
    return f"{variable_of('keep_float32')}={shlex.quote(file_of_patterns(path))}"


def _comment(words: str) -> str:
    """Writes words as one line: an error of TensorFlow has several, and colors."""
    words = re.sub(r"\s+", " ", words)
    return f"# {''.join(filter(str.isprintable, words)).strip()}"
