"""Each state of the trained weights has its own number, so that no outdated result is reused."""

import pytest
import torch

from groupwise_flow.model.versions import Versions


def written(module):
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(1.0)


def test_each_state_of_the_weights_has_its_own_number():
    module = torch.nn.Linear(2, 2)
    versions, numbers = Versions(module), []
    for _ in range(3):
        numbers.append(versions.number)
        assert versions.number == numbers[-1]
        written(module)
    with versions.temporary():
        numbers.append(versions.number)
    assert len(set(numbers)) == 4


def test_two_instances_never_share_a_number():
    module = torch.nn.Linear(2, 2)
    first, second = Versions(module), Versions(module)
    assert first.number != second.number


def test_temporary_weights_have_their_own_numbers_and_the_former_returns():
    """Also after as many writes: no result of a moving average is reused after the next update."""
    module = torch.nn.Linear(2, 2)
    versions = Versions(module)
    before = versions.number
    with versions.temporary():
        written(module)
        inside = versions.number
        written(module)
    assert versions.number == before != inside
    written(module)
    assert versions.number not in (before, inside)
    with pytest.raises(ZeroDivisionError), versions.temporary():
        raise ZeroDivisionError
    again = versions.number
    with versions.temporary():
        assert versions.number not in (again, before, inside)
    assert versions.number == again
