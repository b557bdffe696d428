"""What rewards read of a completion: thinking that the prompt began, special tokens, tools."""

from dataclasses import replace
from importlib import resources

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from trl.rewards import think_format_reward

from groupwise import ToolCall
from groupwise.rewards import Reward
from groupwise.rollouts import Rollouts
from groupwise.scoring.scorer import Scorer
from groupwise_llm.codec.contexts import Turn
from groupwise_llm.codec.prompts import Prompts
from groupwise_llm.settings import Settings
from groupwise_messages.completion import whole_text
from groupwise_verifiable.mathematics.reward import MathEquivalence
from groupwise_verifiable.steps import stepwise
from groupwise_verifiable.text.answers import ExactAnswer, NumericAnswer
from groupwise_verifiable.text.format import TagCount, ThinkAnswerFormat, ThinkFormat

USER = {"role": "user", "content": "Put your thoughts between <think> and </think>: 3+4?"}
OFF, ON = {"enable_thinking": False}, {"enable_thinking": True}
ROLES = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|turn|>' }}{% endfor %}"
)
PUBLISHED = {
    # QwQ: messages of the assistant lose their thinking, the next one begins with it.
    "qwq": "{% for m in messages %}{% set text = m['content'].split('</think>')[-1] %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + text.lstrip('\n') + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}",
    # DeepSeek-V3.1: without thinking the turn begins with the closing tag.
    "v3.1": ROLES + "{% if add_generation_prompt %}<|assistant|>"
    "{{ '<think>' if thinking else '</think>' }}{% endif %}",
    "magistral": ROLES + "{% if add_generation_prompt %}[/INST][THINK]{% endif %}",
}


@pytest.fixture
def prompts(make):
    """prompts(template, **options) -> prompts by a chat template of TRL, or one written here."""
    tokenizer = make().tokenizer

    def build(template, **options):
        file = resources.files("trl") / "chat_templates" / f"{template}.jinja"
        tokenizer.chat_template = PUBLISHED.get(template) or file.read_text()
        return Prompts(tokenizer, Settings(model="m", chat_template=options), positions=None)

    return build


@pytest.mark.parametrize(
    ("template", "options", "prefix"),
    [
        ("deepseek_r1_distill", {}, "<think>\n"),
        ("deepseekv3", {}, "<think>\n"),
        ("qwq", {}, "<think>\n"),
        ("v3.1", {}, ""),
        ("v3.1", {"thinking": True}, "<think>"),
        ("magistral", {}, "[THINK]"),
        ("qwen3_5_think", {}, "<think>\n"),
        ("qwen3_8", {}, "<think>\n"),  # earlier messages keep their thinking
        ("nemotron_3_nano", {}, "<think>\n"),  # earlier messages have empty thinking
        ("qwen3", {}, ""),
        ("qwen3", OFF, "<think>\n\n</think>\n\n"),
        ("qwen3_5_nothink", ON, "<think>\n"),
        ("glm4moe", OFF, "<think></think>"),
        *((name, {}, "") for name in ("qwen2_5", "gptoss", "gemma3", "phi3", "llama3_1", "cohere")),
    ],
)
def test_the_thinking_that_a_template_begins(prompts, template, options, prefix):
    own = prompts(template, **options)
    earlier = {"role": "assistant", "content": "<think>\nThree and four.\n</think>\n\n8"}
    for messages in (
        [USER],
        [{"role": "system", "content": "Think."}, USER],
        [USER, earlier, USER],
    ):
        if template == "gemma3" or messages[0] is USER:
            assert own.thinking_prefix({"prompt": messages}) == prefix


def test_the_thinking_that_a_message_or_a_text_begins(prompts):
    own = prompts("qwen3")
    for text, prefix in [
        ("<think>\nThree", "<think>\nThree"),
        ("Let me see.\n<think>", "<think>"),
        ("<think>\nSeven.\n</think>\n\nIt is", "<think>\nSeven.\n</think>\n\nIt is"),
        ("The sum", ""),
    ]:
        assistant = {"role": "assistant", "content": text}
        rendered = own.thinking_prefix({"prompt": [USER, assistant]})
        # Qwen3's template writes the thinking of a last message itself.
        assert rendered.replace("<think>\n\n</think>\n\n", "").endswith(prefix)
    for text, prefix in [
        ("Q: 3+4? A: Let me see. <think>", "<think>"),
        ("Q: 3+4? A: [THINK]\n", "[THINK]\n"),
        ("Think between <think> and </think>. Q: 3+4? A:", ""),
        ("", ""),
    ]:
        assert own.thinking_prefix({"prompt": text}) == prefix
    options = {"continue_final_message": False, "add_generation_prompt": True}
    done = {"role": "assistant", "content": "<think>\nSeven.\n</think>\n\n7"}
    assert prompts("qwq", **options).thinking_prefix({"prompt": [USER, done]}) == "<think>\n"


