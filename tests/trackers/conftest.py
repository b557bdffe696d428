"""Settings of the tests of trackers: the small policies of the core's tests."""

from types import SimpleNamespace

import pytest
from tests.core.conftest import lab_of_tests


@pytest.fixture(scope="session")
def lab() -> SimpleNamespace:
    return lab_of_tests
