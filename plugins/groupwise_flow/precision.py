"""Precision: what computes and what is stored in which dtype."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from groupwise_flow.adapter import Adapter

Precision = Literal["float32", "bf16", "fp16"]
HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


def stored(
    precision: Precision, adapter: type[Adapter], *, lora: bool
) -> Mapping[str, torch.dtype]:
    """The dtypes of a pipeline's parts, as diffusers' `torch_dtype` takes them.

    What is trained is in float32, and so is the autoencoder, whose activations overflow in fp16 and
    whose pictures lose shades in bf16; it is a small part.
    """
    half = HALF.get(precision, torch.float32)
    return {
        **dict.fromkeys(adapter.float32, torch.float32),
        adapter.trained: half if lora else torch.float32,
        "default": half,
    }


def computing(precision: Precision, device: torch.device) -> AbstractContextManager[Any]:
    """What the passes of the model that is trained run in."""
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, dtype=HALF[precision])


class InFloat32(TorchFunctionMode):
    """Inside, whatever is stored or asked for in half precision is computed in float32.

    Weights are widened one operation at a time, so it takes no second copy of a model.
    """

    paused: ClassVar[bool] = False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if self.paused:
            return func(*args, **(kwargs or {}))
        return func(*tree_map(_widened, args), **tree_map(_widened, dict(kwargs or {})))

    @classmethod
    def leave_alone(cls, module: nn.Module) -> None:
        """What a sharded module does before and after its pass, to gather weights, is not widened.

        To be called last, so that the module's own hooks lie between these.
        """

        def pause(*_: Any) -> None:
            cls.paused = True

        def resume(*_: Any) -> None:
            cls.paused = False

        for register in (module.register_forward_pre_hook, module.register_forward_hook):
            register(pause, prepend=True)
            register(resume)


def _widened(value: Any) -> Any:
    if isinstance(value, Tensor) and value.dtype in HALF.values():
        return value.float()
    return torch.float32 if isinstance(value, torch.dtype) and value in HALF.values() else value
