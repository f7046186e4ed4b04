"""Whether tensors of a traced graph come from a variable: exact through calls and captures, cautious at conditions."""

import pytest
import tensorflow as tf

from amp_tf.loss_scaling.recognizing import lineage

W, SCALE, OTHER = (tf.Variable(value) for value in (1.0, 2.0, 3.0))
v1 = tf.compat.v1


@tf.function
def scaled_inside(x):
    return x * SCALE


@tf.function
def two_results(x):
    return x + OTHER, x * SCALE


@tf.function
def only_logs(x):
    tf.print(SCALE)
    return x * x


def gradient_of(loss_of):
    with tf.GradientTape() as tape:
        loss = loss_of(W * 3.0)
    return tape.gradient(loss, W)


def in_a_branch(value):
    """Asks inside a branch about a value from outside it."""
    answers = []

    def branch():
        answers.append(lineage.depends_on([value], SCALE))
        return 0

    tf.cond(tf.random.uniform([]) < 2.0, branch, lambda: 0)
    return answers[0]


YES = {
    "read": lambda: tf.convert_to_tensor(SCALE),
    "product": lambda: tf.sin(W) * SCALE,
    "one of several": lambda: [None, tf.sin(W), W / SCALE],
    "values of slices": lambda: tf.IndexedSlices(W * SCALE[tf.newaxis], tf.constant([0])),
    "in a function": lambda: scaled_inside(W),
    "argument of a function": lambda: tf.function(lambda x: x * x)(SCALE * W),
    "one result of a function": lambda: two_results(W)[1],
    "gradient": lambda: gradient_of(lambda x: x * x * SCALE),
    "gradient through a function": lambda: gradient_of(lambda x: scaled_inside(x) ** 2),
    "loop": lambda: tf.while_loop(lambda i: i < 3.0, lambda i: [i * SCALE], [W * 1.0])[0],
}
NO = {
    "unread": lambda: tf.sin(W) * OTHER,
    "constant": lambda: tf.constant(1.0),
    "nothing": lambda: [None],
    "other result of a function": lambda: two_results(W)[0],
    "function that logs": lambda: only_logs(W),
    "gradient through a function that logs": lambda: gradient_of(only_logs),
    "gradient beside a reading": lambda: (tf.print(SCALE), gradient_of(lambda x: x * x))[1],
}


@pytest.mark.parametrize("case", [*YES, *NO])
def test_what_a_traced_tensor_comes_from(case):
    answers = []

    @tf.function
    def step():
        made = (YES | NO)[case]()
        answers.append(lineage.depends_on(made, SCALE))

    step()
    assert answers == [case in YES]


def test_tensors_of_two_graphs_with_one_name_are_told_apart():
    answers = []

    @tf.function
    def step():
        outer = tf.multiply(W, SCALE, name="cond/product")
        sine = tf.sin(outer)

        def branch():
            inner = tf.multiply(W, OTHER, name="product")
            assert inner.name == outer.name
            answers.append(lineage.depends_on([sine, tf.cos(inner)], SCALE))
            return 0

        tf.cond(tf.random.uniform([]) < 2.0, branch, lambda: 0)

    step()
    assert answers == [True]


@pytest.mark.parametrize("case", ["product", "unread"])
def test_a_captured_tensor_is_followed_into_the_graph_around(case):
    answers = []

    @tf.function
    def step():
        answers.append(in_a_branch((YES | NO)[case]()))

    step()
    assert answers == [case in YES]


def test_a_tensor_that_waits_for_a_reading_does_not_come_from_it():
    @tf.function
    def step():
        with tf.control_dependencies([tf.convert_to_tensor(SCALE)]):
            return lineage.depends_on([tf.identity(W)], SCALE)

    assert not step()


def test_a_variable_of_several_replicas_is_found_on_each():
    answers = []
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        scale, other = tf.Variable(2.0), tf.Variable(3.0)

    @tf.function
    def step():
        answers.extend(lineage.depends_on([variable * 2.0], scale) for variable in (scale, other))

    strategy.run(step)
    assert answers == [True, False]


def test_graphs_of_tf1_are_walked_loops_included():
    with tf.Graph().as_default():
        scale = v1.get_variable("scale", initializer=2.0, use_resource=True)
        w = v1.get_variable("w", initializer=1.0, use_resource=True)
        v1.disable_control_flow_v2()
        try:
            looped = v1.while_loop(lambda i: i < 3.0, lambda i: i * 2.0, [w + 0.0])
        finally:
            v1.enable_control_flow_v2()
        assert lineage.depends_on(v1.gradients(w * w * scale, [w]), scale)
        assert not lineage.depends_on([*v1.gradients(w * w, [w]), looped], scale)


def test_eager_tensors_have_no_record():
    assert not lineage.depends_on([W * SCALE], SCALE)
