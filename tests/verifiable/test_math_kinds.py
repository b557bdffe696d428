"""Kinds of right answers to `math`, each beside its negation and another value."""

from __future__ import annotations

import pytest

from groupwise_verifiable.mathematics.attempt import Attempt, Rules
from groupwise_verifiable.mathematics.check import equivalent

KINDS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "pair with its names": (
        "(a,b)=(3,4)",
        ("(3,4)", "a=3, b=4", "b=4, a=3", "(a,b)=(3,4)"),
        ("(4,3)", "a=4, b=3", "(b,a)=(3,4)", "(c,d)=(3,4)", "3", "a=3"),
    ),
    "pairs with their names": (
        "(x,y)=(1,2),(2,1)",
        ("(2,1),(1,2)", r"(x,y)=(2,1) \text{ or } (x,y)=(1,2)"),
        ("(1,2)", "(1,1),(2,2)", "1,2"),
    ),
    "quotient with its names": (
        r"\frac{m}{n}=\frac79",
        (r"\frac79", "7/9"),
        (r"\frac97", r"\frac{n}{m}=\frac79", r"-\frac79"),
    ),
    "no value of a curve": ("x^2+y^2=25", ("y^2+x^2=25",), ("25", "5", "x^2-y^2=25")),
    "all real numbers": (
        "all real numbers",
        (r"\mathbb{R}", r"(-\infty,\infty)", r"x \in \mathbb{R}", r"\text{All reals}"),
        (
            r"\text{no real numbers}",
            r"\text{not all real numbers}",
            r"\text{all positive real numbers}",
            r"\text{all real numbers except } 2",
            r"\mathbb{Z}",
        ),
    ),
    "interval with a hole": (
        r"[1,3)\cup(3,5]",
        (r"1 \le x \le 5, x \ne 3", r"1 \le x \le 5 \text{ and } x \neq 3"),
        (r"1 \le x \le 5", r"1 < x \le 5, x \ne 3", r"1 \le x \le 5, x \ne 4", "x = 3"),
    ),
    "large power": (
        "2^{2010}-1",
        ("-1+2^{2010}",),
        ("2^{2010}", "2^{2010}+1", "1-2^{2010}"),
    ),
    "huge power": (
        "7^{100000}-1",
        ("-1+7^{100000}",),
        ("7^{100000}", "7^{100000}+1", "1-7^{100000}", "7^{99999}-1"),
    ),
    "large factorial": (
        r"\frac{2009!}{4}",
        (r"\frac14 \cdot 2009!", "2009!/4"),
        (r"\frac{2008!}{4}", "2009!", r"-\frac{2009!}{4}", r"\frac{2009!}{5}"),
    ),
    "variable of a function": (
        "f(x)=x+1",
        ("f(n)=n+1", "x+1"),
        ("f(n)=n-1", "f(n)=x+1", "g(n)=n+1"),
    ),
    "length of a segment": ("8", ("|AB|=8", "AB=8"), ("|AB|=9", "|AB|=-8", "|AB|=8, |BC|=6")),
    "no solution of a modulus": ("x=5", ("5",), ("|x|=5", r"x=\pm 5", "|x|<5")),
    "name with an index": (
        "36",
        (r"A_{\max} = 36", r"x_\min=36", r"S_{\text{max}}=36"),
        (r"A_{\max} = 35", r"A_{\max} > 36", "A_{36}"),
    ),
    "degrees": ("90", (r"90^\circ", r"90^{\text{o}}"), ("90'", r"9^\circ", r"-90^\circ")),
    "what is counted": (
        "8",
        (r"8 \text{ such integers}", r"8\text{ distinct solutions}", r"8\text{ values}"),
        (r"8\text{ pairs}", r"8 \text{ solutions each}", r"\text{not } 8", r"8\text{ or } 9"),
    ),
    "units of no name": (
        "12",
        (r"12\text{ units}^2", r"12\text{ u}^2", '"12"'),
        (r"12^2", r"12 u^2", '"21"'),
    ),
    "constant that is named": (
        "f(x)=cx",
        (r"f(x)=cx \text{ for some constant } c", r"cx \text{ for any real number } c"),
        (r"f(x)=-cx \text{ for some constant } c", r"f(x)=x"),
    ),
    "numbered answers": (
        "(1) 3; (2) 5",
        ("3, 5", "(1) 3, (2) 5"),
        ("5, 3", "3", "(1) 5; (2) 3", "(1) 3"),
    ),
    "fraction of TeX": (
        r"\frac{3}{56}",
        (r"3 \over 56", r"{3 \over 56}"),
        (r"56 \over 3", r"-3 \over 56", r"3 \over 5"),
    ),
    "comma in words": ("1000", (r"1\text{,}000",), (r"1\text{,}0", r"1\text{, }0")),
    "interval in a prompt about a system": (
        r"$[-\frac12,4]$",
        (r"-\frac12 \le a \le 4", r"a \in [-0.5,4]"),
        (r"-\frac12 < a < 4", r"\frac12 \le a \le 4", "-0.5, 4"),
    ),
    "signs of formulas within gold": (
        "$f(x)=0$ and $f(x)=x$",
        (r"f(x)=x \text{ or } f(x)=0", "f(x)=0, f(x)=x"),
        ("f(x)=x", "f(x)=0, f(x)=-x"),
    ),
    "constant before e": (
        "y=Ce^{2x}",
        ("y(x)=C e^{2x}", r"C\exp(2x)"),
        ("y=Ce^{-2x}", "y=e^{2x}+C", "y=-e^{2x}"),
    ),
    "congruence": (
        r"x \equiv 5 \pmod{7}",
        (r"5 \pmod 7", r"x \equiv -2 \pmod{7}", r"x = 7k+5, k \in \mathbb{Z}", "5 (mod 7)"),
        (
            "5",
            r"x \equiv 2 \pmod 7",
            r"x \equiv 5 \pmod 5",
            "x=7k-5",
            "x=5k+7",
            r"x \not\equiv 5 \pmod 7",
        ),
    ),
    "two residues": (
        r"n \equiv 2, 3 \pmod 5",
        (r"n \equiv 2 \pmod 5 \text{ or } n \equiv 3 \pmod 5", r"n \equiv \pm 2 \pmod{5}"),
        (r"n \equiv 2 \pmod 5", r"n \equiv 2, 4 \pmod 5", r"n \equiv 2, 3 \pmod{10}"),
    ),
    "number of selections": (
        r"\binom{2n}{n}",
        ("C(2n, n)",),
        ("C(n, 2n)", "C(2n, 2)", "P(2n, n)", "(2n, n)"),
    ),
    "volume with pi": ("36\\pi", ("36\u03c0 m\u00b3", r"36\pi\,m^3"), ("36 m^3", r"36\pi^3")),
    "sets of sets": (
        r"\emptyset",
        (r"\{\}", r"\text{the empty set}", r"\text{None}"),
        (r"\{\emptyset\}", r"\{0\}", r"\text{not the empty set}"),
    ),
    "positive numbers": (
        r"(0,\infty)",
        (r"\mathbb{R}^+", r"\mathbb{R}_{>0}", r"x \in \mathbb{R}^{+}"),
        (r"\mathbb{R}^-", r"\mathbb{R}", r"\mathbb{R}_{\ge0}"),
    ),
    "infinity in words": (
        r"-\infty",
        (r"\text{negative infinity}",),
        (r"\text{infinity}", r"\text{infinite}"),
    ),
    "endless": (
        r"\text{infinitely many}",
        (r"\infty", r"\text{infinitely many solutions}", r"\text{infinite}"),
        (r"-\infty", r"\text{finitely many}", r"\text{not infinitely many}"),
    ),
    "money in thousands and in hours": (
        "70000",
        (r"\$70k", r"\$70{,}000/\text{hour}"),
        (r"\$7k", r"-\$70k", "70k"),
    ),
    "the same number again": (
        r"\frac14",
        (r"\frac14 (25\%)", r"0.25 (or 25\%)"),
        (r"\frac14 (75\%)",),
    ),
    "system whose rows end in commas": (
        "x=1, y=2",
        (r"\begin{cases}x=1,\\y=2.\end{cases}",),
        (r"\begin{cases}x=2,\\y=1.\end{cases}",),
    ),
    "vector with its names": (
        r"\begin{pmatrix}1\\2\end{pmatrix}",
        (r"\begin{pmatrix}x\\y\end{pmatrix}=\begin{pmatrix}1\\2\end{pmatrix}", "x=1, y=2"),
        (r"\begin{pmatrix}y\\x\end{pmatrix}=\begin{pmatrix}1\\2\end{pmatrix}", "x=2, y=1"),
    ),
    "line of vectors": (
        "(1,2)+t(3,4)",
        (
            r"\langle 1+3t, 2+4t\rangle",
            r"\begin{pmatrix}1\\2\end{pmatrix}+t\begin{pmatrix}3\\4\end{pmatrix}",
        ),
        (r"\langle 1+3t, 2-4t\rangle", r"\langle 2+4t, 1+3t\rangle", "(1,2)+(3,4)"),
    ),
    "point with its names as a vector": (
        "(1,2)",
        ("<1, 2>", r"\binom12"),
        ("<2, 1>", "1 < 2"),
    ),
    "two answers": ("5,7", (r"5\ \&\ 7",), (r"5\ \&\ 8", "57", "5")),
}


