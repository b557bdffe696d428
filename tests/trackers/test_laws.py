"""`groupwise.testing` has no check for trackers, and this plugin registers nothing else."""


def test_nothing_is_registered_that_has_a_check(registered):
    assert registered("trackers") == {}
