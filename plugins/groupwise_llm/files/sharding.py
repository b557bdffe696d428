"""Sharding: each process holds one shard of every weight (torch's FSDP2).

A process's shard is its rows of the weight's first dimension, as FSDP divides them; with a mesh of
two dimensions the processes of each row of the mesh divide all weights (HSDP). It is cut while
transformers reads the weight, so no process ever holds more than one whole weight. Until FSDP is
applied, a placeholder of the same shape, expanded from one number, takes the weight's place.
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
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn.modules.module import register_module_parameter_registration_hook

from groupwise.kit.errors import UserError, first_line
from groupwise.kit.processes import shard_of
from groupwise_llm.model.causal import CausalModel
from groupwise_llm.settings import Settings

WHOLE = "HF_DEACTIVATE_ASYNC_LOAD"
"""The environment variable that makes transformers read weights one by one, without prefetching."""
UNSHARDABLE = {
    "device_map": "train.shard decides where weights lie",
    "gguf_file": "GGUF files are unpacked whole",
    "quantization_config": "quantised weights cannot be sharded",
    "distributed_config": "it shards by itself",
    "tp_plan": "it shards by itself",
}
"""Arguments of loading that do not work with sharding, and why."""
OTHERWISE = "or leave out train.shard"
AT_RANDOM = {"gaussian", "eva", "orthogonal"}
"""Initialisations of peft, beside its default, that do not read the model's weights."""
FROM_WEIGHTS = (
    f"initialises adapters from the model's own weights, which no process holds whole; initialise "
    f"them at random (the default), {OTHERWISE}"
)
WRAPPED = re.compile(
    r"^base_model\.model\.|\b(?:base_layer|original_module|modules_to_save\.default)\."
)
"""The parts that peft adds to the names of a model's own weights."""


def check(settings: Settings) -> None:
    """Raise UserError for settings that do not work with sharding."""
    if settings.instance is not None:
        raise UserError(
            f"policy.model: a model that is an object is whole on every process already; pass its "
            f"folder or hub name, of which each process reads its shard, {OTHERWISE}"
        )
    for name in UNSHARDABLE.keys() & settings.loading.keys():
        raise UserError(f"policy.loading.{name}: {UNSHARDABLE[name]}; leave it unset, {OTHERWISE}")
    if settings.quantize is not None:
        raise UserError(
            f"policy.quantize: {UNSHARDABLE['quantization_config']}; leave it unset, {OTHERWISE}"
        )
    if settings.loading.get("use_safetensors") is False:
        raise UserError(
            f"policy.loading.use_safetensors: pickled weights are read whole; convert them to "
            f"safetensors, {OTHERWISE}"
        )
    options = {} if settings.lora is None else settings.lora.options
    scheme = options.get("init_lora_weights")
    if isinstance(scheme, str) and scheme not in AT_RANDOM:
        raise UserError(f"policy.lora.options.init_lora_weights: {scheme} {FROM_WEIGHTS}")


def check_config(config: Any) -> None:
    """Raise UserError where the model's configuration rules out sharding."""
    if getattr(config, "quantization_config", None) is not None:
        raise UserError(
            f"policy.model: quantised weights cannot be sharded; use a model that is not "
            f"quantised, {OTHERWISE}"
        )


