"""Which answers are right: by strict rules, in any form, and by the rules of TRL and open-r1."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from groupwise_verifiable.mathematics.attempt import Rules
from groupwise_verifiable.mathematics.reward import MathEquivalence

Case = tuple[str, str]

RIGHT_IN_ANY_NOTATION: tuple[Case, ...] = (
    (r"\frac12", "0.5"),
    (r"\dfrac{1}{2}", "0.5"),
    ("0.5", r"\frac{1}{2}"),
    (".5", "1/2"),
    (r"-\frac{1}{2}", "-0.5"),
    (r"1\frac{1}{2}", r"\frac32"),
    ("1 1/2", r"\frac32"),
    (r"\frac{2}{6}", r"\frac{1}{3}"),
    (r"\frac13 \approx 0.333", r"\frac{1}{3}"),
    (r"\sqrt{8}", r"2\sqrt{2}"),
    (r"\sqrt2 \cdot 2", r"2\sqrt{2}"),
    (r"\frac{1}{\sqrt{2}}", r"\frac{\sqrt 2}{2}"),
    (r"\frac{3\sqrt{2}}{2}", r"\frac{3}{\sqrt{2}}"),
    ("1,234", "1234"),
    (r"12\,345", "12345"),
    ("1 234", "1234"),
    ("1234", r"1{,}234"),
    (r"2 \times 10^{6}", "2000000"),
    ("10^{6}", "1000000"),
    (r"5 \times 10^{-7}", "0.0000005"),
    ("5.", "5"),
    ("5.0", "5"),
    (r"\text{5}", "5"),
    (r"\$5", "5"),
    (r"5\ \text{cm}", "5"),
    (r"5 \text{ cm}^2", "5"),
    (r"5\,\mathrm{cm}", "5"),
    ("5", r"5\text{ cm}"),
    ("5 zebras", "5"),
    ("x=5", "5"),
    ("2+3=5", "5"),
    ("f(2) = 5", "5"),
    ("P(X=2)=5", "5"),
    (r"x \approx 5", "5"),
    ("5", "x=5"),
    (r"10\%", r"10\%"),
    ("10", r"10\%"),
    (r"50\%", "0.5"),
    (r"45^\circ", r"45^\circ"),
    ("45", r"45^\circ"),
    (r"90\text{ degrees}", r"90^{\circ}"),
    ("3,2", "2,3"),
    (r"2 \text{ and } 3", "2,3"),
    (r"x=2 \text{ or } x=3", "2,3"),
    (r"\pm 2", "2,-2"),
    (r"3\pm\sqrt{2}", r"3+\sqrt2, 3-\sqrt2"),
    (r"\left\{1,2\right\}", r"\{2,1\}"),
    ("1,2", r"\{1,2\}"),
    ("1,2", "(1,2)"),
    (r"\left( 3, \pi/2 \right)", r"\left( 3, \frac{\pi}{2} \right)"),
    (r"(-\infty, 5]", r"(-\infty,5]"),
    (r"x \le 5", r"(-\infty,5]"),
    ("1<x<2", "(1,2)"),
    (r"\begin{bmatrix}1&2\\3&4\end{bmatrix}", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}"),
    ("(1+x)(x+1)", "(x+1)^2"),
    (r"\frac{x^2}{2}+C", r"\frac{1}{2}x^2+C"),
    ("2i+3", "3+2i"),
    (r"\frac12 \ln 4", r"\ln 2"),
    ("2^{100}", "2^{100}"),
    ("4^{50}", "2^{100}"),
    ("10", "5+5"),
    ("120", r"\binom{10}{3}"),
    ("2x+1", "y=2x+1"),
    (r"\text{(C)}", "C"),
    (r"\text{Evelyn}", r"\text{Evelyn}"),
    # Products of letters, some of which math-verify reads as units.
    *(
        (product, product)
        for product in ("2xy", "-6abc", "ab+bc+ca", r"\frac{ab}{a+b}", "2ab", "lwh")
    ),
    ("2ab+3bc", "3bc+2ab"),
    ("2BF_{16}", "2BF_{16}"),
    ("101", "101_2"),
    # Units, currencies and options as models write them.
    (r"12\mathrm{~cm}", "12"),
    (r"12 \mathrm{~cm}^{2}", "12"),
    (r"\text{12 cm}", "12"),
    (r"25\text{ km/h}", "25 km/h"),
    ("25", "25 cm^2"),
    ("\u20ac50", "50"),
    (r"\pounds 50", "50"),
    (r"\text{\$18.00}", "18"),
    (r"\textbf{(C) }12", "C"),
    (r"\textbf{(C)}\ 12", "12"),
    # Notation that math-verify parses only in part or not at all.
    (r"0.1\overline{6}", r"\frac16"),
    (r"\frac{1}{3}", r"0.\overline{3}"),
    (r"\frac{3 \pm \sqrt{17}}{4}", r"\frac{3+\sqrt{17}}{4}, \frac{3-\sqrt{17}}{4}"),
    (r"\tan^{-1} 2", r"\arctan 2"),
    (r"\langle 1, 2 \rangle", r"\langle 1,2\rangle"),
    (r"1, 2, \ldots, 10", r"1,2,\ldots,10"),
    (r"\ln 2", "ln 2"),
    (r"2\sqrt{3}", "2*sqrt(3)"),
    ("12", "He pays $5 and then $7.\n#### 12"),
    (r"1.5\text{ million}", "1500000"),
    (r"\$5 \text{ million dollars}", "5,000,000"),
    ("1500000", "1.5 million"),
)

UNEVALUATED: tuple[Case, ...] = (
    *((sign, "5") for sign in ("2+3", "3+2", "7 - 2", "5+0", r"5 \cdot 1", "(5)(1)", "1(5)")),
    *((sign, "5") for sign in ("10/2", r"\frac{10}{2}", r"20 \div 4", r"\frac{10.0}{2}", "5/1")),
    *(
        (sign, "5")
        for sign in (r"\sqrt{25}", "25^{0.5}", r"(\sqrt5)^2", "5^1", r"\log_2 32", "|-5|")
    ),
    *(
        (sign, "5")
        for sign in (r"\max(2,5)", r"\gcd(5,10)", r"\binom{5}{1}", r"\lfloor 5.5 \rfloor")
    ),
    *(
        (sign, "5")
        for sign in (r"e^{\ln 5}", "-(-5)", "(-1)(-5)", "x=2+3", "5=2+3", r"\frac{5x}{x}")
    ),
    *((sign, "5") for sign in ("5 + 0i", "4 + 1", "7 + (-2)", r"\sqrt{5} \cdot \sqrt{5}")),
    (r"\frac{1}{0.2}", "5"),
    (r"4\frac{2}{2}", "5"),
    ("5!", "120"),
    ("2^5", "32"),
    ("10^2", "100"),
    (r"\sin\frac{\pi}{3}", r"\frac{\sqrt3}{2}"),
    (r"\pi+\pi", r"2\pi"),
    ("(2+3, 4)", "(5,4)"),
    ("x+x", "2x"),
    ("(2+3)x", "5x"),
    ("48/2 + 48", "He sold 48/2=24, and 48+24=72.\n#### 72"),
)

NEVER_RIGHT: tuple[Case, ...] = (
    # Neither solved nor computed here, by any rules.
    *((answer, "5") for answer in (r"\sum_{i=1}^5 1", r"\lim_{x \to 5} x", r"\frac{d}{dx} 5x")),
    *((answer, "5") for answer in ("2(3)", "2 3", r"\begin{vmatrix}5\end{vmatrix}")),
    (r"\int_0^1 x\,dx", "1/2"),
    ("0.3333333", r"\frac{1}{3}"),
    *((answer, "5") for answer in (r"5\%", r"500\%", r"5^\circ", "6=5", "1=2=3=4=5", "4=x=5")),
    *((answer, "5") for answer in ("", "x", "nan", r"\infty", "True", "5x", r"5 \neq 6", "x > 5")),
    *(
        (answer, "5")
        for answer in ("1 2 3 4 5", "2^5", "5!", "1,2,3,4,5", r"4 \text{ or } 5", "-5")
    ),
    (r"\{1,2\}", "(1,2)"),
    ("(1,2)", r"\{1,2\}"),
    ("(2,1)", "(1,2)"),
    ("[1,2]", "(1,2)"),
    ("y=5", "x=5"),
    (r"0.5\%", r"50\%"),
    ("0.33", r"\frac13"),
    ("2", r"2\sqrt{3}"),
    ("2", "2 pi"),
    ("9.8", "9.11"),
    ("0", "0.0000001"),
    ("0.0000001", "0"),
    ("0.0000002", "0.0000001"),
    (r"5\text{ million}", "5"),
    ("5 thousand", "5"),
    ("2", "2xy"),
    ("2", "ln 2"),
    ("2", "2BF_{16}"),
    ("3bc+2", "3bc+2ab"),
    ("101_3", "101_2"),
    (r"\text{(B)} 12", "C"),
    (r"\text{5 or more}", "5"),
    (r"\frac{5 \pm 3}{2}", "4"),
    ("5", "He pays $5 and then $7.\n#### 12"),
)

COPIES = (
    ("Simplify 4/8.", "4/8", r"\frac{1}{2}", "1/2"),
    (r"Simplify $\frac{4}{8}$.", "8/16", r"\frac{1}{2}", "0.5"),
    ("Expand (x+1)^2.", "(1+x)^2", "x^2+2x+1", "1+2x+x^2"),
    ("Expand $(x+1)^2$.", "(x+1)(x+1)", "x^2+2x+1", "x^2+2x+1"),
    ("Factor $x^2+2x+1$.", "x^2+2x+1", "(x+1)^2", "(x+1)(x+1)"),
    (r"Simplify \(\sqrt{8}\).", r"\sqrt{8}", r"2\sqrt{2}", r"2\sqrt2"),
    ("What is $2 \\cdot 10^6$?", r"2 \times 10^6", "2000000", "2,000,000"),
    (r"Compute $$\int_0^1 x\,dx.$$", r"\int_0^1 x\,dx", r"\frac12", "0.5"),
)


def rewards_of(
    cases: Sequence[Case], rules: Rules = "strict", prompt: str = "A question."
) -> dict[Case, float | None]:
    reward = MathEquivalence(MathEquivalence.Config(rules=rules))
    texts = [f"So it is \\boxed{{{answer}}}." for answer, _ in cases]
    golds = [gold for _, gold in cases]
    return dict(zip(cases, reward([prompt] * len(cases), texts, answer=golds), strict=True))


def test_right_answers_in_unusual_notation() -> None:
    assert dict.fromkeys(RIGHT_IN_ANY_NOTATION, 1.0) == rewards_of(RIGHT_IN_ANY_NOTATION)


def test_unevaluated_answers_are_right_only_in_any_form() -> None:
    assert dict.fromkeys(UNEVALUATED, 0.0) == rewards_of(UNEVALUATED)
    assert dict.fromkeys(UNEVALUATED, 1.0) == rewards_of(UNEVALUATED, "any_form")


@pytest.mark.parametrize("rules", ["strict", "any_form"])
def test_answers_that_are_never_right(rules: Rules) -> None:
    assert dict.fromkeys(NEVER_RIGHT, 0.0) == rewards_of(NEVER_RIGHT, rules)


@pytest.mark.parametrize(("prompt", "copy", "gold", "right"), COPIES)
def test_a_copy_of_the_question_is_wrong(prompt: str, copy: str, gold: str, right: str) -> None:
    assert list(rewards_of([(copy, gold), (right, gold)], prompt=prompt).values()) == [0.0, 1.0]
    chat = [{"role": "user", "content": prompt}]
    texts = [f"\\boxed{{{answer}}}" for answer in (copy, right)]
    assert MathEquivalence()([chat] * 2, texts, answer=[gold] * 2) == [0.0, 1.0]


def test_percent_and_degree_signs_that_the_prompt_mentions() -> None:
    percent, degrees = (r"5\%", "5"), (r"45^\circ", "45")
    assert rewards_of([percent, degrees], prompt="Which percentage?") == {
        percent: 1.0,
        degrees: 0.0,
    }
    assert rewards_of([percent, degrees], prompt="How large is the angle?") == {
        percent: 0.0,
        degrees: 1.0,
    }


def test_letters_of_the_prompt_are_variables_and_not_units() -> None:
    """math-verify reads the m of 2m as metres, so that 2 would be right."""
    prompt = r"Simplify $m + m$ where $a, b, c, t > 0$."
    right = (("2m", "2m"), (r"\frac{t}{2}", r"\frac12t"), ("2ab", "x=2ab"))
    wrong = (("2", "2m"), (r"\frac12", r"\frac12t"), ("2", "x=2ab"), ("5m", "5"))
    assert rewards_of(right, prompt=prompt) == dict.fromkeys(right, 1.0)
    assert rewards_of(wrong, prompt=prompt) == dict.fromkeys(wrong, 0.0)
    metres = (("5m", "5"), ("5", "5m"), (r"5\text{ m}", "5m"), ("5 cm", "5"))
    assert rewards_of(metres) == dict.fromkeys(metres, 1.0)


@pytest.mark.parametrize("answer", ["=", "==", "{", "=}"])
def test_an_answer_without_any_side_of_an_equation_is_wrong(answer: str) -> None:
    texts = [rf"\boxed{{{answer}}}", f"The answer is {answer}"]
    assert MathEquivalence()([""] * 2, texts, answer=["5"] * 2) == [0.0, 0.0]


def test_millions_that_the_prompt_asks_for() -> None:
    cases = (("5 million", "5"), ("5 million", "5000000"), ("5", "5"))
    assert rewards_of(cases, prompt="How many millions?") == dict.fromkeys(cases, 1.0)


def test_a_base_that_the_prompt_mentions() -> None:
    cases = (("4210_7", "4210"), ("5_{10}", "5"))
    assert rewards_of(cases) == dict.fromkeys(cases, 0.0)
    assert rewards_of(cases, prompt="What is it in base 7?") == dict.fromkeys(cases, 1.0)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("The answer is 18.", 1.0),
        ("So the answer is **18**.", 1.0),
        ("**Answer: 18**", 1.0),
        ("**Final Answer**: 18 dollars", 1.0),
        ("Therefore, the answer is $18.", 1.0),
        ("9 * 2 = 18\n#### 18", 1.0),
        ("### Answer\n\n**18**", 1.0),
        (r"The answer is 17. No: \boxed{18}", 1.0),
        ("The answer is $17$. No, the answer is 18.", 1.0),
        ("The answer is 18. No, the answer is $17$.", 0.0),
        ("The answer is 18 or 19.", 0.0),
        ("The answer is 17 or 18.", 0.0),
        ("The answer is not 18.", 0.0),
        ("The answer is 18, 19.", 0.0),
        ("The answer is 9 * 2 = 18", 1.0),
        ("The answer is 9 * 3 = 18", 0.0),
        ("The answer is eighteen (18).", 1.0),
        ("\u7b54\u6848\u662f18\u3002", 1.0),
        ("The answer is 36/2", 0.0),
        ("The answer is 18 because I say so, and that is that.", 0.0),
        ("18", 0.0),
        ("<think>The answer is 18.</think>", 0.0),
    ],
)
def test_a_number_after_the_answer_is(text: str, value: float) -> None:
    assert MathEquivalence()(["A question."], [text], answer=["18"]) == [value]


# Texts with a box or without, the gold answer, and the value that TRL 1.16 gives.
TEXTS = (
    (r"\boxed{\frac{63}{400}}", r"\frac{63}{400}", 1.0),
    (r"\boxed{\frac{63}{400}}", "63/400", 1.0),
    (r"\boxed{\frac{64}{400}}", r"\frac{63}{400}", 0.0),
    (r"\boxed{3}", "6", 0.0),
    ("It is forty two.", "It is forty two.", None),
    (r"Something else. \boxed{43}.", "It is forty three.", None),
    (r"<think> Thoughts </think> \boxed{\frac{63}{400}}", r"\frac{63}{400}", 1.0),
    (r"Thoughts </think> \boxed{\frac{63}{400}}", r"\frac{63}{400}", 1.0),
    ("The answer is $42$.", r"\boxed{42}", 1.0),
    (r"Final answer: \(42\)", "$42$", 1.0),
    (r"\boxed{41}. That is wrong. It is \boxed{42}", "42", 1.0),
    (r"\boxed{42}. That is wrong. It is \boxed{41}", "42", 0.0),
    (r"\boxed{2} and \boxed{3}", "$2,3$", 1.0),
    (r"\boxed{4} or \boxed{5}", "5", 0.0),
    ("42", "42", 0.0),
)


def test_texts_with_the_same_value_by_all_rules() -> None:
    for rules in ("strict", "any_form", "trl"):
        reward = MathEquivalence(MathEquivalence.Config(rules=rules))
        values = reward(
            ["p"] * len(TEXTS), [text for text, *_ in TEXTS], answer=[c[1] for c in TEXTS]
        )
        assert values == [value for *_, value in TEXTS], rules


def test_the_last_of_several_answers_counts() -> None:
    """TRL reads two boxes with a comma anywhere between them as one answer."""
    texts = [rf"\boxed{{{first}}}. Wait, no: \boxed{{{last}}}" for first, last in ((1, 2), (2, 1))]
    assert MathEquivalence()(["p"] * 2, texts, answer=["2"] * 2) == [1.0, 0.0]
    trl = MathEquivalence(MathEquivalence.Config(rules="trl"))
    assert trl(["p"] * 2, texts, answer=["2"] * 2) == [0.0, 0.0]


def test_boxes_within_thinking_do_not_count() -> None:
    texts = [
        r"<think> \boxed{42} </think> Some other text.",
        r"<think> \boxed{42} </think> Here: \boxed{43}.",
        r"<think> It must be \boxed{42}",
        r"<think> no </think> \boxed{42} <think> or \boxed{43}",
    ]
    assert MathEquivalence()(["p"] * 4, texts, answer=["42"] * 4) == [0.0, 0.0, 0.0, 1.0]
    trl = MathEquivalence(MathEquivalence.Config(rules="trl"))
    assert trl(["p"] * 4, texts, answer=["42"] * 4) == [1.0, 0.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("opening", "closing"),
    [
        ("<think>", "</think>"),
        ("[THINK]", "[/THINK]"),
        ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),
    ],
)
def test_doubts_within_thinking_do_not_count(opening, closing) -> None:
    """They say nothing of the answer, in whatever words a model thinks."""
    text = opening + "2? No, wait, not only 2." + closing + r"x is \boxed{1}. Then x is \boxed{2}."
    assert MathEquivalence()(["p"], [text], answer=["1, 2"]) == [1.0]


# The values of TRL and of open-r1, which reads gold answers in LaTeX only.
PUBLISHED = (
    ("2+3", "$5$", 1.0, 1.0),
    (r"5\%", "$5$", 1.0, 1.0),
    (r"500\%", "$5$", 1.0, 1.0),
    (r"5^\circ", "$5$", 1.0, 1.0),
    ("1=2=3=4=5", "$5$", 1.0, 1.0),
    (r"\{1,2\}", "$(1,2)$", 1.0, 1.0),
    (r"\frac12", "$0.5$", 0.0, 0.0),
    ("5", "5", 1.0, None),
    ("2", r"2\sqrt{3}", 1.0, None),
    (r"2\sqrt{3}", r"2\sqrt{3}", 0.0, None),
)


def test_rules_of_trl_and_open_r1_give_their_values() -> None:
    cases = [(answer, gold) for answer, gold, *_ in PUBLISHED]
    assert list(rewards_of(cases, "trl").values()) == [trl for _, _, trl, _ in PUBLISHED]
    assert list(rewards_of(cases, "open_r1").values()) == [theirs for *_, theirs in PUBLISHED]


@pytest.mark.parametrize("gold", ["0.00001", "1e-05", 1e-05])
def test_gold_answers_that_are_floats(gold: str | float) -> None:
    assert MathEquivalence()(["p"], [r"\boxed{0.00001}"], answer=[gold]) == [1.0]


def test_gold_answers_that_cannot_be_parsed() -> None:
    golds = ["no mathematics here!", "It is forty two.", "???", None, float("nan")]
    assert MathEquivalence()(["p"] * 5, [r"\boxed{5}"] * 5, answer=golds) == [None] * 5
    texts = [rf"\boxed{{{answer}}}" for answer in (r"0.\overline{3}", "0.3", "0")]
    for gold in (r"$0.\overline{3}$", r"0.\overline{3}"):  # compared as it is written
        assert MathEquivalence()(["p"] * 3, texts, answer=[gold] * 3) == [1.0, 0.0, 0.0]
    assert MathEquivalence()(["p"], [r"\boxed{72}"], answer=["#### 72"]) == [1.0]
