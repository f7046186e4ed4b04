import gc

import pytest

from amp_tf.hooks import state, xla
from amp_tf.reporting import reports
from tests.hooks.installing import uninstall


@pytest.fixture(autouse=True)
def told_anew():
    """Tells anew in each test what is told once in a process."""
    state.current().warned.clear()


@pytest.fixture
def xla_hook_off_afterwards():
    yield
    uninstall(xla)
    reports.reset()
    gc.collect()  # copies of functions live as long as those that call them
