"""Sending weights to servers: by files, by vLLM's own transfer, and from several processes."""

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from tests.core.launching import launch

from groupwise.kit.errors import UserError
from groupwise_llm.vllm import files
from groupwise_llm.vllm.home import PREFIX, Home
from groupwise_llm.vllm.nccl import NCCL
from groupwise_llm.vllm.server import UNFINISHED


def test_files_of_runs_that_were_killed_are_removed(pair, tmp_path):
    killed = Home(str(tmp_path))
    (killed.folder / "model-00000.safetensors").touch()
    killed.lock.release()  # as the operating system does when a process ends
    # Of another machine, in a shared folder; and one that was not made by a run.
    other, alike = tmp_path / "groupwise-elsewhere-x", tmp_path / f"{PREFIX}x"
    for folder in (other, alike):
        folder.mkdir()
    Path(f"{other}.lock").touch()
    *_, vllm = pair()
    home = vllm.exchange.transfer.home
    assert {path.name for path in tmp_path.glob("groupwise-*")} == {
        *(other.name, f"{other.name}.lock", alike.name, home.name, f"{home.name}.lock"),
    }
    assert [path.name for path in home.glob("*.safetensors")] == ["model-00000.safetensors"]
    vllm.close()
    assert not list(tmp_path.glob(f"{home.name}*"))


def test_one_killed_while_it_made_its_folder_leaves_nothing(pair, tmp_path):
    (tmp_path / f"{PREFIX}x.lock").touch()
    Home(str(tmp_path)).close()
    assert not list(tmp_path.glob("groupwise-*"))


def test_the_files_of_a_run_in_another_container_stay(pair, tmp_path, monkeypatch):
    """Its processes have no number here, although the container may have the same host name."""
    pair()
    weights = list(tmp_path.glob("groupwise-*/*.safetensors"))
    assert weights

    def no_such_process(*_):
        raise ProcessLookupError

    monkeypatch.setattr("os.kill", no_such_process)
    pair()
    assert all(path.exists() for path in weights)


@pytest.mark.parametrize("error", [OSError(37, "No locks available"), NotImplementedError("flock")])
@pytest.mark.slow(after=1)
def test_a_folder_that_cannot_lock_files_is_used_without_a_lock(
    pair, tmp_path, monkeypatch, capsys, error
):
    def refuses(path, *_):
        Path(path.lock_file).touch()
        raise error

    monkeypatch.setattr("filelock.FileLock.acquire", refuses)
    *_, vllm = pair()
    home = vllm.exchange.transfer.home
    err = capsys.readouterr().err
    assert f"cannot lock files ({error})" in err
    assert f"remove {home} yourself" in err
    vllm.exchange.transfer.resend(vllm.fleet.servers[0], "another")
    monkeypatch.undo()
    # The folder of a run that may be alive is left alone, also where locks work again.
    Home(str(tmp_path)).close()
    assert list(home.glob("*.safetensors"))
    vllm.close()
    assert not list(tmp_path.glob("groupwise-*"))


def test_weights_are_split_into_files(pair, rows, monkeypatch, tmp_path, rounding):
    monkeypatch.setattr(files, "FILE_BYTES", 4096)
    policy, _, vllm = pair()
    home = vllm.exchange.transfer.home
    count = len(list(home.glob("*.safetensors")))
    assert count > 5
    with torch.no_grad():
        policy.model.lm_head.weight.copy_(policy.model.lm_head.weight.flip(0))
    vllm.follow(policy, "policy", 1)
    rollouts = vllm.sample(rows, group_size=1, seeds=range(3))
    mask = rollouts.mask
    rounding.same(lambda: policy(rollouts).log_probs[mask], rollouts.sampler_log_probs[mask])
    assert len(list(home.glob("*.safetensors"))) == count


def test_a_folder_without_room_is_an_error(pair, sampler, engine, make, monkeypatch):
    with pytest.raises(UserError, match=r"sampler.folder: cannot write to /nowhere/at/all"):
        pair(folder="/nowhere/at/all")
    policy, _, vllm = pair()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "save_file", full)
    with pytest.raises(UserError, match=r"sampler.folder: .* No space left .*with room for all"):
        vllm.follow(policy, "policy", 1)


# ---- vLLM's own transfer, without GPUs: the requests to the servers


class Sender:
    """A fake of vLLM's sender: the same requests in the same order, without tensors."""

    def __init__(self, place, client, source):
        self.place, self.client, self.source = place, client, source

    @classmethod
    def trainer_init(cls, place, *, client, source):
        made = cls(place, client, source)
        client.init_weight_transfer_engine({"rank_offset": 1, "world_size": place.world_size})
        return made

    def send_weights(self):
        names = [one.name for one in self.source.metadata()]
        self.client.start_weight_update()
        self.client.update_weights({"names": names})
        self.client.finish_weight_update()

    def shutdown(self):
        pass


class Silent:
    """No canary: where no tensors are sent, none of them arrives."""

    def begin(self, norms, *, model):
        return dict


class Values:
    def __init__(self, *values, **named):
        self.__dict__ |= {**dict(zip(("name", "dtype", "shape"), values, strict=False)), **named}


@pytest.fixture
def weight_transfer(monkeypatch):
    parts = ["vllm", "distributed", "weight_transfer"]
    for depth in range(3):
        monkeypatch.setitem(sys.modules, ".".join(parts[: depth + 1]), ModuleType(parts[depth]))
    for name, values in {
        "base": {"ParamMeta": Values},
        "nccl_engine": {"NCCLTrainerInitInfo": Values, "NCCLTrainerWeightTransferEngine": Sender},
    }.items():
        module = ModuleType(name)
        vars(module).update(values)
        monkeypatch.setitem(sys.modules, f"vllm.distributed.weight_transfer.{name}", module)


