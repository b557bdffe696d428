"""Servers: vLLM on a Ray cluster, beside the processes that train, for on_ray.py."""

import os
import shlex
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import ray
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

SERVE = (
    "vllm serve {model} --dtype bfloat16 --logprobs-mode processed_logprobs --enable-scale-out "
    "--tensor-parallel-size {gpus}"
)
ALLOWED = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
# Other nodes need not have this file.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])


@ray.remote(max_restarts=-1, max_task_retries=-1)
class Server:
    """A server on a node. If it ends, so does this actor, and Ray starts both again; if the actor
    ends, so does the server."""

    def __init__(self, command: str) -> None:
        with socket.socket() as free:
            free.bind(("", 0))
            self.place = ray.util.get_node_ip_address(), free.getsockname()[1]
        with_port = f"setpriv --pdeathsig TERM {command} --port {self.place[1]}"
        server = subprocess.Popen(shlex.split(with_port), env=os.environ | ALLOWED)
        threading.Thread(target=lambda: os._exit(server.wait() or 1), daemon=True).start()

    def address(self) -> str:
        """Its address, once it accepts connections."""
        while True:
            with suppress(OSError), socket.create_connection(self.place, timeout=2):
                return "http://{}:{}".format(*self.place)
            time.sleep(1)


class Servers:
    """Servers in a placement group, whose addresses are always in a file."""

    def __init__(self, room: PlacementGroup, command: str, gpus: int, file: Path) -> None:
        where = {"scheduling_strategy": PlacementGroupSchedulingStrategy(room), "num_gpus": gpus}
        self.file, self.lock = file, threading.Lock()
        self.servers = [
            Server.options(num_cpus=1, **where).remote(command) for _ in range(room.bundle_count)
        ]
        self.addresses: dict[int, str] = {}

    def start(self, seconds: int) -> None:
        """Wait for all of them, then keep the file as it should be."""
        asked = [server.address.remote() for server in self.servers]
        try:
            self.addresses = dict(enumerate(ray.get(asked, timeout=seconds)))
        except ray.exceptions.GetTimeoutError:
            sys.exit(
                f"error: not all servers have started within {seconds} s: see their output above, "
                f"or wait longer by --patience"
            )
        self.write()
        for number in self.addresses:
            threading.Thread(target=self.follow, args=(number,), daemon=True).start()

    def follow(self, number: int) -> None:
        """Write the address of a server anew whenever Ray has started it again."""
        while True:
            address = ray.get(self.servers[number].address.remote())
            with self.lock:
                if address != self.addresses[number]:
                    self.addresses[number] = address
                    self.write()
            time.sleep(2)

    def write(self) -> None:
        """At once, so that nobody reads a part of it."""
        draft = self.file.with_suffix(".draft")
        draft.write_text("".join(f"{address}\n" for address in self.addresses.values()))
        draft.replace(self.file)
