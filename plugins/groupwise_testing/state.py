"""The law of a part's state, for algorithms and rewards."""

from typing import Any

import torch

from groupwise.storage.state import HasState, decode, encode

NAME = "its state survives a checkpoint"
HINT = "`state_dict` and `load_state_dict`: numbers, strings, tensors, lists and mappings"


def has_state(part: Any) -> bool:
    """Whether a part keeps something from one step to the next."""
    return isinstance(part, HasState)


def lost_in_checkpoint(part: Any, restored: Any, who: str) -> str | None:
    """How the state of a part differs once `restored` has loaded it; None if it does not, or if
    the part has no state."""
    if not has_state(part):
        return None
    saved = encode(part.state_dict(), who)
    restored.load_state_dict(decode(*saved))
    again = encode(restored.state_dict(), who)
    same = saved[0] == again[0] and all(
        torch.equal(value, again[1][name]) for name, value in saved[1].items()
    )
    return None if same else f"saved {saved[0]}, and after loading it is {again[0]}"