def test_the_requests_of_a_transfer_by_nccl(make, engine, sampler, weight_transfer):
    policy, servers = make("llama"), [engine(backend="nccl"), engine(backend="nccl")]
    vllm = sampler(policy, *servers, transfer="nccl")
    for version in range(2):
        vllm.exchange._canary = Silent()  # no tensors arrive
        vllm.follow(policy, "policy", version)
    for offset, server in enumerate(servers):
        update = [
            "pause", "update_weight_version", "start_weight_update", "update_weights",
            "finish_weight_update", "reset_encoder_cache", "reset_prefix_cache",
            "update_weight_version", "resume",
        ]  # fmt: skip
        first = [*update[:2], "init_weight_transfer_engine", *update[2:]]
        assert server.paths() == ["server_info", *first, *update]
        bodies = dict(server.calls)
        init = bodies["init_weight_transfer_engine"]["init_info"]
        assert init == {"rank_offset": 1 + offset, "world_size": 3}
        names = bodies["update_weights"]["update_info"]["names"]
        assert names == [name for name, _ in policy.weights()]
        assert server.tag == vllm.tag
    servers[0].tag = "default"
    with pytest.raises(UserError, match=r"no longer has the weights .*--resume.*transfer: files"):
        vllm.sample([{"prompt": "a"}], group_size=1, seeds=[0])


def test_closing_ends_the_started_server_although_another_is_gone(
    make, engine, sampler, weight_transfer, monkeypatch
):
    server, ended = engine(backend="nccl"), []
    vllm = sampler(make("llama"), server, transfer="nccl")
    vllm.exchange._canary = Silent()
    vllm.follow(vllm.policy, "policy", 0)
    vllm._launch = Values()
    vllm._launch.close = lambda: ended.append("server")
    with monkeypatch.context() as patch:
        patch.setattr(Sender, "shutdown", Sender.send_weights)  # sends requests to the server
        server.stop()
        vllm.close()  # raises nothing, so that an earlier error stays visible
    assert ended == ["server"]


def test_nccl_without_vllm_is_refused(make, engine, sampler):
    server = engine(backend="nccl")
    vllm = sampler(make("llama"), server, transfer="nccl")
    assert isinstance(vllm.exchange.transfer, NCCL)
    with pytest.raises(UserError, match=r"in the environment of training, too: pip install"):
        vllm.follow(vllm.policy, "policy", 0)
    assert not server.is_paused


def test_a_server_that_cannot_load_weights_is_not_left_paused(pair):
    policy, server, vllm = pair()
    server.faults["collective_rpc"] = lambda _: (500, {"error": {"message": "no such weight"}})
    with pytest.raises(UserError, match="cannot load the policy's weights: no such weight"):
        vllm.follow(policy, "policy", 1)
    assert not server.is_paused
    assert server.tag == UNFINISHED


# ---- several processes

CHILD = """
import json, sys
from pathlib import Path
import torch
from accelerate import Accelerator
from tests import rounding
from groupwise.kit.errors import UserError
from groupwise_llm.policy import LanguageModel
from groupwise_llm.vllm.sampler import VLLM

accelerator = Accelerator(cpu=True)
out = Path(sys.argv[2])
folder = str(out.parent)
model, url = json.loads((out.parent / "places.json").read_text())
policy = LanguageModel(LanguageModel.Config(model=model, max_new_tokens=3))
policy.place("cpu")
config = VLLM.Config(servers=[url], folder=folder, patience=0.0, sleep=True)
sampler = VLLM(config, policy)
for version in range(2):
    sampler.follow(policy, "policy", version)
    for _ in range(1 + accelerator.is_main_process):  # some have more prompts than others
        rollouts = sampler.sample([{"prompt": "a"}], group_size=2, seeds=[0, 1])
    mask = rollouts.mask
    rounding.same(lambda: policy(rollouts).log_probs[mask], rollouts.sampler_log_probs[mask])
    assert rollouts.versions.tolist() == [version, version]
sampler.fleet.servers[0].client.url = "http://127.0.0.1:9"
try:
    sampler.follow(policy, "policy", 2)
except UserError as error:
    assert "cannot be reached" in str(error)
else:
    raise AssertionError("expected an error on all processes, as the server is gone")
accelerator.wait_for_everyone()
sampler.close()
if accelerator.is_main_process:
    out.write_text("null")
accelerator.end_training()
"""


@pytest.mark.slow
def test_only_the_first_of_several_processes_sends_weights(engine, saved, tmp_path):
    server = engine()
    (tmp_path / "places.json").write_text(json.dumps([str(saved("llama")), server.url]))
    launch(CHILD, tmp_path, 2, limit=220, imports=["groupwise_llm.policy"])
    paths = server.paths()
    assert paths.count("collective_rpc") == 2  # one for each of the two versions
    # Three for each version, and two checks by each process: before and after the first update.
    assert paths.count("inference/v1/generate") == 10
    requests = [path for path in paths if path in ("wake_up", "sleep", "inference/v1/generate")]
    asleep = False
    for path in requests:
        asleep = {"wake_up": False, "sleep": True}.get(path, asleep)
        assert not (asleep and path == "inference/v1/generate")
    assert asleep
    assert not list(Path(tmp_path).glob("groupwise-*"))
