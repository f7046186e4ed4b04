import copy
import pickle

import pytest

import amp_tf
from amp_tf.errors import (
    AmpError,
    ConfigError,
    GraphError,
    OpListError,
    RewriteError,
    first_line,
)

CLASSES = (ConfigError, OpListError, GraphError, RewriteError)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            GraphError("input 1 expects float32", where="node 'm'", fix="Export it again"),
            "node 'm': input 1 expects float32. Export it again.",
        ),
        (AmpError("it is broken", fix="Mend it"), "it is broken. Mend it."),
        (AmpError("it is broken", where="here"), "here: it is broken."),
        (  # control characters are written out, and lines stay
            AmpError("holds '\x1b[31m'\nand more", where="a\tb", fix="Größe – 漢字"),
            "a\\tb: holds '\\x1b[31m'\nand more. Größe – 漢字.",
        ),
    ],
)
def test_the_message_says_where_then_what_then_what_to_do(error, message):
    assert str(error) == message


@pytest.mark.parametrize("cls", CLASSES)
def test_every_error_is_public_an_amp_error_and_the_builtin_that_a_caller_would_expect(cls):
    assert issubclass(cls, AmpError)
    assert issubclass(cls, RuntimeError if cls is RewriteError else ValueError)
    assert getattr(amp_tf, cls.__name__) is cls


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize(
    "carry", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy], ids=["pickle", "copy"]
)
def test_an_error_survives_the_way_between_processes(cls, carry):
    carried = carry(cls("what", where="where", fix="fix"))
    assert type(carried) is cls
    assert (carried.what, carried.where, carried.fix) == ("what", "where", "fix")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("one\ntwo"), "one"),
        (ValueError("\n  one  \n"), "one"),
        (ValueError(), "ValueError"),
        (KeyError(" "), "' '"),
        (
            ValueError(
                "Graph execution error:\n\nDetected at node Lookup defined at (most recent call "
                "last):\n  File 'a.py', line 3\n\nNode: 'Lookup'\nno such file\n\t [[{{node Look…"
            ),
            "no such file",
        ),
        (
            ValueError(
                "Exception encountered when calling Functional.call().\n\n\x1b[1mNo such input."
                "\x1b[0m\n\nArguments received by Functional.call():\n  • inputs=None\n  • mask=no"
            ),
            "No such input.",
        ),
        (
            ValueError(
                "in user code:\n\n    File 'a.py', line 3, in step\n\n    TypeError: it has a Func"
                "\n\n    Arguments received by Functional.call():\n      • kwargs=None"
            ),
            "TypeError: it has a Func",
        ),
    ],
)
def test_the_first_line_of_an_error_is_never_empty(error, line):
    assert first_line(error) == line
