"""Tests that fail with amp_tf alone and are no defect of it, each with its reason."""

from __future__ import annotations

import re

#: A pattern of tests, a pattern of the types under which they fail, and why.
NAMED = (
    (
        "DistributeTest::test_correctness_with_fit_and_regularizer"
        "|MultiOptimizerTest::test_multi_optimizer_with_model_fit"
        "|TestFitLRSchedulesFlow::test_fit_lr_correctness"
        "|TestTrainer::test_(nested_inputs|on_batch_methods_)"
        "|DatasetCreatorModelFitTest::testModelFitWithNormalizationLayer",
        "float16",
        "The first steps are skipped, because 2^15 times their gradients is infinite; without loss "
        "scaling the test is tolerated.",
    ),
    (
        "ApproxTopkTest::test_mips",
        "b?float16",
        "It ranks by a product: those that are nearly equal change places.",
    ),
    (
        "JitLaunchTest::testMnistForwardFunc",
        "b?float16",
        "A softmax of products near 200, whose rounding is up to .5 in bfloat16, .06 in float16.",
    ),
    (
        "DepthwiseConv2DTest::testDepthwiseConv2D",
        "float16",
        "The results, up to 460,800, are above 65,504, the largest of float16.",
    ),
    (
        "StackedRNNTest::test_statefullness_",
        "float16",
        "The product's values, 136,368 and more, are above 65,504, the largest of float16.",
    ),
    (
        "GaussianProcessStaticTest::test_gradient_",
        "b?float16",
        "The gradient of distances that a product makes cancels: with all products, and nothing "
        "else, in 16 bit it is as wrong.",
    ),
    (
        "TestSpectrogram::test_spectrogram_error",
        "b?float16",
        "It counts angles of a convolution's results that are off by .0005; one rounding is more.",
    ),
    (
        "ActorDistributionNetworkTest::testDropoutFCLayersWithConvTrainingFalse",
        "b?float16",
        "The first call makes the variables and runs eagerly, in float32, which the others are "
        "compared with.",
    ),
    (
        "GlobalShuffleCheckpointTest::",
        "b?float16",
        "Others of these tests fail in each run, in float32, too: the order is random.",
    ),
    (
        "CoreLayersTest::test_dense_output_v2",
        "b?float16",
        "It compares a product's results one by one, also one near zero, whose terms cancel.",
    ),
    (
        "BruteForce(Retrieval)?Test::test_brute_force",
        "b?float16",
        "It ranks candidates by a product: those whose scores are nearly equal change places.",
    ),
)


def reason(test: str, mode: str) -> str:
    """Why a test may fail; "" if it may not."""
    for tests, types, why in NAMED:
        if re.search(tests, test) and re.fullmatch(types, mode):
            return why
    return ""
