"""How well the players of `examples/nim.yaml` play, by enumeration: nothing here is sampled.

    python examples/nim/score.py runs/nim [another run ...]

For each player, before and after training: in which share of the positions that are not lost its
likeliest move is optimal; the probability that a move breaks the rules, mean over all positions;
and that of winning as the first to move, its moves drawn by its own probabilities: against a
perfect opponent, mean over the positions that are not lost, and against one that moves at random,
mean over all.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import mean

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import game  # noqa: E402

Strategy = Mapping[int, Mapping[int, float]]
"""By the number of stones the probability of each legal move; what they lack from 1 breaks the
rules."""


@torch.no_grad()
def strategy_of(folder: Path) -> Strategy:
    """The probabilities that a model gives to every legal move in every position."""
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    pairs = [(stones, taken) for stones in game.POSITIONS for taken in game.moves(stones)]
    end = tokenizer.eos_token
    texts = [f"{game.prompt(stones)} {game.WORDS[taken]}{end}" for stones, taken in pairs]
    ids = torch.tensor(tokenizer(texts)["input_ids"])  # all of one length, the last two a move
    log_probs = model(ids).logits[:, -3:-1].log_softmax(dim=-1)
    likelihoods = log_probs.gather(2, ids[:, -2:, None]).sum(dim=(1, 2)).exp().tolist()
    strategy: dict[int, dict[int, float]] = {stones: {} for stones in game.POSITIONS}
    for (stones, taken), probability in zip(pairs, likelihoods, strict=True):
        strategy[stones][taken] = probability
    return strategy


def random_player() -> Strategy:
    return {stones: _uniform(game.moves(stones)) for stones in game.POSITIONS}


def perfect_player() -> Strategy:
    """In a lost position it moves at random."""
    winning = {
        stones: [taken for taken in game.moves(stones) if game.is_optimal(stones, taken)]
        for stones in game.POSITIONS
    }
    return {stones: _uniform(own or game.moves(stones)) for stones, own in winning.items()}


def _uniform(moves: Sequence[int]) -> dict[int, float]:
    return dict.fromkeys(moves, 1 / len(moves))


def winning(player: Strategy, opponent: Strategy) -> dict[int, float]:
    """By the number of stones, the probability that the player wins if it moves first."""

    @cache
    def wins(stones: int, is_ours: bool) -> float:
        """Our probability of winning; is_ours: whether it is our move."""
        if not stones:
            return float(not is_ours)
        own = (player if is_ours else opponent)[stones]
        played = sum(share * wins(stones - taken, not is_ours) for taken, share in own.items())
        return played if is_ours else played + 1 - sum(own.values())

    return {stones: wins(stones, True) for stones in game.POSITIONS}


def row_of(player: Strategy) -> tuple[float, float, float, float]:
    """Optimal moves, moves that break the rules, wins against a perfect and a random opponent."""
    not_lost = [stones for stones in game.POSITIONS if not game.is_lost(stones)]
    likeliest = {stones: max(own, key=own.__getitem__) for stones, own in player.items()}
    perfect, chance = winning(player, perfect_player()), winning(player, random_player())
    return (
        mean(game.is_optimal(stones, likeliest[stones]) for stones in not_lost),
        mean(1 - sum(own.values()) for own in player.values()),
        mean(perfect[stones] for stones in not_lost),
        mean(chance.values()),
    )


def models_of(run: Path) -> list[Path]:
    """The folder of each player; of a run with one player that of its model."""
    own = run / "model"
    return [own] if (own / "config.json").exists() else sorted(own.iterdir())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="+")
    options = parser.parse_args()
    folders = {"before": HERE / "base"}
    for run in options.runs:
        folders |= {f"{run.name}, {one.name}": one for one in models_of(run)}
    print("| player | optimal moves | breaks rules | beats perfect | beats random |")
    print("|---|---|---|---|---|")
    for name, folder in folders.items():
        row = row_of(strategy_of(folder))
        print(f"| {name} | {' | '.join(f'{value:.3f}' for value in row)} |")


if __name__ == "__main__":
    main()
