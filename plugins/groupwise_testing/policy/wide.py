"""Wide: a policy's passes in float64, whatever dtypes its code names."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.weak import WeakTensorKeyDictionary

NARROW = (torch.float32, torch.float16, torch.bfloat16)


class Wide:
    """float64 copies of narrower tensors, which passes without gradients read instead.

    What a pass writes into a tensor goes to its copy, for this pass and later ones, until the
    tensor itself is changed.
    """

    def __init__(self) -> None:
        self._copies = WeakTensorKeyDictionary()

    @contextmanager
    def computing(self) -> Iterator[None]:
        """The context in which operations read copies, and narrower dtypes as float64."""
        # Calls are changed, since some compare the dtypes of their arguments; and kernels, since
        # some calls name a dtype in C++.
        with torch.no_grad(), _Kernels(self), _Calls(self):
            yield

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
        """The result of a function with wide arguments."""
        if func is torch.ops.aten.view.dtype:  # it reads bits
            return func(*args, **(kwargs or {}))
        return func(*self._widened(args), **self._widened(kwargs or {}))

    def _widened(self, value: Any) -> Any:
        # Not torch's tree_map, which takes longer than most operations on small tensors.
        kind = type(value)
        if kind is tuple or kind is list:
            return kind([self._widened(each) for each in value])
        if kind is dict:
            return {key: self._widened(each) for key, each in value.items()}
        if isinstance(value, torch.dtype):
            return torch.float64 if value in NARROW else value
        if not isinstance(value, Tensor) or value.dtype not in NARROW:
            return value
        version = 0 if value.is_inference() else value._version
        known, copy = self._copies.get(value, (None, None))
        if known != version:
            with _disable_current_modes():
                copy = value.double()
            self._copies[value] = version, copy
        return copy


class _Kernels(TorchDispatchMode):
    def __init__(self, wide: Wide) -> None:
        super().__init__()
        self.wide = wide

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.wide.call(func, args, kwargs)


class _Calls(TorchFunctionMode):
    def __init__(self, wide: Wide) -> None:
        super().__init__()
        self.wide = wide

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ == "__get__":  # an attribute, such as the version, is the tensor's own
            return func(*args, **(kwargs or {}))
        return self.wide.call(func, args, kwargs)
