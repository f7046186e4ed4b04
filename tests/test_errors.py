from __future__ import annotations

import copy
import pickle

import pytest

import amp_tf
from amp_tf.errors import AmpError, ConfigError, GraphError, OpListError, RewriteError

CLASSES = (ConfigError, OpListError, GraphError, RewriteError)


def test_the_message_says_where_then_what_then_what_to_do():
    error = GraphError("input 1 expects float32", where="node 'm'", fix="Export it again")
    assert str(error) == "node 'm': input 1 expects float32. Export it again."


def test_a_message_without_a_place_starts_with_what_is_wrong():
    assert str(AmpError("it is broken", fix="Mend it")) == "it is broken. Mend it."


def test_a_message_without_a_remedy_still_ends_with_a_full_stop():
    assert str(AmpError("it is broken", where="here")) == "here: it is broken."


@pytest.mark.parametrize("cls", CLASSES)
def test_every_error_is_an_amp_error_and_public(cls):
    assert issubclass(cls, AmpError)
    assert getattr(amp_tf, cls.__name__) is cls


@pytest.mark.parametrize(
    ("cls", "builtin"),
    [
        (ConfigError, ValueError),
        (OpListError, ValueError),
        (GraphError, ValueError),
        (RewriteError, RuntimeError),
    ],
)
def test_an_error_is_also_the_builtin_that_a_caller_would_expect(cls, builtin):
    assert issubclass(cls, builtin)


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("carry", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy], ids=["pickle", "copy"])
def test_an_error_survives_the_way_between_processes(cls, carry):
    carried = carry(cls("what", where="where", fix="fix"))
    assert type(carried) is cls
    assert (carried.what, carried.where, carried.fix) == ("what", "where", "fix")


def test_control_characters_are_written_out_and_lines_stay():
    error = AmpError("holds '\x1b[31m'\nand more", where="a\tb", fix="Größe – 漢字")
    assert str(error) == "a\\tb: holds '\\x1b[31m'\nand more. Größe – 漢字."
