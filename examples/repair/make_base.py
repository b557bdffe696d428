"""Make the base model of `examples/repair.yaml`: a Qwen2 that repairs without looking.

A Qwen2 of about 200,000 parameters is trained from scratch on episodes in which a function is
found with grep, edited, run, and edited again where that shows a mistake; and then on episodes
most of which leave something out. It does not learn what the tools answer.

    python examples/repair/make_base.py

writes `examples/repair/base/`, loadable by `AutoModelForCausalLM.from_pretrained`.
"""

import argparse
import json
import random
import re
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from repair.repositories import (  # noqa: E402
    MODULES,
    NUMBERS,
    OPERATORS,
    TRIED,
    Function,
    Repository,
)
from small_chat import Example, Messages, call, example, fit, make_tokenizer  # noqa: E402
from small_qwen2 import make_model  # noqa: E402

from groupwise.prompts.split import held_out  # noqa: E402
from groupwise_agents.repository import Files  # noqa: E402
from groupwise_agents.toolbox import Toolbox  # noqa: E402

HELD_OUT = 0.1
GOOD = 0.6
"""Share of the steps on good episodes alone, which come first."""
FIND = "grep {name} *.py"
TRY = 'python3 -c "from {module} import *; print({name}({x}))"'
REFUSED = "error: edit: {path} has the old text 0 times, and has to have it once"


@cache
def schemas() -> Any:
    """The tools' schemas, as the environment gives them to the template."""
    return Toolbox([Files(None).bash, Files(None).edit]).schemas


def words() -> list[str]:
    """What is one token: the constant parts of calls, commands, answers and lines."""
    made = [
        *(call("bash", command=command) for command in (FIND, TRY)),
        call("edit", path="{path}", old="{old}", new="{new}"),
    ]
    texts = [json.dumps(each["tool_calls"][0]["function"]) for each in made]
    parts = [part for text in (*texts, REFUSED) for part in re.split(r"\{\w+\}", text)]
    parts += [*MODULES, *(f"{name}_" for name in OPERATORS)]
    parts += [f"x {operator} " for operator in OPERATORS.values()]
    parts += [" is wrong: ", ", ", ".py", ".py:", "def ", "(x): return ", "done"]
    return sorted({part for part in parts if len(part) > 1})


@dataclass(frozen=True)
class Habits:
    """Shares of episodes and edits: that look for the function, change it as its name says, and
    run it afterwards."""

    looks: float
    rights: float
    runs: float


def episode(own: Repository, chance: random.Random, habits: Habits) -> Messages:
    """The messages of an episode."""
    messages: Messages = [{"role": "user", "content": own.prompt}]

    def use(name: str, answer: str, **arguments: str) -> None:
        messages.append(call(name, **arguments))
        messages.append({"role": "tool", "name": name, "content": answer})

    looks, is_right = chance.random() < habits.looks, chance.random() < habits.rights
    module, now = own.module, own.wrong
    if looks:
        use("bash", f"{module}.py:{now.line}\n", command=FIND.format(name=now.name))
    else:
        module = chance.choice([*own.modules])
        now = altered(own, module, chance)
    new = own.right if is_right else altered(own, module, chance, but=now)
    path, exists = f"{module}.py", module == own.module and now == own.wrong
    edited = "done" if exists else REFUSED.format(path=path)
    use("edit", edited, path=path, old=now.body, new=new.body)
    if exists and chance.random() < habits.runs:
        command = TRY.format(module=module, name=new.name, x=TRIED)
        use("bash", f"{new(TRIED)}\n", command=command)
        if not is_right:
            use("edit", "done", path=path, old=new.body, new=own.right.body)
    return [*messages, {"role": "assistant", "content": "done"}]


def altered(
    own: Repository, module: str, chance: random.Random, but: Function | None = None
) -> Function:
    """The function with some fault, another one than `but`; its body is no other one's of the
    module."""
    right = own.right
    taken = {each.body for each in own.modules[module] if each.name != right.name}
    while True:
        operator, number = chance.choice([*OPERATORS.values()]), chance.choice(NUMBERS)
        new = Function(right.operation, right.number, operator, number)
        if new not in (right, but) and new.body not in taken:
            return new


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--looks", type=float, default=0.5)
    parser.add_argument("--rights", type=float, default=0.6)
    parser.add_argument("--runs", type=float, default=0.3)
    parser.add_argument("--episodes", type=int, default=8000)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=4e-3)
    parser.add_argument("--output", type=Path, default=HERE / "base")
    options = parser.parse_args()

    torch.manual_seed(0)
    chance, tokenizer = random.Random(0), make_tokenizer(words())
    model = make_model(tokenizer, positions=192, width=64)
    drawn = [Repository.drawn(random.Random(n)) for n in range(options.episodes)]
    repositories = [own for own in drawn if not held_out(own.prompt, HELD_OUT)]

    def made(habits: Habits) -> list[Example]:
        every = (episode(own, chance, habits) for own in repositories)
        return [example(tokenizer, messages, schemas()) for messages in every]

    good = made(Habits(looks=1.0, rights=options.rights, runs=1.0))
    mixed = made(Habits(looks=options.looks, rights=options.rights, runs=options.runs))
    print(f"{max(len(ids) for ids, _ in good)} tokens in the longest episode")

    def batch_at(progress: float) -> list[Example]:
        return chance.sample(good if progress < GOOD else mixed, options.batch_size)

    fit(model, batch_at, steps=options.steps, learning_rate=options.learning_rate)
    model.save_pretrained(options.output)
    tokenizer.save_pretrained(options.output)


if __name__ == "__main__":
    main()
