"""The small server for one model of transformers: a judge's schema leaves it no other answer."""

from threading import Thread

import pytest
from tests.benchmarks.judge_server import Chat, server
from tests.judge import tiny_judge

from groupwise_judge.grading import Judge


@pytest.fixture
def address():
    serving = server(Chat(str(tiny_judge.folder(context=4096))))
    thread = Thread(target=serving.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{serving.server_port}/v1"
    serving.shutdown()
    serving.server_close()
    thread.join()


def test_a_model_that_writes_at_random_keeps_to_the_schema(address, score):
    """Scores of one and of two digits, of which "1" begins others."""
    aspects = [{"name": "good", "description": "how good it is", "scale": [1, 12]}]
    config = {"server": address, "model": "m", "aspects": aspects, "cache": None}
    scores = score(Judge(Judge.Config(**config, reasoning=False)), ["Paris.", "Lyon."])
    grades = [round(1 + 11 * value) for value in scores.values[:, 0].tolist()]
    assert not scores.failed.any()
    assert set(grades) <= set(range(1, 13))
