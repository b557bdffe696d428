"""NCCL: weights go from GPU to GPU, by vLLM's own interface of weight transfer.

https://docs.vllm.ai/en/v0.32.0/training/weight_transfer/: this process is rank 0 of a group with
all workers of all servers. Workers get the names and shapes of the weights by HTTP, and the weights
by broadcasts.
"""

import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from accelerate import PartialState
from torch import Tensor

from groupwise.kit import processes
from groupwise.kit.errors import UserError
from groupwise_llm.policy import LanguageModel
from groupwise_llm.vllm.fleet import Fleet
from groupwise_llm.vllm.server import Server
from groupwise_llm.vllm.transfer import Transfer, Weights, norm

BACKEND = "nccl"


class NCCL(Transfer):
    """workers: their number, per server; address: where they reach this process."""

    def __init__(self, fleet: Fleet, workers: Sequence[int], address: str) -> None:
        super().__init__(fleet)
        self.workers, self.address = workers, address
        self._source = _Source()
        self._sender: Any = None

    def send(self, policy: LanguageModel, tag: str) -> None:
        self._source.weights = policy.weights
        self._source.describe()  # gathers, on every rank, as sending does
        processes.first(lambda: self.fleet.each(Server.begin_exchange))
        if PartialState().is_main_process:
            try:
                if self._sender is None:
                    self._sender = self._begin()
                self._sender.send_weights()
            except BaseException:
                self.fleet.each(Server.try_to_resume)
                raise
            self.norms = {name: float(of) for name, of in self._source.norms.items()}
        else:
            for _ in self._source:
                pass
        processes.first(lambda: self.fleet.each(lambda server: server.finish_exchange(tag)))

    def resend(self, server: Server, tag: str) -> None:
        raise UserError(
            f"sampler: the vLLM server at {server.url} no longer has the weights that it was sent: "
            f"it restarted, or another run uses it. NCCL cannot send them again within a step; "
            f"continue from the last checkpoint (--resume), or set sampler.transfer: files"
        )

    def close(self) -> None:
        if self._sender is not None:
            with suppress(UserError):  # the server is gone, which was reported before
                self._sender.shutdown()

    def _begin(self) -> Any:
        """vLLM's sender, connected to all workers."""
        try:
            from vllm.distributed.weight_transfer.nccl_engine import (
                NCCLTrainerInitInfo,
                NCCLTrainerWeightTransferEngine,
            )
        except ImportError as error:
            raise UserError(
                "sampler.transfer: nccl needs vLLM in the environment of training, too: "
                'pip install "groupwise[vllm]"; or set sampler.transfer: files'
            ) from error
        place = NCCLTrainerInitInfo(
            rank=0,
            master_address=self.address,
            master_port=_free_port(),
            world_size=1 + sum(self.workers),
        )
        return NCCLTrainerWeightTransferEngine.trainer_init(
            place, client=_Workers(self), source=self._source
        )


class _Workers:
    """All servers behind the interface of one, for vLLM's sender: each call goes to all at once."""

    def __init__(self, transfer: NCCL) -> None:
        self.transfer = transfer

    def init_weight_transfer_engine(self, init_info: Mapping[str, Any]) -> None:
        offsets, offset = {}, int(init_info["rank_offset"])
        for server, count in zip(self.transfer.fleet.servers, self.transfer.workers, strict=True):
            offsets[server.url] = offset
            offset += count
        self._each(
            "init_weight_transfer_engine",
            lambda server: {"init_info": {**init_info, "rank_offset": offsets[server.url]}},
        )

    def shutdown_weight_transfer_engine(self) -> None:
        self._each("shutdown_weight_transfer_engine", lambda _: {})

    def start_weight_update(self) -> None:
        self._each("start_weight_update", lambda _: {})

    def update_weights(self, update_info: Any) -> None:
        self._each("update_weights", lambda _: {"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._each("finish_weight_update", lambda _: {"weight_version": weight_version})

    def _each(self, step: str, body: Any) -> None:
        self.transfer.fleet.each(lambda server: server.transfer(step, body(server)))


class _Source:
    """The weights as vLLM's sender reads them: names, dtypes and shapes, then the tensors."""

    weights: Weights

    def __init__(self) -> None:
        self._described: list[Any] = []
        self.norms: dict[str, Tensor] = {}

    def describe(self) -> None:
        if not self._described:
            self._described = [(n, t.dtype, tuple(t.shape)) for n, t in self.weights()]

    def metadata(self) -> list[Any]:
        from vllm.distributed.weight_transfer.base import ParamMeta

        return [ParamMeta(*one) for one in self._described]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        device = torch.device("cuda", torch.cuda.current_device())
        for name, tensor in self.weights():
            self.norms[name] = norm(tensor)  # stays on the device: reading it would wait for it
            yield name, tensor.to(device)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("", 0))
        port: int = listener.getsockname()[1]
        return port
