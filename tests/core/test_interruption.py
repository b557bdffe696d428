"""Signals while nothing may be interrupted."""

import signal

import pytest

from groupwise.run.interruption import Interruption


@pytest.mark.parametrize("further", [[], [signal.SIGTERM], [signal.SIGHUP, signal.SIGTERM]])
def test_a_second_ctrl_c_counts_whatever_follows_it(further: list[signal.Signals]) -> None:
    interruption = Interruption(lambda _: None)

    def signalled() -> None:
        with interruption.held():
            for number in (signal.SIGINT, signal.SIGINT, *further):
                interruption.note(number, None)

    with pytest.raises(KeyboardInterrupt):
        signalled()
    assert interruption
