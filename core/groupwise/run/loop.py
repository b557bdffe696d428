"""The loop of a run: first evaluation, all steps, last evaluation."""

import time
from typing import Any

from groupwise import processes
from groupwise.evaluation import Evaluation
from groupwise.run.interruption import interruptible
from groupwise.run.record import Record, RunResult
from groupwise.run.trainer import Trainer
from groupwise.training.step_metrics import joined


def run_and_record(trainer: Trainer, record: Record, started: float) -> RunResult:
    """Run from the first evaluation to the report; after a failure, finished steps are saved.

    started: the value of `time.monotonic` when the run began, minus the time of resumed runs.
    """
    record.begin()
    if trainer.step:
        before = record.known_before()
    else:
        evaluation = trainer.evaluate()
        record.before(evaluation)
        before = evaluation.metrics
    after = Evaluation({}, [])
    try:
        finished = loop(trainer, record)
        # Saved before the last evaluation, which takes time and may be interrupted.
        record.save()
        try:
            if finished:
                after = trainer.evaluate()
                record.after(after)
        except KeyboardInterrupt:
            finished = False
    except BaseException:
        record.rescue()
        raise
    if not finished:
        record.stopped()
    result = RunResult(
        before=before,
        after=after.metrics,
        steps=trainer.step,
        seconds=time.monotonic() - started,
        folder=trainer.config.output,
        policies=trainer.policies,
        interrupted=not finished,
        alarms=record.alarms,
    )
    record.finish(result)
    return result


def loop(trainer: Trainer, record: Record) -> bool:
    """Train to the last step or the time limit; False if a signal ended it before.

    After a signal the current step is finished, so that the checkpoint is that of a whole step.
    """
    experience = trainer.experience
    trainer.begin()
    with interruptible() as interruption:
        while not trainer.is_over:
            due = trainer.due()
            scored = experience.next(trainer.state, ahead=due.nothing)
            with trainer.clock.time("update"):
                learned = trainer.learn(scored)
            learned = joined(learned, trainer.teach(scored))
            metrics: dict[str, Any] = {}
            try:
                with interruption.held():
                    metrics = trainer.end_step(joined(scored.metrics, learned))
                if due.evaluation:
                    metrics |= record.evaluation(trainer.step, trainer.evaluate())
            finally:  # a finished step is recorded even if its evaluation fails
                if metrics:
                    with interruption.held():
                        record.step(trainer.step, metrics | trainer.clock.take())
            if due.checkpoint:
                record.checkpoint()
            trainer.failing.check()
            if processes.any_process(bool(interruption)):
                return False
    return True
