"""Returns: a turn has the credit of what follows it.

When to use it: turns have rewards of their own, and what a turn is worth shows later, too, as in
most games and with most tools. A turn has no credit for rewards that came before it, on which it
had no influence. With `discount` below 1, what comes later counts less.

Where implementations differ: the baseline of a turn is the mean of the group's returns from the
same turn on, where an episode that is over by then counts with its outcome. So the baseline does
not depend on the turn itself or on what follows it, and the expected gradient is that of the
expected return, times (G - 1)/G in groups of G, also where episodes differ in length.
Without rewards of turns and a discount it is the outcome's advantage. DeepSeekMath and GTPO
(arXiv:2511.14846) normalise the rewards, or returns, of all turns of a group together.
"""

from typing import Any

from torch import Tensor

from groupwise.advantages import group_relative
from groupwise.algorithms.credit.table import Table


def turn_returns(table: Table, outcome: Tensor, *, discount: float, **comparison: Any) -> Tensor:
    """[B, K]: A_k = (R_k - mean of the group's R_k) / (std + epsilon).

    R_k = r_k + discount R_(k+1).
    outcome: [B], added to the reward of the last turn; NaN for none: then A is 0. comparison: as of
    `group_relative`.
    """
    returns = table.returns(outcome, discount)
    relative = group_relative(returns.flatten(), table.same_turn.flatten(), **comparison)
    return relative.view_as(returns)