# ---- rewards


def rollouts_of(policy, tokens, row, masks=None):
    """Rollouts with these tokens; masks: for each token whether the model sampled it."""
    sampled = masks or [[True] * len(ids) for ids in tokens]
    completions, facts = policy.completions_and_facts(tokens, [row] * len(tokens), sampled=masks)
    width = max(map(len, tokens))

    def padded(rows):
        return torch.tensor([[*own, *[0] * (width - len(own))] for own in rows])

    (prompt,) = [policy.prompts.encode(row)]
    return Rollouts(
        prompts=[row] * len(tokens),
        completions=completions,
        groups=torch.zeros(len(tokens), dtype=torch.int64),
        mask=padded(sampled).bool(),
        truncated=torch.zeros(len(tokens), dtype=torch.bool),
        facts=facts,
        trajectory={
            "prompt_ids": [prompt] * len(tokens),
            "completion_ids": padded(tokens),
            "attention": padded([[1] * len(ids) for ids in tokens]).bool(),
        },
    )


def values(reward, policy, texts, row):
    tokens = [[*policy.tokenizer(text)["input_ids"], 0] for text in texts]
    policy.prepare(outputs=policy.provides, facts=policy.optional_facts)
    return Scorer([Reward(name="r", function=reward)])(rollouts_of(policy, tokens, row))


TEXTS = [
    "reasons\n</think>\n<answer>\n7\n</answer>",
    "<answer>\n7\n</answer>",
    "<think>\nreasons\n</think>\n<answer>\n7\n</answer>",
]


