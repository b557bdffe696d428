"""Precision: the dtypes of computation and of stored weights."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch
from diffusers import ModelMixin
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from groupwise.kit.errors import UserError, first_line
from groupwise_flow.adapter import Adapter
from groupwise_flow.settings import Precision

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


def stored(
    precision: Precision, adapter: type[Adapter], trained: Sequence[str], *, lora: bool
) -> Mapping[str, torch.dtype]:
    """The dtypes of a pipeline's components, as diffusers' `torch_dtype` takes them.

    trained: names of the components that are trained, whose weights are float32. So is the
    autoencoder: its activations overflow in fp16, its pictures lose shades in bf16, and it is
    small.
    """
    half = HALF.get(precision, torch.float32)
    return {
        **dict.fromkeys(adapter.float32, torch.float32),
        **dict.fromkeys(trained, half if lora else torch.float32),
        "default": half,
    }


def cast(part: nn.Module, dtype: torch.dtype) -> None:
    """Store a model in a dtype as its `from_pretrained` would: some weights stay in float32.

    A class names those that a half dtype would spoil, as T5's `wo`, which overflows in fp16. `to`
    casts these, too.
    """
    kept = {*(getattr(part, "_keep_in_fp32_modules_strict", None) or ())}
    if dtype == torch.float16 or isinstance(part, ModelMixin):
        kept |= {*(getattr(part, "_keep_in_fp32_modules", None) or ())}
    for name, tensor in (*part.named_parameters(), *part.named_buffers()):
        if tensor.is_floating_point():
            stays = not kept.isdisjoint(name.split("."))
            tensor.data = tensor.data.to(torch.float32 if stays else dtype)


def computing(precision: Precision, device: torch.device) -> AbstractContextManager[Any]:
    """The context of the trained model's passes: autocast in half precision."""
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, dtype=HALF[precision])


def check_computes(precision: Precision, device: torch.device) -> None:
    """Raise UserError for a device that does not compute in this precision."""
    if precision == "float32":
        return
    reason = "autocast left its product in float32"
    try:
        with warnings.catch_warnings(), computing(precision, device):
            warnings.simplefilter("ignore")  # of an autocast that is then switched off
            square = torch.ones(2, 2, device=device)
            done = (square @ square).dtype == HALF[precision]
    except (RuntimeError, NotImplementedError) as error:
        done, reason = False, first_line(error)
    if not done:
        others = " or ".join(name for name in ("float32", *HALF) if name != precision)
        raise UserError(
            f"policy.precision: the device {str(device)!r} does not compute in {precision} "
            f"({reason}); set {others}"
        )


class InFloat32(TorchFunctionMode):
    """The context in which half-precision tensors are computed with in float32.

    Weights are cast one operation at a time, so there is no second copy of the model.
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
        return func(*tree_map(_to_float32, args), **tree_map(_to_float32, dict(kwargs or {})))

    @classmethod
    def exempt(cls, module: nn.Module) -> None:
        """Exempt the hooks with which FSDP gathers a module's weights.

        Call it after `fully_shard`, so that FSDP's hooks run between the two registered here.
        """

        def pause(*_: Any) -> None:
            cls.paused = True

        def resume(*_: Any) -> None:
            cls.paused = False

        for register in (module.register_forward_pre_hook, module.register_forward_hook):
            register(pause, prepend=True)
            register(resume)


def _to_float32(value: Any) -> Any:
    if isinstance(value, Tensor) and value.dtype in HALF.values():
        return value.float()
    return torch.float32 if isinstance(value, torch.dtype) and value in HALF.values() else value
