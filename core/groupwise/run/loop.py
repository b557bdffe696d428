"""The loop of a run: first evaluation, all steps, last evaluation."""

import time
from typing import Any

from groupwise.evaluation import Evaluation
from groupwise.kit import processes, progress
from groupwise.learning.trainer import Trainer
from groupwise.metrics.step_metrics import joined
from groupwise.recording.recorder import CollapsedError, Recorder
from groupwise.recording.result import Metrics, RunResult
from groupwise.recording.saver import Saver
from groupwise.run.interruption import interruptible


def run_and_record(trainer: Trainer, recorder: Recorder, saver: Saver, started: float) -> RunResult:
    """Run from the first evaluation to the report; after a failure, finished steps are saved.

    started: the value of `time.monotonic` when the run began, minus the time of resumed runs.
    """
    recorder.begin()
    if trainer.step:
        before = recorder.known_before()
        recorder.recall()
    else:
        evaluation = trainer.evaluate()
        recorder.before(evaluation)
        before = evaluation.metrics
    after = Evaluation({}, [])
    try:
        finished = loop(trainer, recorder, saver)
        progress.start("")
        # Saved before the last evaluation, which takes time and may be interrupted.
        saver.save()
        try:
            if finished:
                after = trainer.evaluate()
                recorder.after(after)
        except KeyboardInterrupt:
            finished = False
        trainer.adopt_averages()
    except CollapsedError:  # the checkpoints are from before
        saver.finish()
        raise
    except BaseException:
        saver.rescue(recorder.display.say)
        raise
    finally:
        saver.close()
    if not finished:
        recorder.display.say(f"stopped: the model and a checkpoint are saved; {saver.resume_hint}")
    progress.start("")
    result = RunResult(
        before=Metrics(before),
        after=Metrics(after.metrics),
        steps=trainer.step,
        seconds=time.monotonic() - started,
        folder=trainer.config.output,
        policies=trainer.policies,
        accuracy=trainer.evaluator.accuracy.name,
        interrupted=not finished,
        alarms=recorder.alarms,
    )
    recorder.finish(result)
    return result


def loop(trainer: Trainer, recorder: Recorder, saver: Saver) -> bool:
    """Train to the last step or the time limit; False if a signal ended it before.

    After a signal the current step is finished, so that the checkpoint is that of a whole step.
    """
    experience = trainer.experience
    trainer.begin()
    with interruptible(recorder.interrupted) as interruption:
        while not trainer.is_over:
            due = trainer.due()
            step = experience.next(trainer.state)
            with trainer.clock.time("update"):
                learned = trainer.learn(step)
            learned = joined(learned, trainer.teach(step))
            samples = trainer.samples(step)
            for group in step.groups:
                group.release()
            metrics: dict[str, Any] = {}
            try:
                with interruption.held():
                    metrics = trainer.end_step(joined(step.metrics, learned))
                if due.evaluation:
                    metrics |= recorder.evaluation(trainer.step, trainer.evaluate())
            finally:  # a finished step is recorded even if its evaluation fails
                if metrics:
                    with interruption.held():
                        recorder.samples(trainer.step, samples)
                        recorder.step(trainer.step, metrics | trainer.clock.take())
            saver.finish(wait=False)
            if recorder.check_collapse() and due.checkpoint:
                saver.checkpoint()
            trainer.failing.check()
            if processes.any_process(bool(interruption)):
                return False
    return True
