"""The patches of automatic loss scaling as such: in place once, taken back whole, harmless when they fail."""

import keras
import numpy as np
import tensorflow as tf

import amp_tf
from amp_tf.config import AmpConfig
from amp_tf.hooks import loss_scaling
from amp_tf.loss_scaling import is_loss_scaled, ledger
from tests.hooks.loss_scaling.setup import X, Y, installed, make_model

v1 = tf.compat.v1


def test_case_30_with_bfloat16_nothing_is_even_patched(library):
    before = library.Model.compile
    assert not loss_scaling.install(AmpConfig(precision="bfloat16"), lambda: True)
    assert library.Model.compile is before


def test_patches_are_idempotent_and_reversible(library):
    owners = [library.Model, library.optimizers.Optimizer, v1.train.Optimizer, v1.train.Saver]
    names = ["compile", "apply_gradients", "compute_gradients", "restore"]
    before = [getattr(owner, name) for owner, name in zip(owners, names, strict=True)]
    with installed():
        first = [getattr(owner, name) for owner, name in zip(owners, names, strict=True)]
        loss_scaling.install(AmpConfig(precision="float16"), lambda: True)
        assert [getattr(owner, name) for owner, name in zip(owners, names, strict=True)] == first
        assert all(a is not b for a, b in zip(first, before, strict=True))
    loss_scaling.uninstall()
    assert [getattr(owner, name) for owner, name in zip(owners, names, strict=True)] == before


def test_what_somebody_else_put_around_a_patch_stays_and_wraps_nothing_when_it_is_off(library):
    owner = next(cls for cls in library.Model.__mro__ if "compile" in vars(cls))
    before, calls = vars(owner)["compile"], []
    try:
        with installed():
            ours = owner.compile

            def theirs(self, *args, **kwargs):
                calls.append(self)
                return ours(self, *args, **kwargs)

            owner.compile = theirs
        assert owner.compile is theirs
        model = make_model(library)
        model.compile("sgd", "mse")
        assert calls == [model]
        assert not is_loss_scaled(model.optimizer)
    finally:
        owner.compile = before


def test_a_failure_in_the_hook_leaves_the_program_alone_and_says_so_once(log):
    def broken():
        raise OSError("no devices")

    loss_scaling.install(AmpConfig(precision="float16"), broken)
    try:
        for _ in range(2):
            model = make_model(keras)
            model.compile("sgd", "mse")
            model.fit(X, Y, verbose=0)
    finally:
        loss_scaling.uninstall()
    assert not is_loss_scaled(model.optimizer)
    warnings = log("Model.compile: automatic loss scaling failed (OSError: no devices)")
    assert len(warnings) == 1
    assert "Wrap the optimizer in amp_tf.LossScaleOptimizer by hand" in warnings[0]


def test_the_default_predicate_asks_the_devices_of_this_process():
    on_cpu = not tf.config.list_physical_devices("GPU")
    assert loss_scaling.resolves_to_float16(AmpConfig(precision="float16"))
    assert loss_scaling.resolves_to_float16(AmpConfig()) is not on_cpu


def test_the_line_at_exit_tells_the_scale_and_the_skipped_steps():
    ledger.forget()
    with installed():
        model = make_model(keras)
        model.compile("sgd", "mse")
        model.fit(np.concatenate([X, X * np.nan]), np.concatenate([Y, Y]), verbose=0, shuffle=False)
    assert "loss scale 2^14, 1 of 2 steps skipped" in loss_scaling.describe()


def test_the_line_at_exit_tells_two_optimizers_of_one_name_apart():
    ledger.forget()
    with installed():
        for scale in (2.0, 4.0):
            optimizer, weight = (
                amp_tf.LossScaleOptimizer(keras.optimizers.SGD(name="sgd"), scale),
                keras.Variable([1.0]),
            )
            optimizer.apply([optimizer.scale_loss(tf.constant([1.0]))], [weight])
    assert loss_scaling.describe() == (
        "sgd 1: loss scale 2^1, 0 of 1 steps skipped; sgd 2: loss scale 2^2, 0 of 1 steps skipped"
    )
