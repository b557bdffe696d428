"""How the processes of a run meet: at one address, in bounded time, or with a sentence on each."""

import json
import socket

import pytest
from tests.core.launching import Job

MEET = """
import json, os, sys
os.environ["ACCELERATE_USE_CPU"] = "true"
rank = int(os.environ["RANK"]) + int(os.environ.get("FIRST_RANK", "0"))
os.environ["RANK"] = str(min(rank, int(os.environ.get("LAST_RANK", "9"))))
from groupwise.kit import processes
from groupwise.kit.errors import UserError
try:
    processes.accelerator()
except UserError as error:
    sys.exit(f"refused: {error}")
import psutil
total = processes.total(1 + int(os.environ["RANK"]))
sockets = psutil.Process().net_connections()
listening = [each.laddr.ip for each in sockets if each.status == psutil.CONN_LISTEN]
print(json.dumps({"total": total, "listening": listening}))
"""


@pytest.fixture
def meet(tmp_path):
    """meet(count, **environment) -> exit codes and outputs of processes that meet."""

    def run(count=2, **environment):
        script = tmp_path / "meet.py"
        script.write_text(MEET)
        wait = {"GROUPWISE_START_SECONDS": "2", "MASTER_ADDR": "127.0.0.1"}
        texts = {name: str(value) for name, value in environment.items()}
        job = Job(
            script, count=count, terminals=tmp_path / "out", environment=wait | texts, limit=40
        )
        return job.end()

    return run


@pytest.fixture
def taken():
    """A port on which another program listens, which says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def sentence(text):
    """The only line of an output, which is the message of a UserError."""
    (line,) = text.splitlines()
    assert line.startswith("refused: process ")
    return line


def test_processes_of_one_machine_listen_on_loopback_alone(meet):
    codes, texts = meet()
    assert codes == [0, 0], texts
    for text in texts:
        seen = json.loads(text)
        assert seen["total"] == 3
        assert set(seen["listening"]) == {"127.0.0.1"}


def test_a_process_that_never_comes_is_named_by_every_other(meet):
    codes, texts = meet(WORLD_SIZE=4)
    assert codes == [1, 1]
    for text in texts:
        assert "processes 2, 3 did not come within 2 s (GROUPWISE_START_SECONDS)" in sentence(text)


def test_a_first_process_that_never_comes_is_named(meet):
    codes, texts = meet(1, WORLD_SIZE=2, MASTER_PORT=free_port(), FIRST_RANK=1)
    assert codes == [1]
    assert "nothing answers there within 2 s (GROUPWISE_START_SECONDS)" in sentence(texts[0])


def test_a_port_in_use_is_a_sentence_on_the_first_process(meet, taken):
    codes, texts = meet(1, WORLD_SIZE=2, MASTER_PORT=taken)
    assert codes == [1]
    assert f"port {taken} is in use, perhaps by another run" in sentence(texts[0])


def test_another_program_at_the_port_does_not_hold_the_other_processes(meet, taken):
    codes, texts = meet(1, WORLD_SIZE=2, MASTER_PORT=taken, FIRST_RANK=1)
    assert codes == [1]
    assert "another program answers there" in sentence(texts[0])


def test_two_processes_of_the_same_number_are_refused(meet):
    codes, texts = meet(3, WORLD_SIZE=2, LAST_RANK=1)
    assert codes[0] == 0, texts
    assert sorted(codes[1:]) == [0, 1]
    refused = texts[1 + codes[1:].index(1)]
    late = "nothing answers there within"  # the others had met and gone
    assert any(part in sentence(refused) for part in ("another process 1 was there before", late))
