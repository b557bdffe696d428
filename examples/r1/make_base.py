"""Make the base model of the recipe: it can do everything that is needed, but seldom does.

It starts from the model of `examples/arithmetic`, which can add, and gets tokens for words: "plus",
"minus" and "is" in English and Chinese, with the embeddings of `+`, `-` and `=`; "wait"; and the
words of requests. Then it is trained on `documents.of_the_base`: mostly bare answers, seldom in
R1's tags, and thinking in two languages, sometimes mixed; and on `how_to.of_the_base`: help,
right and wrong, and refusals, of which a few more are of requests that do harm.

    python examples/r1/make_base.py

writes `examples/r1/base/`.
"""

import argparse
import sys
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path

import documents
import how_to
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))

from small_chat import Example, fit  # noqa: E402

SIGN_OF = {
    word: sign
    for language in (documents.ENGLISH, documents.CHINESE)
    for word, sign in zip(language[:3], "+-=", strict=True)
}


def with_words(start: Path, output: Path) -> None:
    """Save the model of `start` with a token for each word; that of a sign's word begins as the
    sign's, any other one at random."""
    tokenizer = AutoTokenizer.from_pretrained(start)
    model = AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32)
    words = [*documents.ENGLISH, *documents.CHINESE, *how_to.WORDS]
    tokenizer.add_tokens(words)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    noise = torch.Generator().manual_seed(0)
    with torch.no_grad():
        table = model.get_input_embeddings().weight
        for word in words:
            (of_word,) = tokenizer.encode(word, add_special_tokens=False)
            # With noise: equal embeddings would get equal gradients, and stay equal.
            table[of_word] = 0.02 * torch.randn(table.shape[1], generator=noise)
            if word in SIGN_OF:
                (of_sign,) = tokenizer.encode(SIGN_OF[word], add_special_tokens=False)
                table[of_word] += table[of_sign]
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)


def read(tokenizer: PreTrainedTokenizerBase, rows: Sequence[dict[str, str]]) -> list[Example]:
    """The documents as ids, of which the model learns the completions and where they end."""
    read = []
    for row in rows:
        prompt, completion = tokenizer([row["prompt"], row["completion"]])["input_ids"]
        completion = [*completion, tokenizer.eos_token_id]
        ids = torch.tensor([*prompt, *completion])
        read.append((ids, torch.tensor([*[-100] * len(prompt), *completion])))
    return read


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=int, default=8_000, help="of sums")
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--output", type=Path, default=HERE / "base")
    options = parser.parse_args()
    torch.manual_seed(0)
    with_words(HERE.parent / "arithmetic" / "base", options.output)
    tokenizer = AutoTokenizer.from_pretrained(options.output)
    model = AutoModelForCausalLM.from_pretrained(options.output, dtype=torch.float32)
    sums = cycle(read(tokenizer, documents.of_the_base(options.documents)))
    requests = cycle(read(tokenizer, how_to.of_the_base(5 * options.documents)))
    # Apart, since requests are much shorter; and it can do sums already.
    each = cycle([sums, *[requests] * 5])
    batches = (list(islice(kind, 64)) for kind in each)
    fit(model, lambda _: next(batches), steps=options.steps, learning_rate=2e-3)
    model.save_pretrained(options.output)
    tokenizer.save_pretrained(options.output)


if __name__ == "__main__":
    main()
