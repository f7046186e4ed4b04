import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import numpy as np
import pytest

from benchmarks.models import BENCHMARKS, SIZES, names


@pytest.mark.slow
@pytest.mark.parametrize("name", BENCHMARKS)
def test_each_model_learns_from_its_data_at_the_tiny_size(name):
    import keras

    keras.utils.set_random_seed(1)
    workload = BENCHMARKS[name].workload("tiny")
    model = workload.model()
    x, y = workload.data(8 * workload.batch, 0)
    model.compile(optimizer=workload.optimizer(), loss=workload.loss, jit_compile=False)
    losses = []
    while len(losses) < 2 or (losses[-1] >= 0.97 * losses[0] and len(losses) < 12):
        losses += model.fit(x, y, batch_size=workload.batch, verbose=0).history["loss"]
    assert np.isfinite(losses).all()
    assert losses[-1] < 0.97 * losses[0]


@pytest.mark.parametrize("name", BENCHMARKS)
def test_data_is_the_same_for_the_same_seed_and_differs_between_seeds(name):
    workload = BENCHMARKS[name].workload("tiny")

    def flat(seed):
        x, y = workload.data(4, seed)
        parts = x if isinstance(x, tuple) else (x,)
        assert all(len(part) == 4 for part in (*parts, y))
        return np.concatenate([part.ravel() for part in (*parts, y)])

    np.testing.assert_array_equal(flat(3), flat(3))
    assert (flat(3) != flat(4)).any()


def test_every_model_has_every_size_and_its_batch_is_in_the_sweep():
    for row in BENCHMARKS.values():
        assert tuple(row.sizes) == SIZES
        assert all(figures.batch in figures.batches for figures in row.sizes.values())


def test_unknown_names_and_sizes_are_answered_with_the_valid_ones():
    assert names("ncf, bert") == ["ncf", "bert"]
    assert names("all") == [name for name in BENCHMARKS if name not in ("hand_cast_mlp", "gru")]
    assert names("hand_cast_mlp") == ["hand_cast_mlp"]
    with pytest.raises(ValueError, match=r"No benchmark model is called nfc\. Valid names: .*ncf"):
        names("ncf,nfc")
    with pytest.raises(ValueError, match=r"ncf has no size 'huge'\. Valid sizes: tiny, small, real"):
        BENCHMARKS["ncf"].workload("huge")
