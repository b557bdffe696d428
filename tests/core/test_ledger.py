"""The ledger of draws in flight: what steps take, and that each draw is trained once."""

import heapq
import random

import pytest

from groupwise.experience.ledger import Draw, Ledger

SIZE = 6


def test_a_step_takes_the_oldest_version_first_then_the_lowest_number():
    ledger = Ledger()
    ledger.begin([0, 1, 2], 0)
    ledger.begin([3, 4], 1)
    ledger.complete([4, 2, 3, 0])
    assert not ledger.is_idle
    assert [draw.number for draw in ledger.take(3)] == [0, 2, 3]
    ledger.complete([1])
    assert ledger.is_idle
    assert [draw.number for draw in ledger.take(2)] == [1, 4]


def test_what_is_taken_counts_until_the_step_is_over():
    ledger = Ledger()
    ledger.begin(range(4), 0)
    ledger.complete(range(4))
    ledger.take(3)
    assert len(ledger) == 4
    ledger.give_up([1])
    assert (len(ledger), ledger.given_up) == (3, 1)
    ledger.trained()
    assert [draw.number for draw in ledger.untrained] == [3]


def test_no_draw_is_begun_or_taken_twice():
    ledger = Ledger()
    ledger.begin([0, 1], 0)
    with pytest.raises(ValueError, match="draw 1 was begun before"):
        ledger.begin([1], 0)
    with pytest.raises(ValueError, match="fewer than 1 draws are complete"):
        ledger.take(1)
    ledger.complete([0])
    ledger.take(1)
    with pytest.raises(ValueError, match="fewer than 1"):
        ledger.take(1)
    with pytest.raises(KeyError):
        ledger.complete([0])


def test_what_an_earlier_run_has_trained_is_not_begun_again():
    ledger = Ledger()
    ledger.restore([Draw(3, 0, is_complete=True)], anew=[1], newest=4)
    ledger.begin([1, 5], 1)
    for number in (1, 2, 3, 4):
        with pytest.raises(ValueError, match=f"draw {number} was begun before"):
            ledger.begin([number], 1)


@pytest.mark.parametrize("ahead", [0, 1, 2, 4])
@pytest.mark.parametrize("seed", range(20))
def test_each_draw_is_trained_or_given_up_once_whatever_is_complete_first(ahead, seed):
    """On a simulated clock, with draws of random length, and kills at random moments."""
    rng, ledger, now, steps = random.Random(seed), Ledger(), 0.0, 40
    running, trained, given_up, begun, step = [], [], [], 0, 0
    while step < steps:
        while len(ledger) < (ahead + 1) * SIZE:
            ledger.begin([begun], step)
            heapq.heappush(running, (now + rng.expovariate(1.0), begun))
            begun += 1
        if rng.random() < 0.05:  # a kill: what is complete is kept, the rest is drawn anew
            left = ledger.untrained
            ledger = Ledger()
            complete = [Draw(d.number, d.version, d.is_complete) for d in left if d.is_complete]
            anew = [draw.number for draw in left if not draw.is_complete]
            ledger.restore(complete, anew=anew, newest=begun - 1)
            ledger.begin(anew, step)
            running = [(now + rng.expovariate(1.0), number) for number in anew]
            heapq.heapify(running)
        if not ledger.has(SIZE):
            now, number = heapq.heappop(running)
            ledger.complete([number])
            continue
        taken = [draw.number for draw in ledger.take(SIZE)]
        flat = [number for number in taken if rng.random() < 0.1]
        ledger.give_up(flat)
        ledger.trained()
        given_up += flat
        trained += [number for number in taken if number not in flat]
        step, now = step + 1, now + rng.random()
    over = [*trained, *given_up, *(draw.number for draw in ledger.untrained)]
    assert sorted(over) == [*range(begun)]
    assert len(ledger) <= (ahead + 1) * SIZE
