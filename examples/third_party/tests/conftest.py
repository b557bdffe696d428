from typing import Any

import pytest
from groupwise_controller.policy import Controller
from groupwise_controller.prompts import Targets


@pytest.fixture
def policy() -> Controller:
    return Controller(Controller.Config(horizon=24, hidden=8, std=1.0))


@pytest.fixture
def rows() -> list[dict[str, Any]]:
    source = Targets()
    return [source[index] for index in range(12)]
