"""What `torch.cuda` answers while the simulated device exists."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from recorded import Graph, capture
from torch import Tensor


@contextmanager
def cuda_answers(device: Any) -> Iterator[None]:
    """Patches torch.cuda to report the device, and `torch.tensor` to use the dispatcher.

    device: a `simulated.Device`.
    """
    torch._C._ensureCUDADeviceGuardSet()  # a guard that does nothing without a driver
    ignored = ("_lazy_init", "set_device", "manual_seed", "manual_seed_all", "empty_cache")
    answers: dict[str, Callable[..., Any]] = {
        **{name: lambda *args: None for name in ignored},  # one lambda each: torch compares them
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "is_bf16_supported": lambda *args, **kwargs: True,
        "CUDAGraph": lambda: Graph(lambda: device.count(launches=1)),
        "graph": lambda graph, **options: capture(device, graph, **options),
        "get_sync_debug_mode": lambda: 2 * device.strict,
        "set_sync_debug_mode": lambda mode: setattr(device, "strict", mode in (2, "error")),
        "synchronize": lambda _=None: device.count(reads=1),
        "get_device_name": lambda _=None: "simulated",
        "get_device_properties": lambda _=None: SimpleNamespace(total_memory=2**34),
        "max_memory_allocated": lambda _=None: 0,
        "max_memory_reserved": lambda _=None: 0,
        "reset_peak_memory_stats": lambda _=None: None,
    }
    swap = torch.__future__.get_swap_module_params_on_conversion()
    with ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(patch.object(torch.cuda, name, answer))
        for name in ("tensor", "as_tensor"):
            stack.enter_context(patch.object(torch, name, _then_moved(getattr(torch, name))))
        # Moved modules keep the identity of their parameters, as optimizers and ties require.
        torch.__future__.set_swap_module_params_on_conversion(True)
        stack.callback(torch.__future__.set_swap_module_params_on_conversion, swap)
        yield


def _then_moved(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wraps torch.tensor or torch.as_tensor, whose copy bypasses the dispatcher."""

    def made(data: Any, *, dtype: torch.dtype | None = None, device: Any = None) -> Tensor:
        if isinstance(data, Tensor):
            return data.to(device=device or data.device, dtype=dtype or data.dtype)
        tensor = make(data, dtype=dtype)
        return tensor if device is None else tensor.to(device)

    return made
