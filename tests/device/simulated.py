"""A simulated accelerator: raises where CUDA would, and counts the host's waits, without a GPU.

    policy = ...                            # load models first, in CPU memory
    with Device() as device:
        groupwise.train(policy=policy, ...)
    print(device.counts)

Inside the context `torch.cuda` reports one device. A tensor moved to it has the device `cuda:0`,
keeps its values in CPU memory, and raises in operations with CPU tensors as a real one would.

How: a tensor of the device is a wrapper. Its C++ side is on `meta`, so that autograd needs no
driver; its Python side reports `cuda:0`; every operation runs on its content, an ordinary tensor.
So results are those of the CPU's kernels. Not simulated are kernels that only a GPU has, dtypes
that it lacks, `torch.autocast("cuda")`, memory and time. As it patches parts of torch, use it in a
process of its own.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Self
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten
CUDA = torch.device("cuda", 0)
COPIES = {aten._to_copy.default, aten.copy_.default}
INDEXING = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default}
INDEXING |= {aten._index_put_impl_.default, aten._unsafe_index.Tensor}
TAKES_NUMBERS = {aten.fill_.Tensor, aten.masked_fill.Tensor, aten.masked_fill_.Tensor}
"""Like pointwise operations they accept a CPU tensor without dimensions as a number."""
WITHOUT_DROPOUT = {aten._scaled_dot_product_flash_attention_for_cpu.default}
"""Draws for dropout only, which no pass has."""
WAITING = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


@dataclass
class Counts:
    """Operations that make the host wait.

    reads: of values: `item`, `tolist`, a bool, a copy to the CPU, and every result whose size
        depends on values (`nonzero`, `unique`, a bool mask as an index).
    uploads: copies to the device; from pageable memory the host waits for those, too.
    """

    reads: int = 0
    uploads: int = 0

    @property
    def waits(self) -> int:
        return self.reads + self.uploads


class Device(TorchDispatchMode):
    """The context in which `cuda` exists; `counts` holds the waits since its beginning."""

    current: "Device | None" = None

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counts()
        self._lock = threading.Lock()  # rewards run in other threads
        self._undo = ExitStack()

    def __enter__(self) -> Self:
        self._undo.enter_context(_cuda_answers())
        Device.current = self
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        Device.current = None
        self._undo.close()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        return _run(func, args, kwargs or {})

    def count(self, *, reads: int = 0, uploads: int = 0) -> None:
        with self._lock:
            self.counts.reads += reads
            self.counts.uploads += uploads

    def during(self, call: Callable[[], Any]) -> Counts:
        """The waits of a call."""
        before, self.counts = self.counts, Counts()
        call()
        cost = self.counts
        self.counts = Counts(before.reads + cost.reads, before.uploads + cost.uploads)
        return cost


class OnDevice(Tensor):
    """A tensor of the device; `content` holds its values."""

    content: Tensor

    @staticmethod
    def __new__(cls, content: Tensor) -> Self:
        self: Self = Tensor._make_wrapper_subclass(
            cls,
            content.size(),
            strides=content.stride(),
            storage_offset=content.storage_offset(),
            dtype=content.dtype,
            device="meta",
        )
        self.content = content
        return self

    device = property(lambda self: CUDA)
    is_cuda = property(lambda self: True)
    is_meta = property(lambda self: False)

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        return _run(func, args, kwargs or {})

    # These bypass the dispatcher, or would see the C++ side there.

    def to(self, *args: Any, **kwargs: Any) -> Tensor:
        if not kwargs.get("copy", False):
            plain = {name: value for name, value in kwargs.items() if name != "copy"}
            device, dtype, _, memory = torch._C._nn._parse_to(*args, **plain)
            on_device = device is None or device.type == "cuda"
            if on_device and dtype in (None, self.dtype) and memory is None:
                return self
        return super().to(*args, **kwargs)

    def tolist(self) -> Any:
        _device().count(reads=1)
        return self.content.tolist()

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("a tensor of cuda:0 has no numpy array; copy it to the CPU first")

    def new_tensor(self, data: Any, **kwargs: Any) -> Tensor:
        return torch.tensor(data, **{"dtype": self.dtype, "device": CUDA, **kwargs})

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if id(self) not in memo:
            copied = OnDevice(self.content.clone()).requires_grad_(self.requires_grad)
            copied._is_param = isinstance(self, torch.nn.Parameter)
            memo[id(self)] = copied
        return memo[id(self)]

    def data_ptr(self) -> int:
        return self.content.data_ptr()

    def untyped_storage(self) -> Any:
        return self.content.untyped_storage()

    def __repr__(self, **_: Any) -> str:
        return f"OnDevice({self.content})"


def _device() -> Device:
    if Device.current is None:
        raise RuntimeError("a tensor of the simulated device is used after it is gone")
    return Device.current


def _run(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Runs an operation on the contents; the result is on the device where CUDA would put it."""
    tensors: list[Tensor] = []

    def content(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        tensors.append(value)
        return value.content if isinstance(value, OnDevice) else value

    contents = _mapped(content, args)
    options = {name: _mapped(content, value) for name, value in kwargs.items()}
    # In-place operations return the same wrapper that was passed in.
    known = {id(tensor.content): tensor for tensor in tensors if isinstance(tensor, OnDevice)}
    # Composite operations create intermediate tensors on `meta`, the device of the C++ side.
    on_device = bool(known)
    if kwargs.get("device") is not None:
        on_device = torch.device(kwargs["device"]).type in ("cuda", "meta")
        options["device"] = torch.device("cpu")
    seeded = torch.Tag.nondeterministic_seeded in func.tags and func not in WITHOUT_DROPOUT
    if on_device and seeded:
        raise RuntimeError(f"{func} draws on the device, where no seed gives the CPU's numbers")
    if func in COPIES:
        _count_copy(func, args, on_device)
    elif known:
        _check_meeting(func, args, kwargs, tensors)
        _count(func, args, kwargs)

    def wrapped(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return known[id(value)] if id(value) in known else OnDevice(value) if on_device else value

    return _mapped(wrapped, func(*contents, **options))


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """Applies the function to a value, or to each value of a list or tuple."""
    if isinstance(value, list | tuple):
        return type(value)([_mapped(function, one) for one in value])
    return function(value)


def _count_copy(func: Any, args: Sequence[Any], on_device: bool) -> None:
    """on_device: whether a new tensor is on the device."""
    source = args[0]
    if func is aten.copy_.default:
        on_device, source = isinstance(args[0], OnDevice), args[1]
    if source.numel() and on_device != isinstance(source, OnDevice):
        _device().count(uploads=int(on_device), reads=int(not on_device))


def _check_meeting(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], tensors: Sequence[Tensor]
) -> None:
    """Raise RuntimeError for an operation on tensors of both devices that CUDA does not allow."""
    if torch.Tag.inplace_view in func.tags:
        raise NotImplementedError(f"{func} changes a wrapper's own shape")
    into = func in INDEXING and isinstance(args[0], OnDevice)
    numbers = into or torch.Tag.pointwise in func.tags or func in TAKES_NUMBERS
    free = [id(index) for index in tree_leaves(args[1])] if into else []
    for tensor in tensors:
        if isinstance(tensor, OnDevice) or id(tensor) in free:
            continue
        if tensor.ndim or not numbers or tensor is _changed(func, args, kwargs):
            raise RuntimeError(f"tensors of cuda:0 and cpu {list(tensor.shape)} meet in {func}")


def _changed(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The tensor that an operation writes to, if any."""
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            return args[position] if position < len(args) else kwargs.get(argument.name)
    return None


def _count(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Count the waits of an operation on tensors of the device."""
    reads, uploads = int(bool(WAITING & set(func.tags))), 0
    if func in INDEXING:
        indices = [index for index in tree_leaves(args[1]) if index is not None]
        device_indices = [index for index in indices if isinstance(index, OnDevice)]
        uploads = len(indices) - len(device_indices)
        values = args[2] if len(args) > 2 and isinstance(args[2], Tensor) else None
        if values is None or values.numel() != 1:  # a single value is written by masked_fill
            reads = sum(index.dtype == torch.bool for index in device_indices)
    elif func is aten.repeat_interleave.Tensor:
        reads = int(kwargs.get("output_size") is None)
    elif func is aten.isin.Tensor_Tensor:
        # For many elements `isin` sorts, by `unique`, whose result size is read.
        reads = int(args[1].numel() >= 10 * args[0].numel() ** 0.145)
    _device().count(reads=reads, uploads=uploads)


@contextmanager
def _cuda_answers() -> Iterator[None]:
    """Patches torch.cuda to report the device, and `torch.tensor` to use the dispatcher."""
    torch._C._ensureCUDADeviceGuardSet()  # a guard that does nothing without a driver
    ignored = ("_lazy_init", "set_device", "manual_seed", "manual_seed_all", "empty_cache")
    answers: dict[str, Callable[..., Any]] = {
        **{name: lambda *args: None for name in ignored},  # one lambda each: torch compares them
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "is_bf16_supported": lambda *args, **kwargs: True,
        "synchronize": lambda device=None: _device().count(reads=1),
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
