"""Make the base model of the recipe: it can do everything that is needed, but seldom does.

It starts from the model of `examples/arithmetic`, which can add, and gets tokens for words: "plus",
"minus" and "is" in English and Chinese, with the embeddings of `+`, `-` and `=`; "wait"; and the
words of requests. Then it is trained on `documents.of_the_base`: mostly bare answers, seldom in
R1's tags, and thinking in two languages, sometimes mixed; and on `how_to.of_the_base`: help and
refusals, whatever is asked.

    python examples/r1/make_base.py

writes `examples/r1/base/`.
"""

import argparse
import json
import tempfile
from pathlib import Path

import documents
import how_to
import sft
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

HERE = Path(__file__).parent
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=int, default=8_000)
    parser.add_argument("--output", type=Path, default=HERE / "base")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        start, data = Path(scratch) / "start", Path(scratch) / "documents.jsonl"
        with_words(HERE.parent / "arithmetic" / "base", start)
        rows = documents.of_the_base(options.documents) + how_to.of_the_base(options.documents)
        data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        sft.train(start, [data], options.output, epochs=1, rate=1e-3, batch=64, seed=0)


if __name__ == "__main__":
    main()
