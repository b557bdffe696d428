"""Rewards in separate processes (`isolate: true`), and runs outside the main thread."""

import os
import sys
import textwrap
import threading
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
from PIL import Image
from tests.effort import Effort

import groupwise
from groupwise.kit.errors import UserError
from groupwise.rewards import Reward, RewardError, RunState
from groupwise.scoring import allowance, worker_process
from groupwise.scoring.scorer import Scorer

MODULE = """
    import asyncio, os, signal, subprocess, sys, threading, time
    from multiprocessing import get_context
    from pathlib import Path
    import numpy as np
    import torch
    from groupwise.rewards import SampleErrors

    def reward(completions, task, trainer_state, images, log_metric, log_extra, **columns):
        assert threading.current_thread() is threading.main_thread()
        log_metric("step", trainer_state.global_step)
        log_extra("process", [os.getpid()] * len(completions))
        if task[0] == "logs_oddly":
            return logs_oddly(completions, images, log_extra)
        if task[0] == "groups":
            return [float(group) for group in columns["groups"]]
        return globals()[task[0]](completions, images)

    def measures(completions, images):
        signal.alarm(100)
        signal.alarm(0)
        return (picture.size[0] + float(tensor.sum()) for picture, tensor in
                zip(completions, images, strict=True))

    def hangs(completions, images):
        for row, picture in enumerate(completions):
            daemon = "(setsid sh -c 'echo $$; exec sleep 1000' > child; true) &"
            subprocess.run(["sh", "-c", daemon])
            while not (Path("child").exists() and Path("child").read_text()):
                time.sleep(0.01)
            7 ** 10 ** 9

    def dies(completions, images):
        os._exit(3)

    def sleeps(completions, images):
        time.sleep(0.8)
        return [1.0, 2.0]

    def computes_elsewhere(completions, images):
        subprocess.run([sys.executable, "-c", "while True: pass"])

    def stops(completions, images):
        os.kill(os.getpid(), signal.SIGSTOP)

    def is_killed(completions, images):
        os.kill(os.getpid(), signal.SIGKILL)

    def in_turn(completions, images):
        order = Path("order").read_text().split()
        Path("order").write_text(" ".join(order[1:]))
        return globals()[order[0]](completions, images)

    async def sleeps_asynchronously(completions):
        await asyncio.sleep(1000)

    def fails(completions, images):
        raise SampleErrors([1.0, None], {1: "has no shape"})

    def raises(completions, images):
        for row, picture in enumerate(completions):
            if row == 1:
                raise LookupError("no such shape")

    def odd(completions, images):
        return [1.0, object()]

    def fails_oddly(completions, images):
        raise SampleErrors(np.array([1.0, 2.0]), {np.int64(1): "has no shape"})

    def logs_oddly(completions, images, log_extra):
        log_extra("odd", [{(1, 2): 3}] * len(completions))

    def is_killed_beside_a_child(completions, images):
        get_context("fork").Process(target=time.sleep, args=(1000,)).start()
        os.kill(os.getpid(), signal.SIGKILL)

    def forks(completions, images):
        child = os.fork()
        if child:
            return [float(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))] * 2
        return [-1.0, -1.0]

    def forks_to_exit(completions, images):
        child = os.fork()
        if child:
            return [float(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))] * 2
        sys.exit(5)

    class Unspeakable(BaseException):
        def __str__(self):
            raise LookupError("no words")

    def raises_the_unspeakable(completions, images):
        raise Unspeakable

    def interrupts(completions, images):
        raise KeyboardInterrupt

    def explode(error):
        raise error

    class Explosive:
        def __init__(self, error):
            self.error = error

        def __reduce__(self):
            return explode, (self.error,)

    class Forks:
        children = []

        def __init__(self):
            self.children.append(os.fork())

        def load(self):
            self.children.append(os.fork())

        def __call__(self, completions):
            assert all(self.children)
            return [float(len(text)) for text in completions]

    class Judge:
        judges = False

        def __init__(self, bonus=0.0, api_key=""):
            assert api_key == "a-secret-key"
            self.lock, self.bonus = threading.Lock(), bonus

        def load(self):
            self.weights = 0.5

        async def __call__(self, completions, **columns):
            await asyncio.sleep(0)
            assert not torch.is_grad_enabled()
            return [self.bonus + self.weights] * len(completions)

    class Learns:
        def __call__(self, completions):
            return [0.0] * len(completions)

        def refresh(self, rollouts, scores): ...

    def ranks(completions, log_extra):
        names = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        log_extra("ranks", [[os.environ.get(name) for name in names]] * len(completions))
        return [0.0] * len(completions)

    def length(completions):
        return [float(len(text)) for text in completions]
"""