@pytest.mark.parametrize("rules", ["strict", "any_form"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_is_paid_and_neither_its_negation_nor_another_value(kind: str, rules: Rules) -> None:
    gold, right, wrong = KINDS[kind]
    paid = {
        answer: equivalent(Attempt(gold, rf"\boxed{{{answer}}}", "", rules))
        for answer in (*right, *wrong)
    }
    assert paid == dict.fromkeys(right, 1.0) | dict.fromkeys(wrong, 0.0)


@pytest.mark.parametrize(
    ("gold", "right", "wrong"),
    [
        (r"\binom{n}{2}", r"\frac{n(n-1)}{2}", r"\frac{n(n+1)}{2}"),
        (r"\binom{2n}{n}", r"\frac{(2n)!}{n!^2}", r"\frac{(2n)!}{n!}"),
        ("n!", r"n \cdot (n-1)!", "n(n-1)"),
        ("y=2x+3", "2x-y+3=0", "2x+y+3=0"),
        ("y=2x+3", "2x-y=-3", "2x-y=3"),
        ("m<-2 \\text{ or } m>2", "|m|>2", "|m|<2"),
        (r"-3 \le x \le 3", r"|x| \le 3", "|x|<3"),
        ("1 hour 12 minutes", "72 minutes", "72 hours"),
        (r"0.5\text{ A}", r"500\text{ mA}", r"500\text{ mV}"),
        (
            r"\begin{pmatrix}2&-1\\0&1\end{pmatrix}",
            r"\frac12\begin{pmatrix}4&-2\\0&2\end{pmatrix}",
            r"\frac13\begin{pmatrix}4&-2\\0&2\end{pmatrix}",
        ),
    ],
)
def test_any_form_pays_a_formula_in_another_form(gold: str, right: str, wrong: str) -> None:
    paid = [
        equivalent(Attempt(gold, rf"\boxed{{{answer}}}", "", rules))
        for answer in (right, wrong)
        for rules in ("any_form", "strict")
    ]
    assert paid == [1.0, 0.0, 0.0, 0.0]


def test_any_form_pays_no_equation_that_the_prompt_has() -> None:
    prompt = "Solve $2x-y+3=0$ for $y$."
    assert equivalent(Attempt("y=2x+3", r"\boxed{2x-y+3=0}", prompt, "any_form")) == 0.0
    assert equivalent(Attempt("y=2x+3", r"\boxed{y=2x+3}", prompt, "any_form")) == 1.0


@pytest.mark.parametrize(
    ("prompt", "gold", "right", "wrong"),
    [
        ("Find all $f$ with $f(x+y)=f(x)+f(y)$.", "f(x)=cx", "f(x)=kx", "f(x)=x"),
        ("Find all $f$ with $f(x+y)=f(x)+f(y)$.", "f(x)=cx", "f(x)=ax", "f(x)=cx+d"),
        ("Find all $f$ with $f(ax)=af(x)$.", "f(x)=cx", "f(x)=kx", "f(x)=ax"),
        ("In triangle $ABC$ find $\\sin A$.", "3/5", r"\sin A = 3/5", r"\cos A = 3/5"),
        ("Find $\\log_2 x$.", "3", r"\log_2 x = 3", r"\log_3 x = 3"),
        ("Solve $y'=2y$.", "y=Ce^{2x}", "y=Ae^{2x}", "y=Ae^{-2x}"),
        ("Find $a_{20}$.", "2^{20}-1", "a_{20} = 2^{20}-1", "a_{21} = 2^{20}-1"),
        ("What is the product of the numbers?", "36", "xy = 36", "x/y = 36"),
        (
            "How many degrees per minute?",
            "6",
            r"6^\circ \text{ per minute}",
            r"6^\circ \text{ per hour}",
        ),
        ("Which? A. 4 B. 8 C. 9 D. 15", "A, C", r"\text{AC}", r"\text{AD}"),
        ("Find the conjugate of $z$.", "-2-3i", r"\bar{z} = -2-3i", r"\bar{z} = -2+3i"),
        ("Find $f^{-1}(x)$.", "f^{-1}(x)=x/2", "y=x/2", "f(x)=x/2"),
        ("Let $A=\\{1,2\\}$. Find $A \\cap B$.", r"\{2\}", "A \u2229 B = {2}", "A \u222a B = {2}"),
        (
            "Find the smallest prime above 100.",
            "101",
            r"\text{101 is the smallest prime above 100}",
            r"\text{101 is not the smallest prime above 100}",
        ),
        (
            "How many zeros are at the end of $25!$?",
            "6",
            r"\text{There are 6 zeros at the end of } 25!",
            r"\text{There are no 6 zeros at the end of } 25!",
        ),
        (
            "What is the price after the discount?",
            "36",
            r"\text{The price is \$36 after the discount}",
            r"\text{The price is \$36 before the discount}",
        ),
    ],
)
@pytest.mark.parametrize("rules", ["strict", "any_form"])
def test_letters_and_functions_of_the_prompt(
    prompt: str, gold: str, right: str, wrong: str, rules: Rules
) -> None:
    for answer, value in ((right, 1.0), (wrong, 0.0)):
        assert equivalent(Attempt(gold, rf"\boxed{{{answer}}}", prompt, rules)) == value, answer


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("**Result:** 12", 1.0),
        ("13?\n<answer>12 miles</answer>", 1.0),
        ("12?\n<answer>13 miles</answer>", 0.0),
        ("<answer>12</answer> or <answer>13</answer>", 0.0),
        ("<think><answer>12</answer></think> 13", 0.0),
        ("<answer>not 12</answer>", 0.0),
        (r"<answer>13, so \boxed{12}</answer>", 1.0),
        ("**Result:** 21", 0.0),
        ("I am sure that the answer is 12.", 1.0),
        ("I'm not sure the answer is 12.", 0.0),
        ("It is not true that the answer is 12", 0.0),
        ("I don't know whether the answer is 12", 0.0),
        ("We must not divide by 0, so the answer is 12.", 1.0),
    ],
)
def test_what_is_said_before_an_answer_without_a_box(text: str, value: float) -> None:
    assert equivalent(Attempt("12", text)) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("So option B is correct.", 1.0),
        ("Option (B) is the correct answer.", 1.0),
        ("Choice **B** is right", 1.0),
        ("Option B is not correct.", 0.0),
        ("I doubt that option B is correct.", 0.0),
        ("Option B is correct, but option C is better.", 0.0),
        ("Option B is incorrect.", 0.0),
        ("Option C is correct.", 0.0),
    ],
)
def test_an_option_that_a_last_sentence_calls_correct(text: str, value: float) -> None:
    assert equivalent(Attempt("B", text)) == value
