"""A number for each state of the trained weights, so that nothing computed by others is reused."""

import pytest
import torch

from groupwise_flow.weights import Weights


def written(module):
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(1.0)


def test_a_state_has_one_number_and_no_other_state_has_it():
    module = torch.nn.Linear(2, 2)
    weights, seen = Weights(module), []
    for _ in range(3):
        seen.append(weights.number)
        assert weights.number == seen[-1]
        written(module)
    with weights.temporary():
        seen.append(weights.number)
    assert len(set(seen)) == 4


def test_no_number_is_another_process_s():
    module = torch.nn.Linear(2, 2)
    first, second = Weights(module), Weights(module)
    assert first.number != second.number


def test_lent_weights_have_numbers_of_their_own_and_the_former_come_back():
    """As many writes later, too: what was computed by an average is not the next update's."""
    module = torch.nn.Linear(2, 2)
    weights = Weights(module)
    before = weights.number
    with weights.temporary():
        written(module)
        inside = weights.number
        written(module)
    assert weights.number == before != inside
    written(module)
    assert weights.number not in (before, inside)
    with pytest.raises(ZeroDivisionError), weights.temporary():
        raise ZeroDivisionError
    again = weights.number
    with weights.temporary():
        assert weights.number not in (again, before, inside)
    assert weights.number == again
