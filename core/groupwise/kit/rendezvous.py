"""Rendezvous: how the processes of a run meet, in bounded time, at an address of their own.

A launcher tells each process its number (RANK), how many there are (WORLD_SIZE), and where the
first one listens (MASTER_ADDR, MASTER_PORT).

The store is torch's. Its own rendezvous listens on all interfaces, waits for ever where another
program answers, and does not say which process is missing; `monitored_barrier` does, but needs a
process group, for which all have met already.
"""

import errno
import ipaddress
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

from accelerate.utils import InitProcessGroupKwargs
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed import DistNetworkError
from torch.distributed.rendezvous import register_rendezvous_handler

from groupwise.kit.errors import UserError, first_line

SCHEME = "groupwise"
"""Of the address by which torch finds this rendezvous."""
SETTING, SECONDS = "GROUPWISE_START_SECONDS", 30.0
"""The environment variable that says how long processes wait for each other, and its default."""
SECONDS_OF_AGENT = 300.0
"""The default where torchrun's agent watches the processes, and ends all if one of them ends."""
MOST = 4
"""Numbers of missing processes that a message lists."""
POLL = 0.1
"""Seconds between two attempts to connect."""
OUTCOME, ALL = "outcome", "all are there"
"""The key of the store under which is who is missing, or that none is."""
LOOPBACK = ("lo", "lo0")
"""Names of the network interface of a machine to itself."""
AHEAD = 4096
"""Connections that may wait to be accepted."""


class NotMetError(Exception):
    """The reason why processes cannot meet, a phrase."""


def arguments() -> InitProcessGroupKwargs:
    """For Accelerator: its process group begins with this rendezvous."""
    with suppress(RuntimeError):  # registered before
        register_rendezvous_handler(SCHEME, _meet)
    return InitProcessGroupKwargs(init_method=f"{SCHEME}://")


def failed(error: Exception) -> UserError:
    """The error of this process for one of the rendezvous."""
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    rank, world, address, port = (os.environ.get(name, "unset") for name in names)
    in_use = "EADDRINUSE" in str(error)
    why = f"port {port} is in use, perhaps by another run" if in_use else first_line(error)
    return UserError(
        f"process {rank} of {world} cannot meet the others at MASTER_ADDR {address}, MASTER_PORT "
        f"{port}: {why}. MASTER_ADDR must be a name of the first process's machine that all the "
        f"others reach, and MASTER_PORT a free port there; launchers set them: torchrun "
        f"--master-addr and --master-port, or --rdzv-endpoint; accelerate launch "
        f"--main_process_ip and --main_process_port"
    )


