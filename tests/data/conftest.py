"""Settings of the tests of data sets: the small policies of the core's tests, on one thread."""

from tests.core.conftest import _close_trainers, _one_thread, lab

__all__ = ["_close_trainers", "_one_thread", "lab"]
