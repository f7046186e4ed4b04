"""The shapes of a graph for the batch of its call."""

from amp_tf.cpu.open_batches import at_open_batch
from amp_tf.graph.reader import read_graph
from amp_tf.graph.sizes import NOMINAL_BATCH, KnownShapes
from amp_tf.graph.templates import Templates
from tests.small_graphs import graph

PRODUCTS = frozenset({"MatMul"})
WORDS = """
    x = _Arg() T=float32 index=0 _user_specified_name='x'
    size = Const() dtype=int32 value=int32[]*-1
    w = Const() dtype=float32 value=float32[4, 6]*1
    words = Reshape(x, size)
    product = MatMul(words, w)
    active = Relu(product)
    sentences = Reshape(active, size)
"""
KNOWN = {
    "x": (-1, 8, 4),
    "size": (2,),
    "w": (4, 6),
    "words": (-1, 4),
    "product": (-1, 6),
    "active": (-1, 6),
    "sentences": (-1, 8, 6),
}


def _filled(given, lines=WORDS, **changes):
    """The batch size, and the shapes for it."""
    known = {**KNOWN, **changes}
    view = read_graph(graph(lines), Templates())
    shapes = KnownShapes({name: [shape] for name, shape in known.items()})
    found = at_open_batch(view, shapes, PRODUCTS, given)
    if not found:
        return None
    [(batch, at_batch)] = found.items()
    return batch, {name: at_batch.output_shapes(name)[0] for name in known}


def test_the_rows_of_words_are_those_of_the_sentences_of_the_call():
    batch, shapes = _filled([(3, 8, 4)])
    assert batch == 3
    assert shapes == {
        "x": (3, 8, 4),
        "size": (2,),
        "w": (4, 6),
        "words": (24, 4),
        "product": (24, 6),
        "active": (24, 6),
        "sentences": (3, 8, 6),
    }


def test_a_batch_that_no_call_names_is_assumed():
    batch, shapes = _filled([])
    assert batch == NOMINAL_BATCH
    assert shapes["product"] == (8 * NOMINAL_BATCH, 6)
    assert _filled([None]) == (batch, shapes)
    assert _filled([(3, 8)]) == (batch, shapes), "of another function"


def test_elements_are_counted_through_a_shape_that_nothing_tells():
    _, shapes = _filled([(3, 8, 4)], words=(-1, -1), product=(-1, 6))
    assert shapes["words"] == (-1, -1)
    _, shapes = _filled([(3, 8, 4)], active=(-1, -1))
    assert shapes["active"] == (-1, -1)
    assert shapes["sentences"] == (3, 8, 6)


def test_known_shapes_stay_as_they_are():
    assert _filled([(3, 8, 4)], x=(3, 8, 4), words=(24, 4), product=(24, 6)) is None


def test_a_product_with_another_open_dimension_is_weighed_as_before():
    assert _filled([(3, 8, 4)], product=(-1, -1)) is None