class Share:
    """This process's shards of the weights that are read within `reading`."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self._mesh = mesh
        self._parts: dict[str, DTensor] = {}

    @property
    def first(self) -> bool:
        """Whether this process is rank 0 of the mesh."""
        return self._mesh.get_rank() == 0

    @contextmanager
    def reading(self) -> Iterator[None]:
        """The context in which every weight that transformers reads is cut to a shard at once."""
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

    def set_aside(self, model: nn.Module) -> None:
        """Store the shards here, and put placeholders into the model.

        Placeholders lie on the CPU, because peft creates adapters on the device of the base weight,
        and are NaN, so that adapters computed from them are noticed.
        """
        placeholders: dict[int, nn.Parameter] = {}
        for name, parameter in list(model.named_parameters(remove_duplicate=False)):
            if isinstance(parameter, DTensor):
                self._parts[name] = parameter
                if id(parameter) not in placeholders:
                    one = torch.full((), torch.nan, dtype=parameter.dtype)
                    placeholders[id(parameter)] = _like(one.expand(parameter.shape), parameter)
                _replace(model, name, placeholders[id(parameter)])

    def placeholders_to_meta(self, model: nn.Module) -> None:
        """Move placeholders to the meta device. Raises UserError where adapters were computed from
        them."""
        placeholders: dict[int, nn.Parameter] = {}
        for name, parameter in list(model.named_parameters(remove_duplicate=False)):
            if _plain(name) in self._parts:
                if id(parameter) not in placeholders:
                    placeholders[id(parameter)] = _like(parameter.to("meta"), parameter)
                _replace(model, name, placeholders[id(parameter)])
            elif parameter.isnan().any():
                raise UserError(f"policy.lora.options: {name} {FROM_WEIGHTS}")

    def shard_model(self, causal: CausalModel, *, precision: str, name: str) -> None:
        """Apply FSDP to each layer and to the whole, and fill in this process's shards.

        name: of the model, for messages.
        """
        causal.weights_in_bf16, causal.copies.reusable = precision == "bf16", False
        dtype = torch.bfloat16 if causal.weights_in_bf16 else None
        options: dict[str, Any] = {
            "mesh": self._mesh,
            "reshard_after_forward": True,  # else the root keeps gathered weights after an update
            "mp_policy": MixedPrecisionPolicy(
                param_dtype=dtype,
                reduce_dtype=torch.float32,
                cast_forward_inputs=False,  # inputs stay as in an unsharded bf16 model
            ),
        }
        layers = list(_layers(causal))
        owners = [id(p) for layer in layers for p in set(layer.parameters())]
        if not layers or len(set(owners)) < len(owners):
            reason = "layers that share weights" if layers else "no list of layers"
            raise UserError(
                f"policy.model: {name} has {reason}, and so cannot be sharded by layer; leave out "
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
                # The trained copy of a layer (modules_to_save) needs its own memory.
                part = self._parts[key].detach().to(parameter.dtype, copy=key in used)
                filled[id(parameter)] = _like(part, parameter)
                used.add(key)
            _replace(model, name, filled[id(parameter)])
        self._parts.clear()

    def _cut(self, module: nn.Module, name: str, parameter: nn.Parameter) -> nn.Parameter | None:
        """This process's shard of a weight that was just read; None to leave it as it is."""
        if not getattr(parameter, "_is_hf_initialized", False) or parameter.is_meta:
            return None
        if isinstance(parameter, DTensor) or not parameter.ndim:
            return None
        number, count = shard_of(self._mesh)
        rows = parameter.detach().chunk(count)
        own = rows[number] if number < len(rows) else parameter.detach()[:0]
        part = DTensor.from_local(
            own.to(self._mesh.device_type, copy=True, memory_format=torch.contiguous_format),
            self._mesh,
            [*[Replicate()] * (self._mesh.ndim - 1), Shard(0)],
            run_check=False,
            shape=parameter.shape,
            stride=torch.empty(parameter.shape, device="meta").stride(),
        )
        return _like(part, parameter)


@contextmanager
def gathered(causal: nn.Module) -> Iterator[None]:
    """The context in which every process holds all weights: sampling then needs no collectives, so
    processes may decode for different numbers of steps. Raises UserError where memory does not
    suffice."""
    parts = [module for module in causal.modules() if isinstance(module, FSDPModule)]
    try:
        for part in parts:
            part.unshard()
        with _plainly_called(parts):
            yield
    except torch.OutOfMemoryError as error:
        raise UserError(
            f"sampling in process gathers the weights, and memory does not suffice for them and "
            f"the KV cache: {first_line(error)}; set a smaller policy.cache_tokens, or sample by "
            f"an engine (sampler: {{name: vllm}})"
        ) from error
    finally:
        for part in parts:
            part.reshard()


@contextmanager
def _plainly_called(parts: Sequence[nn.Module]) -> Iterator[None]:
    """The context without FSDP's hooks, which would release the gathered weights, and which take
    much of the time of a token."""
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
    """The modules in the outermost ModuleLists."""
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            yield from (layer for layer in child if any(True for _ in layer.parameters()))
        else:
            yield from _layers(child)


def _plain(name: str) -> str:
    """A weight's name in the transformers model, without peft's parts."""
    return WRAPPED.sub("", name)


def _like(tensor: Tensor, parameter: nn.Parameter) -> nn.Parameter:
    copy = nn.Parameter(tensor, requires_grad=parameter.requires_grad)
    copy._is_hf_initialized = True  # type: ignore[attr-defined]  # else transformers initialises it
    return copy


def _replace(model: nn.Module, name: str, parameter: nn.Parameter) -> None:
    owner, _, leaf = name.rpartition(".")
    model.get_submodule(owner).register_parameter(leaf, parameter)
