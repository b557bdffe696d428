"""Registers this package's plugins as `module:attribute`, so nothing heavy is imported."""

from groupwise import hookimpl
from groupwise.hookspecs import Register


@hookimpl
def register_rewards(register: Register) -> None:
    """Registers every reward of this package under its name in a configuration."""
    here = "groupwise_judge"
    register("judge", f"{here}.grading:Judge", extra="judge")
    register("judge_ranking", f"{here}.ranking:JudgeRanking", extra="judge")
    register("constitution", f"{here}.constitution:Constitution", extra="judge")
    register("generative_judge", f"{here}.generative:GenerativeJudge", extra="llm")
    register("generative_ranking", f"{here}.generative_ranking:GenerativeRanking", extra="llm")
    register("visual_questions", f"{here}.visual_questions:VisualQuestions", extra="llm")
