"""Users' classes whose ``apply_gradients`` takes fewer arguments than that of the library.

No TensorFlow here.
"""


def pairs_alone(base):
    class Own(base):
        def apply_gradients(self, grads_and_vars):
            return super().apply_gradients(grads_and_vars)

    return Own


def without_name(base):
    class Own(base):
        def apply_gradients(self, grads_and_vars, **kwargs):
            return super().apply_gradients(grads_and_vars, **kwargs)

    return Own


def keeping_arguments(base):
    class Own(base):
        def apply_gradients(self, grads_and_vars, **kwargs):
            return super().apply_gradients(grads_and_vars)

    return Own


def with_name_alone(base):
    class Own(base):
        def apply_gradients(self, grads_and_vars, name=None):
            return super().apply_gradients(grads_and_vars, name=name)

    return Own


OWN = {
    make.__name__: make for make in (pairs_alone, without_name, keeping_arguments, with_name_alone)
}
