"""Each state of the trained weights has its own number, so that no outdated result is reused."""

import pytest
import torch

from groupwise_flow.weights import Weights


def written(module):
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(1.0)


def test_each_state_of_the_weights_has_its_own_number():
    module = torch.nn.Linear(2, 2)
    weights, numbers = Weights(module), []
    for _ in range(3):
        numbers.append(weights.number)
        assert weights.number == numbers[-1]
        written(module)
    with weights.temporary():
        numbers.append(weights.number)
    assert len(set(numbers)) == 4


def test_two_instances_never_share_a_number():
    module = torch.nn.Linear(2, 2)
    first, second = Weights(module), Weights(module)
    assert first.number != second.number


def test_temporary_weights_have_their_own_numbers_and_the_former_returns():
    """Also after as many writes: no result of a moving average is reused after the next update."""
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