def _meet(_: str, **__: Any) -> Iterator[tuple[Store, int, int]]:
    """The handler that torch calls; the store has an entry of every process.

    Raises NotMetError where one of them does not come in time.
    """
    rank, world, port = (_number(name) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    address, end = _variable("MASTER_ADDR"), time.monotonic() + _seconds()
    # torchrun's agent has a store already, and says so.
    served = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if rank == 0 and not served:
        store: Store = _store(address, port, world, listener=_listener(address, port))
    else:
        store = _joined(address, port, world, end)
    if served:
        store = PrefixStore(f"start {os.environ.get('TORCHELASTIC_RESTART_COUNT')}", store)
    _connect_within_machine(address)
    _wait_for_all(store, rank, world, end, renewed=served)
    yield store, rank, world


def _variable(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        raise NotMetError(f"the environment variable {name} is not set")
    return value


def _number(name: str) -> int:
    value = _variable(name)
    if not value.isdecimal():
        raise NotMetError(f"the environment variable {name} is {value!r}, expected a number")
    return int(value)


def _seconds() -> float:
    watched = "TORCHELASTIC_RUN_ID" in os.environ
    value = os.environ.get(SETTING, str(SECONDS_OF_AGENT if watched else SECONDS))
    with suppress(ValueError):
        if 0 < float(value) < 1e6:
            return float(value)
    raise NotMetError(
        f"the environment variable {SETTING} is {value!r}, expected a number of seconds above 0"
    )


# ---- the store


def _listener(address: str, port: int) -> socket.socket:
    """The socket of the store: bound to MASTER_ADDR alone where that is an address, not a name.

    Names may mean another address on other machines; and an address may belong to a router before
    this one. torch itself would listen on all interfaces.
    """
    own = "127.0.0.1" if address == "localhost" else address
    try:
        kind = socket.AF_INET6 if ipaddress.ip_address(own).version == 6 else socket.AF_INET
        return socket.create_server((own, port), family=kind, backlog=AHEAD)
    except ValueError:  # a name
        pass
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise NotMetError("EADDRINUSE") from error
        if error.errno != errno.EADDRNOTAVAIL:
            raise NotMetError(f"cannot listen there: {error}") from error
    try:
        both = socket.has_dualstack_ipv6()
        kind = socket.AF_INET6 if both else socket.AF_INET
        return socket.create_server(("", port), family=kind, backlog=AHEAD, dualstack_ipv6=both)
    except OSError as error:
        in_use = error.errno == errno.EADDRINUSE
        raise NotMetError("EADDRINUSE" if in_use else f"cannot listen there: {error}") from error


def _store(address: str, port: int, world: int, *, listener: socket.socket | None = None) -> Store:
    """The store that listens, or a client of it."""
    descriptor: Any = {} if listener is None else {"master_listen_fd": listener.detach()}
    return TCPStore(
        address,
        port,
        world,
        listener is not None,
        timedelta(seconds=_seconds()),
        wait_for_workers=False,
        **descriptor,
    )


def _joined(address: str, port: int, world: int, end: float) -> Store:
    """A client of the first process's store, as soon as something listens there.

    torch would print pages while nothing does, and wait for ever for a program that says nothing.
    """
    while True:
        try:
            left = max(POLL, end - time.monotonic())
            socket.create_connection((address, port), timeout=left).close()
            break
        except OSError as error:
            if time.monotonic() > end:
                raise NotMetError(
                    f"nothing answers there within {_seconds():g} s ({SETTING}): process 0 has not "
                    f"started, or has ended ({error})"
                ) from error
        time.sleep(POLL)
    joined: list[Store] = []

    def join() -> None:
        with suppress(Exception):
            joined.append(_store(address, port, world))

    thread = threading.Thread(target=join, daemon=True, name="rendezvous")
    thread.start()
    thread.join(timeout=max(POLL, end - time.monotonic()))
    if not joined:
        raise NotMetError("another program answers there, or process 0 ended meanwhile")
    return joined[0]


# ---- the processes


def _connect_within_machine(address: str) -> None:
    """Have gloo listen on loopback alone where all processes are on this machine."""
    names = [name for _, name in socket.if_nameindex() if name in LOOPBACK]
    if names and (address == "localhost" or _is_loopback(address)):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", names[0])


def _is_loopback(address: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(address).is_loopback
    return False


def _wait_for_all(store: Store, rank: int, world: int, end: float, *, renewed: bool) -> None:
    """Wait until every process has an entry in the store; the first that gives up tells the others.

    renewed: a launcher may have started processes again with the same store.
    """
    try:
        if store.add(f"process {rank}", 1) > 1 and not renewed:
            raise NotMetError(
                f"another process {rank} was there before: either the port is another run's, or "
                f"two processes were started as number {rank}"
            )
        if store.add("processes", 1) >= world:
            store.compare_set(OUTCOME, "", ALL)
        while not store.check([OUTCOME]) and time.monotonic() < end:
            time.sleep(POLL)
        if not store.check([OUTCOME]):
            store.compare_set(OUTCOME, "", _missing(store, world))
        outcome = store.get(OUTCOME).decode()
        if outcome != ALL:
            time.sleep(5 * POLL if rank == 0 else 0)  # while the store is there, the others read it
            raise NotMetError(outcome)
    except DistNetworkError as error:
        raise NotMetError("process 0 has ended; its own output says why") from error


def _missing(store: Store, world: int) -> str:
    missing = [number for number in range(world) if not store.check([f"process {number}"])]
    names = ", ".join(map(str, missing[:MOST]))
    more = f" and {len(missing) - MOST} more" if len(missing) > MOST else ""
    which = f"process {names}" if len(missing) == 1 else f"processes {names}{more}"
    return f"{which} did not come within {_seconds():g} s ({SETTING}); its own output may say why"
