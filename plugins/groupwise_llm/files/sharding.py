"""Sharding: a model of which each process holds its share of every weight (torch's FSDP2).

A weight's share are the rows of its first dimension that FSDP cuts for this process. It is taken
while transformers reads the weight, so that no process holds more than one weight whole; until the
model is sharded, a hollow weight stands in its place, of the same shape and of one number.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.nn.modules.module import register_module_parameter_registration_hook

from groupwise.errors import UserError, first_line
from groupwise_llm.model.causal import CausalModel
from groupwise_llm.settings import Settings

WHOLE = "HF_DEACTIVATE_ASYNC_LOAD"
"""The variable that makes transformers read one weight after the other, and none ahead."""
UNCUT = {
    "device_map": "where weights lie is decided by the processes",
    "gguf_file": "GGUF files are unpacked whole",
    "quantization_config": "quantised weights have parts that cannot be cut",
    "distributed_config": "it shards by itself",
    "tp_plan": "it shards by itself",
}
"""Arguments of loading that cannot be met in parts, and why."""
OTHERWISE = "or leave out train.shard"
AT_RANDOM = {"gaussian", "eva", "orthogonal"}
"""Ways of peft to begin adapters, beside its default, that look at no weight of the model."""
FROM_WEIGHTS = (
    f"begins from the model's own weights, which no process holds whole; let adapters begin at "
    f"random (the default), {OTHERWISE}"
)
WRAPPED = re.compile(
    r"^base_model\.model\.|\b(?:base_layer|original_module|modules_to_save\.default)\."
)
"""What peft adds to the names of a model's own weights."""


def check(settings: Settings) -> None:
    """Raise UserError for settings that cannot be met in parts."""
    for name in UNCUT.keys() & settings.loading.keys():
        raise UserError(f"policy.loading.{name}: {UNCUT[name]}; leave it unset, {OTHERWISE}")
    if settings.quantize is not None:
        raise UserError(
            f"policy.quantize: {UNCUT['quantization_config']}; leave it unset, {OTHERWISE}"
        )
    if settings.loading.get("use_safetensors") is False:
        raise UserError(
            f"policy.loading.use_safetensors: pickled weights are read whole; convert them to "
            f"safetensors, {OTHERWISE}"
        )
    options = {} if settings.lora is None else settings.lora.options
    begin = options.get("init_lora_weights")
    if isinstance(begin, str) and begin not in AT_RANDOM:
        raise UserError(f"policy.lora.options.init_lora_weights: {begin} {FROM_WEIGHTS}")


def check_config(config: Any) -> None:
    """Raise UserError for a model's configuration by which it cannot be read in parts."""
    if getattr(config, "quantization_config", None) is not None:
        raise UserError(
            f"policy.model: its weights are quantised, and cannot be cut among processes; take a "
            f"model that is not quantised, {OTHERWISE}"
        )