@pytest.fixture(scope="module")
def user_module(tmp_path_factory):
    """A module with rewards, as a user has it beside the program; workers import it, too."""
    folder = tmp_path_factory.mktemp("isolated")
    (folder / "isolated_rewards.py").write_text(textwrap.dedent(MODULE))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.chdir(folder)
        import isolated_rewards

        yield isolated_rewards
    del sys.modules["isolated_rewards"]


@pytest.fixture(scope="module")
def scorer(user_module):
    limits = {"isolate": True, "deadline": 1.0}
    return Scorer([Reward(name="isolated", function=user_module.reward, **limits)])


def rollouts(lab, task):
    rows = [{"prompt": f"question {n}", "id": n, "task": task} for n in range(2)]
    plain = lab.build(rows, [[0], [0]], group_size=1)
    pictures = [Image.new("RGB", (8 + n, 8)) for n in range(2)]
    return replace(plain, completions=pictures, facts={"images": list(torch.ones(2, 3, 2))})


def skipping(scorer):
    """A scorer with the same worker, which skips samples whose reward fails."""
    skipping_scorer = Scorer([replace(scorer.rewards[0], on_error="skip")])
    skipping_scorer._workers = scorer._workers
    return skipping_scorer


@pytest.fixture
def within(scorer, monkeypatch):
    """within(deadline): the scorer with another deadline, and a process that has started."""

    def limited(deadline):
        (worker,) = scorer._workers.values()
        monkeypatch.setattr(worker, "reward", replace(worker.reward, deadline=deadline))
        worker.load()
        return scorer

    return limited


def test_an_isolated_reward_is_called_in_the_main_thread_of_one_process(lab, scorer):
    with Effort() as effort:
        first = scorer(rollouts(lab, "measures"), RunState(global_step=7))
    second = scorer(rollouts(lab, "measures"))
    assert first.total.tolist() == [14.0, 15.0]
    assert first.metrics == {"isolated/step": (14.0, 2)}
    assert first.extra == second.extra
    # Without the seconds in which the process starts.
    assert 0 < first.seconds["isolated"] < effort.elapsed
    assert effort.scaled(first.seconds["isolated"]) < 1


def test_an_isolated_reward_knows_the_groups(lab, scorer):
    drawn = replace(rollouts(lab, "groups"), groups=torch.tensor([3, 5]))
    assert scorer(drawn).total.tolist() == [3.0, 5.0]


@pytest.mark.slow
def test_a_reward_that_hangs_is_killed_with_its_children_and_named(lab, scorer, user_module):
    with pytest.raises(RewardError, match=r"'isolated' did not answer within 1 s, and its process"):
        scorer(rollouts(lab, "hangs"))
    status = Path("/proc", Path("child").read_text().strip(), "stat")
    assert not status.exists() or ") Z " in status.read_text()
    skipped = skipping(scorer)(rollouts(lab, "dies"))
    assert skipped.failed.all()
    assert skipped.total.isnan().all()
    why = "reward 'isolated' ended its process (exit code 3), at the prompt 'question 0'"
    assert skipped.failures == {"isolated": why}
    assert scorer(rollouts(lab, "measures")).total.tolist() == [14.0, 15.0]


def test_a_deadline_is_processor_time_of_the_process_and_its_children(lab, within):
    """A process that sleeps is like one that waits for a busy machine."""
    scorer = within(0.4)
    assert scorer(rollouts(lab, "sleeps")).total.tolist() == [1.0, 2.0]
    with pytest.raises(RewardError, match=r"'isolated' did not answer within 0.4 s, and its proc"):
        scorer(rollouts(lab, "computes_elsewhere"))


def test_an_isolated_async_reward_waits_for_others_so_its_deadline_is_wall_time(lab, user_module):
    brief = {"isolate": True, "deadline": 0.3, "on_error": "skip"}
    function = user_module.sleeps_asynchronously
    scorer = Scorer([Reward(name="isolated", function=function, **brief)])
    assert (
        scorer(rollouts(lab, ""))
        .failures["isolated"]
        .startswith("reward 'isolated' did not answer within 0.3 s, and its process was killed")
    )
    scorer.close()


@pytest.mark.slow
def test_what_may_be_the_machines_doing_is_tried_once_more(lab, within, monkeypatch, capsys):
    """The same end twice is the reward's; of two different ones all samples are failed, which stops
    no run, whatever `on_error` is."""
    monkeypatch.setattr(allowance, "LAST_RESORT", 2)
    scorer = within(0.4)
    late = r"did not answer within 0.8 s, nor computed for 0.4 s, and its process"

    def scores_of(order):
        Path("order").write_text(order)
        scores = scorer(rollouts(lab, "in_turn"))
        assert not Path("order").read_text()
        return scores

    assert scores_of("stops measures").total.tolist() == [14.0, 15.0]
    assert scores_of("stops is_killed").failed.all()
    with pytest.raises(RewardError, match=late):
        scores_of("stops stops")
    assert capsys.readouterr().err.count("it is called once more, in another process") == 3