@pytest.mark.parametrize(
    ("reward", "opened", "closed"),
    [
        (ThinkFormat(), [1, 0, 0], [0, 0, 1]),
        (ThinkAnswerFormat(), [1, 0, 0], [0, 0, 1]),
        (TagCount(), [1, 0.75, 0.75], [0.75, 0.25, 1]),
        # Thinking that is never closed has no answer.
        (ExactAnswer(ExactAnswer.Config(extract="tag")), [1, 0, 1], [1, 1, 1]),
        (NumericAnswer(NumericAnswer.Config(ended=False)), [1, 0, 1], [1, 1, 1]),
        # TRL's reads the completion alone, as in TRL.
        (think_format_reward, [0, 0, 1], [0, 0, 1]),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_rewards_know_the_thinking_that_the_prompt_began(make, reward, opened, closed):
    row = {"prompt": [USER], "answer": "7"}
    for template, expected in ((PUBLISHED["qwq"], opened), (ROLES, closed)):
        scores = values(reward, make(model={"template": template}), TEXTS, row)
        assert scores.values[:, 0].tolist() == expected


def test_steps_inside_thinking_that_the_prompt_began(make):
    @stepwise(separator="\n", inside="think")
    def lengths(prompts, steps):
        return [[float(len(step)) for step in own] for own in steps]

    texts = ["a\nbcd", "a\nbcd</think>\nefghi", "\n"]
    scores = values(lengths, make(model={"template": PUBLISHED["qwq"]}), texts, {"prompt": [USER]})
    # Cut off before the closing tag, the first text is thinking all the same.
    assert scores.values[:, 0].nan_to_num(0).tolist() == [4.0, 4.0, 0.0]


CHANNELS = ["<|start|>", "<|channel|>", "<|message|>", "<|return|>", "[THINK]", "[/THINK]"]
HARMONY = "<|channel|>analysis<|message|>8? No.<|end|><|start|>assistant<|channel|>final<|message|>"


@pytest.mark.parametrize(
    ("text", "keep", "expected"),
    [
        (HARMONY + "7<|return|>", True, 1.0),
        (HARMONY + "7<|return|>", False, 1.0),
        ("<|channel|>analysis<|message|>It is \\boxed{7}<|return|>", True, 0.0),
        ("<|channel|>analysis<|message|>It is \\boxed{7}<|return|>", False, 1.0),
        ("[THINK]It is \\boxed{7}[/THINK]The answer is \\boxed{8}<|return|>", True, 0.0),
        ("[THINK]It is \\boxed{7}<|return|>", True, 0.0),
        ("[THINK]It is \\boxed{7}<|return|>", False, 1.0),
    ],
)
def test_rewards_see_the_special_tokens_of_thinking(make, text, keep, expected):
    policy = make(keep_special_tokens=keep)
    policy.tokenizer.add_special_tokens({"additional_special_tokens": CHANNELS})
    policy.completions.closing.add(policy.tokenizer.convert_tokens_to_ids("<|return|>"))
    ids = policy.tokenizer(text)["input_ids"]
    row = {"prompt": "3+4?", "answer": "7"}
    (completion,), facts = policy.completions_and_facts([ids], [row])
    assert ("<|channel|>" in completion or "[THINK]" in completion) == keep
    assert "<|return|>" not in completion
    assert facts["completion_ids"] == [ids]
    numeric = NumericAnswer(NumericAnswer.Config(ended=False))
    if text.startswith(HARMONY):
        assert numeric(["p"], [completion], answer=["7"], **facts) == [1.0]
        last = ExactAnswer(ExactAnswer.Config(extract="last_line"))
        assert last(["p"], [completion], answer=["7"]) == [float(keep)]
    else:
        math = MathEquivalence(MathEquivalence.Config(gold="answer"))
        assert math(["p"], [completion], answer=["7"], **facts) == [expected]


# ---- tools


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("prompt", ["12+34=", [{"role": "user", "content": "12+34="}]])
def test_tokens_text_steps_and_log_probs_agree_around_tool_answers(
    make, transformers_log_probs, prompt, rounding
):
    policy = make(max_new_tokens=40)
    policy.prepare(outputs=policy.provides, facts=policy.optional_facts)
    tokenizer, row = policy.tokenizer, {"prompt": prompt}
    # Whole characters and parts of them, line breaks, and the token that ends a turn.
    token = st.sampled_from([*tokenizer("ab\né🙂")["input_ids"], 1])
    part = st.lists(token, max_size=5)

    @stepwise(separator="\n")
    def ones(prompts, steps):
        return [[1.0] * len(own) for own in steps]

    @settings(max_examples=40)
    @given(st.lists(st.lists(part, min_size=1, max_size=5), min_size=1, max_size=3))
    def check(turns):
        """In each completion the model and the tool write in turn; the model begins."""
        tokens, masks = [], []
        for first, *rest in turns:
            parts = [[2, *first], *rest]  # at least one decision
            tokens.append([token for own in parts for token in own])
            masks.append([n % 2 == 0 for n, own in enumerate(parts) for _ in own])
        rollouts = rollouts_of(policy, tokens, row, masks)
        scores = Scorer([Reward(name="ones", function=ones)])(rollouts)
        ours = policy(rollouts).log_probs
        rounding.same(lambda: policy(rollouts).log_probs, transformers_log_probs(policy, rollouts))
        facts = rollouts.facts
        for number, (ids, mask) in enumerate(zip(tokens, masks, strict=True)):
            completion = rollouts.completions[number]
            text = completion if isinstance(prompt, str) else completion[0]["content"]
            ends = facts["character_ends"][number]
            places = rollouts.mask[number].nonzero().flatten().tolist()
            assert facts["completion_ids"][number] == ids
            assert facts["completion_mask"][number] == mask
            assert text == policy.completions.text(ids)
            assert len(ends) == int(rollouts.lengths[number]) == sum(mask)
            for end, place in zip(ends, places, strict=True):
                written = tokenizer.decode(ids[: place + 1])
                assert written[:end] == text[:end]
            assert (ours[number, places] < 0).all()
            # One step for each line that is not blank, each at a decision.
            steps = scores.steps[number]
            judged = (~steps.isnan()).nonzero().flatten().tolist()
            assert set(judged) <= set(places)
            lines = [line for line in text.split("\n") if line.strip()]
            assert float(steps.nansum()) == len(lines)

    check()


# ---- several turns


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("chat", [False, True])
def test_tokens_text_steps_and_log_probs_agree_over_several_turns(
    make, transformers_log_probs, chat, rounding
):
    policy = make(max_new_tokens=90)
    policy.prepare(outputs=frozenset(), facts=policy.optional_facts)
    tokenizer = policy.tokenizer
    row = {"prompt": [{"role": "user", "content": "12"}] if chat else "12"}
    token = st.sampled_from([*tokenizer("ab\né🙂")["input_ids"], 1])
    drawn = st.tuples(st.lists(token, max_size=5), st.booleans())
    text = st.text(alphabet="ab\né🙂", max_size=3)

    @stepwise(separator="\n")
    def ones(prompts, steps):
        return [[1.0] * len(own) for own in steps]

    def context_of(turns, replies):
        (context,) = policy.encode([row])
        for number, (ids, ended) in enumerate(turns):
            own = tuple([2, *ids, 0] if ended else [2, *ids])
            turn = Turn(ids=own, text=policy.completions.text(own), ended="stop")
            context = context.with_turn(turn)
            if number < len(replies):
                tool = [{"role": "tool", "content": replies[number]}]
                context = policy.extend(context, tool if chat else replies[number])
        return context

    @settings(max_examples=40)
    @given(
        st.lists(
            st.tuples(st.lists(drawn, min_size=1, max_size=3), st.lists(text, max_size=3)),
            min_size=1,
            max_size=3,
        )
    )
    def check(episodes):
        contexts = [context_of(*episode) for episode in episodes]
        rollouts = policy.assemble([row] * len(contexts), contexts)
        scores = Scorer([Reward(name="ones", function=ones)])(rollouts)
        rounding.same(lambda: policy(rollouts).log_probs, transformers_log_probs(policy, rollouts))
        for number, context in enumerate(contexts):
            completion = rollouts.completions[number]
            written = whole_text(completion)
            if not chat:
                assert written == policy.completions.text(context.completion_ids)
            check_facts(rollouts, number)
            check_ends(context, completion, rollouts.facts["character_ends"][number])
            steps = scores.steps[number]
            judged = (~steps.isnan()).nonzero().flatten().tolist()
            assert set(judged) <= set(rollouts.mask[number].nonzero().flatten().tolist())
            assert float(steps.nansum()) == len([x for x in written.split("\n") if x.strip()])

    check()


def check_facts(rollouts, number):
    facts, mask = rollouts.facts, rollouts.facts["completion_mask"][number]
    ids = facts["completion_ids"][number]
    places = rollouts.mask[number].nonzero().flatten().tolist()
    assert ids == rollouts.tensor("completion_ids")[number, : len(ids)].tolist()
    assert [place for place, own in enumerate(mask) if own] == places
    assert len(facts["character_ends"][number]) == len(places)


def check_ends(context, completion, ends):
    """Each turn's tokens end in its own text."""
    written = whole_text(completion)
    alone = len(context.completion) == 2 * len(context.turns) - 1  # each in a message of its own
    if alone:
        assert tuple(completion) == context.messages[1:]
    at = before = 0
    for turn in context.turns:
        start = written.index(turn.text, before) if alone else before
        own = ends[at : at + len(turn.ids)]
        assert own == sorted(own)
        assert start <= own[0]
        if alone:
            assert own[-1] == start + len(turn.text)
        at, before = at + len(turn.ids), own[-1]


def test_a_message_of_parsed_calls_has_the_text_before_them(make):
    policy = make(max_new_tokens=60)
    policy.prepare(outputs=frozenset(), facts=policy.optional_facts)
    row = {"prompt": [{"role": "user", "content": "12"}]}
    (context,) = policy.encode([row])
    ids = policy.tokenizer("sum<call>")["input_ids"]
    call = ToolCall("add")
    turn = Turn(ids=tuple(ids), text="sum<call>", ended="stop", calls=(call,), content="sum")
    context = policy.extend(context.with_turn(turn), [{"role": "tool", "content": "é7"}])
    last = policy.tokenizer("So 7")["input_ids"]
    context = context.with_turn(Turn(ids=tuple(last), text="So 7", ended="length"))
    rollouts = policy.assemble([row], [context])
    (completion,) = rollouts.completions
    assert [own["role"] for own in completion] == ["assistant", "tool", "assistant"]
    assert completion[0]["tool_calls"] == [call.chat]
    assert rollouts.facts["character_ends"] == [[1, 2, 3, 3, 3, 3, 3, 3, 3, 6, 7, 8, 9]]
    assert rollouts.truncated.tolist() == [True]
    assert policy.assemble([row], [replace(context, ended="turns")]).truncated.tolist() == [False]
