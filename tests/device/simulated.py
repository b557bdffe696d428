"""A simulated accelerator: raises where CUDA would, and counts what the host waits for and
launches, without a GPU.

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

import operator
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import astuple, dataclass
from typing import Any, Self

import torch
from answers import cuda_answers
from recorded import Graph, written
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


WITHOUT_KERNEL = {aten.empty, aten.empty_strided, aten.empty_like, aten.new_empty}
WITHOUT_KERNEL |= {aten.new_empty_strided, aten._unsafe_view, aten.lift_fresh}


@dataclass
class Counts:
    """Operations that make the host wait, and those that it launches.

    reads: of values: `item`, `tolist`, a bool, a copy to the CPU, and every result whose size
        depends on values (`nonzero`, `unique`, a bool mask as an index).
    uploads: copies to the device; from pageable memory the host waits for those, too.
    launches: operations that compute, taken as one kernel each, and replays of a graph.
    captures: of graphs.
    """

    reads: int = 0
    uploads: int = 0
    launches: int = 0
    captures: int = 0

    @property
    def waits(self) -> int:
        return self.reads + self.uploads


class Device(TorchDispatchMode):
    """The context in which `cuda` exists; `counts` are those since its beginning.

    recording: the graph that is being captured; strict: whether waits are refused otherwise, too.
    """

    current: "Device | None" = None
    recording: Graph | None = None
    strict = False

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counts()
        self._lock = threading.Lock()  # rewards run in other threads
        self._undo = ExitStack()

    def __enter__(self) -> Self:
        self._undo.enter_context(cuda_answers(self))
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

    def count(self, **more: int) -> None:
        waits = more.get("reads", 0) + more.get("uploads", 0)
        if waits and (self.recording or self.strict):
            raise RuntimeError("the host would wait for the device, which is not permitted here")
        with self._lock:
            for name, number in more.items():
                setattr(self.counts, name, getattr(self.counts, name) + number)

    def execute(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run an operation on contents."""
        if self.recording:
            return self.recording.record(func, args, kwargs)
        self.count(launches=int(_has_kernel(func)))
        return func(*args, **kwargs)

    def during(self, call: Callable[[], Any]) -> Counts:
        """The counts of a call."""
        before, self.counts = self.counts, Counts()
        call()
        cost = self.counts
        self.counts = Counts(*map(operator.add, astuple(before), astuple(cost)))
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

    execute = _device().execute if on_device else _call
    return _mapped(wrapped, execute(func, contents, options))


def _call(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return func(*args, **kwargs)


def _has_kernel(func: Any) -> bool:
    """Whether it computes: neither a view nor memory that is not set."""
    aliases = [returned.alias_info for returned in func._schema.returns]
    view = any(alias is not None and not alias.is_write for alias in aliases)
    return not view and func.overloadpacket not in WITHOUT_KERNEL


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
        if tensor.ndim or not numbers or any(tensor is own for own in written(func, args, kwargs)):
            raise RuntimeError(f"tensors of cuda:0 and cpu {list(tensor.shape)} meet in {func}")


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