@pytest.mark.slow
def test_where_the_process_does_not_start_again_all_samples_are_failed(lab, within, monkeypatch):
    scorer = within(1.0)
    with monkeypatch.context() as patch:
        patch.setattr(worker_process, "STARTING", 0.01)
        for task in ("is_killed", "measures"):
            scores = scorer(rollouts(lab, task))
            assert scores.failed.all()
            assert "did not answer within 0.01 s, and its process" in scores.reasons[0]
    assert scorer(rollouts(lab, "measures")).total.tolist() == [14.0, 15.0]


def test_failures_of_isolated_rewards_are_reported_as_of_others(lab, scorer):
    with pytest.raises(RewardError, match=r"'isolated' ended its process \(exit code 3\)"):
        scorer(rollouts(lab, "dies"))
    scores = skipping(scorer)(rollouts(lab, "fails"))
    assert scores.failed.tolist() == [False, True]
    message = r"(?s)'isolated' raised LookupError: no such shape.*at sample 1 of 2"
    with pytest.raises(RewardError, match=message) as caught:
        scorer(rollouts(lab, "raises"))
    assert "isolated_rewards.py" in str(caught.value.__cause__)
    with pytest.raises(RewardError, match=r"<object object at .*>', which is not a number"):
        scorer(rollouts(lab, "odd"))


def test_values_that_cannot_be_sent_back_are_refused_and_the_process_stays(lab, scorer):
    process = scorer(rollouts(lab, "measures")).extra
    assert skipping(scorer)(rollouts(lab, "fails_oddly")).failed.tolist() == [False, True]
    with pytest.raises(
        RewardError, match=r"'isolated' returned or logged a value that cannot be sent back: k"
    ):
        scorer(rollouts(lab, "logs_oddly"))
    assert scorer(rollouts(lab, "measures")).extra == process


@pytest.mark.parametrize(("task", "code"), [("forks", 0.0), ("forks_to_exit", 5.0)])
def test_a_child_of_an_isolated_reward_never_answers(lab, scorer, task, code):
    """A second answer would be taken for that of the next call, and so on."""
    process = scorer(rollouts(lab, "measures")).extra
    for _ in range(2):
        assert scorer(rollouts(lab, task)).total.tolist() == [code, code]
        assert scorer(rollouts(lab, "groups")).total.tolist() == [0.0, 1.0]
    assert scorer(rollouts(lab, "measures")).extra == process


@pytest.mark.slow
def test_a_child_of_a_constructor_or_of_load_never_answers(lab, user_module, tmp_path):
    section = {"name": "isolated_rewards:Forks", "isolate": True, "deadline": 30}
    own = os.getpid()
    try:
        result = run(lab, tmp_path, rewards=[section], train={"steps": 0})
    finally:
        if os.getpid() != own:
            os._exit(42)
    assert result.before["rewards/Forks"] > 0
    children = user_module.Forks.children  # of this process, which constructs it, too
    assert [os.waitpid(child, 0)[1] for child in children] == [0]


REPEATS = """
import itertools, json
from multiprocessing.connection import Connection

connection = Connection({descriptor})
for number in itertools.count():
    connection.recv_bytes()
    logged = {{"extra": {{}}, "metrics": {{}}, "seconds": 0.0, "reading": None}}
    reply = {{**logged, "number": number, "values": [float(number)] * 2}}
    for _ in range(3):
        connection.send_bytes(json.dumps(reply).encode())
"""


def test_a_reply_to_another_request_is_dropped(lab, scorer, monkeypatch):
    """Requests are numbered; the first one is the reward itself."""
    monkeypatch.setattr(worker_process, "_program", lambda descriptor: REPEATS.format(**locals()))
    repeating = Scorer([replace(scorer.rewards[0], deadline=30.0)])
    values = [repeating(rollouts(lab, "measures")).total.tolist() for _ in range(3)]
    repeating.close()
    assert values == [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]


def test_any_exception_in_the_process_is_a_failed_call_and_the_process_stays(
    lab, scorer, user_module
):
    process = scorer(rollouts(lab, "measures")).extra
    with pytest.raises(RewardError, match="'isolated' raised Unspeakable: "):
        scorer(rollouts(lab, "raises_the_unspeakable"))
    with pytest.raises(RewardError, match="'isolated' raised KeyboardInterrupt"):
        scorer(rollouts(lab, "interrupts"))
    for error in (LookupError("gone"), SystemExit(0), KeyboardInterrupt()):
        batch = rollouts(lab, "measures")
        batch = replace(batch, facts={"images": [user_module.Explosive(error), None]})
        with pytest.raises(RewardError, match=f"'isolated' raised {type(error).__name__}: "):
            scorer(batch)
        assert skipping(scorer)(batch).failed.all()
    assert scorer(rollouts(lab, "measures")).extra == process