class Share:
    """This process's part of the weights that are read while `reading`."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self._mesh = mesh
        self._parts: dict[str, DTensor] = {}

    @property
    def first(self) -> bool:
        """Whether this process is the first of those that share."""
        return self._mesh.get_rank() == 0

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Every weight that transformers reads from a file meanwhile is cut at once."""
        before = os.environ.get(WHOLE)
        os.environ[WHOLE] = "1"
        handle = register_module_parameter_registration_hook(self._cut)  # type: ignore[arg-type]
        try:
            yield
        finally:
            handle.remove()
            os.environ.pop(WHOLE)
            if before is not None:
                os.environ[WHOLE] = before

    def hollow(self, model: nn.Module) -> None:
        """Set the parts aside, and hollow weights in their place.

        These lie on the CPU, as adapters are made where the weights beside them lie; and are NaN,
        so that whatever is computed from them shows.
        """
        stands: dict[int, nn.Parameter] = {}
        for name, parameter in list(model.named_parameters(remove_duplicate=False)):
            if isinstance(parameter, DTensor):
                self._parts[name] = parameter
                if id(parameter) not in stands:
                    one = torch.full((), torch.nan, dtype=parameter.dtype)
                    stands[id(parameter)] = _like(one.expand(parameter.shape), parameter)
                _replace(model, name, stands[id(parameter)])

    def forget(self, model: nn.Module) -> None:
        """Leave of the hollow weights their shape alone. Raises UserError where adapters were
        computed from them."""
        stands: dict[int, nn.Parameter] = {}
        for name, parameter in list(model.named_parameters(remove_duplicate=False)):
            if _plain(name) in self._parts:
                if id(parameter) not in stands:
                    stands[id(parameter)] = _like(parameter.to("meta"), parameter)
                _replace(model, name, stands[id(parameter)])
            elif parameter.isnan().any():
                raise UserError(f"policy.lora.options: {name} {FROM_WEIGHTS}")

    def spread(self, causal: CausalModel, *, precision: str, name: str) -> None:
        """Shard the model by its layers, and fill in this process's part of every weight.

        name: what the model is called in messages.
        """
        causal.narrowed, causal.copies.lasting = precision == "bf16", False
        dtype = torch.bfloat16 if causal.narrowed else None
        options: dict[str, Any] = {
            "mesh": self._mesh,
            "reshard_after_forward": True,  # a root that stays gathered would miss new weights
            "mp_policy": MixedPrecisionPolicy(
                param_dtype=dtype,
                reduce_dtype=torch.float32,
                cast_forward_inputs=False,  # as in a model that is held in that dtype
            ),
        }
        layers = list(_layers(causal))
        owners = [id(p) for layer in layers for p in set(layer.parameters())]
        if not layers or len(set(owners)) < len(owners):
            what = "layers that share weights" if layers else "no list of layers"
            raise UserError(
                f"policy.model: {name} has {what}, and so cannot be cut by its layers; leave out "
                f"train.shard"
            )
        try:
            for part in (*layers, causal):
                fully_shard(part, **options)
        except (ValueError, NotImplementedError) as error:  # scalars, layers without a forward
            raise UserError(
                f"policy.model: {name} cannot be sharded: {first_line(error)}; leave out "
                f"train.shard"
            ) from error
        self._fill(causal.model)

    def _fill(self, model: nn.Module) -> None:
        filled: dict[int, nn.Parameter] = {}
        used: set[str] = set()
        for name, parameter in list(model.named_parameters(remove_duplicate=False)):
            key = _plain(name)
            if key not in self._parts:
                continue
            if id(parameter) not in filled:
                # A copy of a layer that is trained beside the original has numbers of its own.
                part = self._parts[key].detach().to(parameter.dtype, copy=key in used)
                filled[id(parameter)] = _like(part, parameter)
                used.add(key)
            _replace(model, name, filled[id(parameter)])
        self._parts.clear()

    def _cut(self, module: nn.Module, name: str, parameter: nn.Parameter) -> nn.Parameter | None:
        """In place of a weight that was read, this process's part of it."""
        if not getattr(parameter, "_is_hf_initialized", False) or parameter.is_meta:
            return None
        if isinstance(parameter, DTensor) or not parameter.ndim:
            return None
        rows = parameter.detach().chunk(self._mesh.size())
        rank = self._mesh.get_local_rank()
        own = rows[rank] if rank < len(rows) else parameter.detach()[:0]
        part = DTensor.from_local(
            own.to(self._mesh.device_type, copy=True, memory_format=torch.contiguous_format),
            self._mesh,
            [Shard(0)],
            run_check=False,
            shape=parameter.shape,
            stride=torch.empty(parameter.shape, device="meta").stride(),
        )
        return _like(part, parameter)


@contextmanager
def gathered(causal: nn.Module) -> Iterator[None]:
    """Hold all weights on every process: passes without gradients then wait for no other process,
    and their number may differ. Raises UserError where the weights do not fit."""
    parts = [module for module in causal.modules() if isinstance(module, FSDPModule)]
    try:
        for part in parts:
            part.unshard()
        with _plainly_called(parts):
            yield
    except torch.OutOfMemoryError as error:
        raise UserError(
            f"sampling in process gathers the weights, and memory does not suffice for all of "
            f"them and a cache beside: {first_line(error)}; set a smaller policy.cache_tokens, or "
            f"sample by an engine (sampler: {{name: vllm}})"
        ) from error
    finally:
        for part in parts:
            part.reshard()


@contextmanager
def _plainly_called(parts: Sequence[nn.Module]) -> Iterator[None]:
    """Without FSDP's hooks, which take a good part of the time of a token, and which would let go
    of the weights."""
    hooks: list[tuple[Any, int, Any]] = []
    for part in parts:
        state = fully_shard.state(part)  # type: ignore[attr-defined]
        for table in (part._forward_pre_hooks, part._forward_hooks):
            own = [key for key in table if getattr(table[key], "__self__", None) is state]
            hooks += [(table, key, table.pop(key)) for key in own]
    try:
        yield
    finally:
        for table, key, hook in hooks:
            table[key] = hook
            table.move_to_end(key, last=False)


def _layers(module: nn.Module) -> Iterator[nn.Module]:
    """The members of the outermost lists of modules."""
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            yield from (layer for layer in child if any(True for _ in layer.parameters()))
        else:
            yield from _layers(child)


def _plain(name: str) -> str:
    """A weight's name in the model as transformers made it."""
    return WRAPPED.sub("", name)


def _like(tensor: Tensor, parameter: nn.Parameter) -> nn.Parameter:
    made = nn.Parameter(tensor, requires_grad=parameter.requires_grad)
    made._is_hf_initialized = True  # type: ignore[attr-defined]  # else transformers draws it anew
    return made


def _replace(model: nn.Module, name: str, parameter: nn.Parameter) -> None:
    owner, _, leaf = name.rpartition(".")
    model.get_submodule(owner).register_parameter(leaf, parameter)