@pytest.mark.slow
def test_a_killed_process_is_reported_at_once(lab, within):
    """As by the kernel when memory is short; a child process still holds the connection open."""
    patient = within(60.0)
    message = r"'isolated' lost its process, which was ended by SIGKILL, often because memory"
    with Effort() as effort, pytest.raises(RewardError, match=message):
        patient(rollouts(lab, "is_killed_beside_a_child"))
    assert effort.wall < 10


def test_a_process_that_does_not_start_in_time_is_refused(user_module, monkeypatch):
    monkeypatch.setattr(worker_process, "STARTING", 0.01)
    slow = Scorer([Reward(name="isolated", function=user_module.reward, isolate=True)])
    with pytest.raises(
        UserError, match=r"'isolated' did not answer within 0.01 s, and its process"
    ):
        slow.load()


def test_columns_that_cannot_be_sent_are_refused(lab, scorer):
    batch = rollouts(lab, "measures")
    message = r"'isolated' is isolated, but its arguments cannot be sent .*thread.lock"
    with pytest.raises(UserError, match=message):
        scorer(replace(batch, facts={"images": [threading.Lock(), None]}))


def test_environments_are_not_sent_to_a_reward_that_does_not_name_them(lab, scorer):
    batch = rollouts(lab, "measures")
    objects = {"environments": [threading.Lock()] * 2, "_lease": [threading.Lock()] * 2}
    with_objects = replace(batch, facts={**batch.facts, **objects})
    assert scorer(with_objects).values.equal(scorer(batch).values)


def test_a_worker_does_not_inherit_the_rank_of_its_run(lab, user_module, monkeypatch):
    """With a rank it would wait for the other processes."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    ranked = Scorer([Reward(name="isolated", function=user_module.ranks, isolate=True)])
    assert ranked(rollouts(lab, "")).extra == {"ranks": [[None, None, "2"]] * 2}
    ranked.close()


def test_a_reward_given_by_name_is_built_in_its_process(lab, user_module, tmp_path):
    """So it may hold objects that cannot be pickled; `load` is called only there."""
    judge = {"name": "isolated_rewards:Judge", "bonus": 2.0, "api_key": "a-secret-key"}
    sections = [
        {**judge, "isolate": True, "deadline": 30, "on_error": "skip"},
        {"name": "isolated_rewards:length", "label": "length", "weight": 0.0},
    ]
    before = set(psutil.Process().children())
    result = run(lab, tmp_path, rewards=sections, train={"steps": 0})
    assert result.before["rewards/Judge"] == 2.5
    assert result.before["rewards/length"] > 0
    assert set(psutil.Process().children()) == before


def test_rewards_that_cannot_be_sent_are_refused_before_the_run(lab, user_module, tmp_path):
    def local(completions):
        return [0.0] * len(completions)

    program = {"__name__": "__main__"}
    exec("def of_the_program(completions): ...", program)
    for function, reason in (
        (local, "local object"),
        (user_module.Judge(api_key="a-secret-key"), "cannot pickle '_thread.lock' object"),
        (program["of_the_program"], r"is defined in __main__, which"),
    ):
        message = (
            f"(?s)reward '.*' cannot be sent to a worker process: .*{reason}.*module:attribute"
        )
        with pytest.raises(UserError, match=message):
            run(lab, tmp_path, rewards=[{"name": function, "isolate": True, "label": "mine"}])
    with pytest.raises(UserError, match=r"'mine' has a state, .* leave `isolate` out"):
        run(
            lab,
            tmp_path,
            rewards=[{"name": user_module.Learns(), "isolate": True, "label": "mine"}],
        )
    assert not (tmp_path / "run").exists()


def test_a_run_in_another_thread_isolates_plain_rewards_or_refuses_them(lab, user_module, tmp_path):
    results = []

    def run_in_thread(**options):
        def target():
            try:
                results.append(run(lab, tmp_path, **options))
            except UserError as error:
                results.append(str(error))

        thread = threading.Thread(target=target)
        thread.start()
        thread.join()
        return results.pop()

    section = {"train": {"steps": 0}}
    message = run_in_thread(rewards=[lambda completions: [0.0] * len(completions)], **section)
    assert "'lambda_0' cannot be sent to a worker process" in message
    assert "This run is not in the main thread, where plain rew" in message
    assert run_in_thread(rewards=[user_module.length], **section).before["reward"] > 0


def run(lab, folder, **options):
    defaults = {
        "policy": lab.Tabular(),
        "prompts": {"name": "rows", "rows": lab.rows(8), "held_out": 0.5},
        "output": folder / "run",
        "quiet": True,
    }
    return groupwise.train(**defaults | options)
