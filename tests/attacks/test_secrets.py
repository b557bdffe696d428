"""Secrets of a configuration are passed to plugins, but never written or printed."""

import json
import traceback
from functools import partial

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretBytes, SecretStr
from tests import command_line, tiny_model

import groupwise
from groupwise.config.load import dump, load_config
from groupwise.kit import secrets
from groupwise.kit.errors import UserError

PROMISE = "No secret of a configuration is written or printed"
PLUGINS = """
import json, pathlib
import groupwise
from groupwise.kit.errors import UserError
from pydantic import BaseModel, SecretStr

received = {}


def lengths(completions):
    return [float(len(text)) for text in completions]


def function(prompts, completions, token=None, headers=None, retries=1):
    received["function"] = [token, headers, retries]
    return lengths(completions)


class Client(BaseModel):
    user: str
    pin: SecretStr


class Model:
    class Config(BaseModel, extra="forbid"):
        api_key: str
        phrase: SecretStr | None = None
        clients: list[Client] = []
        servers: dict[str, dict[str, str | int]] = {}
        size: int = 1

        def model_post_init(self, _):
            if self.size == 13:
                raise ValueError(f"refused by {self.api_key}")

    def __init__(self, config):
        self.config = config
        if config.size == 14:
            raise ValueError(f"refused by {config.api_key}")
        if config.size == 15:
            raise UserError(f"refused by {config.api_key}")

    def __call__(self, prompts, completions):
        c = self.config
        received["model"] = [c.api_key, c.phrase and c.phrase.get_secret_value(), c.servers]
        received["model"] += [client.pin.get_secret_value() for client in c.clients]
        if c.size == 16:
            raise RuntimeError(f"refused by {c.api_key}")
        return lengths(completions)


class Tracker(groupwise.Callback):
    def __init__(self, access_token, project="p"):
        self.access_token = access_token

    def on_end(self, result):
        received["tracker"] = self.access_token
        pathlib.Path(__file__).with_name("received.json").write_text(json.dumps(received))
"""
IN_FILE = {
    "token": "tok-xqoneqx",
    "headers": {"Authorization": "Bearer aut-xqtwoqx", "accept": "json"},
    "api_key": "key-xqthreeqx",
    "phrase": "phr-xqfourqx",
    "pin": "pin-xqfiveqx",
    "servers": {"a": {"password": 91827364, "port": 8000}},
    "access_token": "tra-xqsevenqx",
}
NUMBERS = ("91827364", "81726354", "71625344")
SECRETS = [
    *NUMBERS,
    *(f"xq{word}qx" for word in ["one", "two", "three", "four", "five", "seven", "eight", "nine"]),
]


@pytest.fixture(autouse=True)
def _no_known_secrets(monkeypatch):
    """Secrets that these tests register do not remain for other tests."""
    monkeypatch.setattr(secrets, "_known", {})


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with a configuration with many secrets, and the plugins that receive them."""
    name = f"keyed_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(PLUGINS)
    config = {
        "policy": {
            "name": "language_model",
            "model": str(tiny_model.folder()),
            "max_new_tokens": 3,
            "loading": {"token": "hub-xqeightqx"},
        },
        "prompts": {"name": "rows", "rows": [{"prompt": f"{n} + 1 ="} for n in range(8)]},
        "rewards": [
            {"name": f"{name}:function", "token": IN_FILE["token"], "headers": IN_FILE["headers"]},
            {
                "name": f"{name}:Model",
                "api_key": IN_FILE["api_key"],
                "phrase": IN_FILE["phrase"],
                "clients": [{"user": "u", "pin": IN_FILE["pin"]}],
                "servers": IN_FILE["servers"],
            },
        ],
        "train": {"steps": 1, "groups_per_step": 1, "group_size": 2, "checkpoint_minutes": None},
        "evaluation": {"prompts": 1, "greedy": False},
        "callbacks": [{"name": f"{name}:Tracker", "access_token": IN_FILE["access_token"]}],
        "output": str(tmp_path / "run"),
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(*arguments):
    """The exit code of a command, and its output with the traceback, if any."""
    result = command_line.call(*arguments)
    output = result.output
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        output += "".join(traceback.format_exception(result.exception))
    return result.exit_code, output


def leaked_secrets(text):
    return [secret for secret in SECRETS if secret in text]


def files_with_secrets(folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {
        str(f): leaks for f in files if (leaks := leaked_secrets(f.read_bytes().decode("latin-1")))
    }


def received_by_plugins(project):
    return json.loads((project / "received.json").read_text())


EXPECTED = {
    "function": [IN_FILE["token"], IN_FILE["headers"], 1],
    "model": [IN_FILE["api_key"], IN_FILE["phrase"], IN_FILE["servers"], IN_FILE["pin"]],
    "tracker": IN_FILE["access_token"],
}


@pytest.mark.attack(PROMISE, "8 secrets searched in every file of a run and in its output")
def test_a_run_writes_none_of_its_secrets(project, tries):
    code, output = call("train", "run.yaml")
    assert code == 0, output
    assert received_by_plugins(project) == EXPECTED
    assert not leaked_secrets(output)
    run = project / "run"
    assert {path.name for path in run.iterdir()} >= {"config.yaml", "report.html", "model"}
    assert files_with_secrets(run) == {}
    saved = yaml.safe_load((run / "config.yaml").read_text())
    assert saved["rewards"][1]["api_key"] == saved["rewards"][1]["phrase"] == secrets.MASK
    assert saved["rewards"][1]["clients"] == [{"user": "u", "pin": secrets.MASK}]
    assert saved["rewards"][0]["headers"] == {"Authorization": secrets.MASK, "accept": "json"}
    assert secrets.MASK in (run / "report.html").read_text()
    tries(8)


OVERRIDES = {
    "policy.loading.token": "hub-xqeightqx",
    "rewards.0.token": IN_FILE["token"],
    "rewards.0.headers.Authorization": IN_FILE["headers"]["Authorization"],
    "rewards.1.api_key": IN_FILE["api_key"],
    "rewards.1.phrase": IN_FILE["phrase"],
    "rewards.1.clients.0.pin": IN_FILE["pin"],
    "rewards.1.servers.a.password": 91827364,
    "callbacks.0.access_token": IN_FILE["access_token"],
}


def test_a_run_is_resumed_with_its_secrets_passed_again(project, monkeypatch):
    assert call("train", "run.yaml")[0] == 0
    for command in ("resume", "eval"):
        code, output = call(command, "run")
        assert code == 2
        assert "rewards.0.token: the run's folder holds only the mask ****" in output
        assert "pass it again by rewards.0.token=... on the command line; ${NAME}, wh" in output
    overrides = [f"{key}={value}" for key, value in OVERRIDES.items()]
    code, output = call("eval", "run", *overrides)
    assert code == 0, output
    (project / "received.json").unlink()
    code, output = call("resume", "run", "train.steps=2", *overrides)
    assert code == 0, output
    assert "resumed with train.steps: 1 -> 2" in output
    assert "***" not in output
    assert received_by_plugins(project) == EXPECTED
    # A reference instead of the secret in the file does not count as another reward.
    monkeypatch.setenv("MODEL_KEY", "key-xqnineqx")
    text = (project / "run.yaml").read_text().replace("key-xqthreeqx", "${MODEL_KEY}")
    (project / "run.yaml").write_text(text)
    code, output = call("train", "run.yaml", "--resume", "train.steps=3")
    assert code == 0, output
    assert f"rewards.1.api_key: {secrets.MASK} -> ${{MODEL_KEY}}" in output
    assert received_by_plugins(project)["model"][0] == "key-xqnineqx"
    assert files_with_secrets(project / "run") == {}


def test_secrets_in_the_folder_of_an_earlier_version_are_not_copied(project):
    assert call("train", "run.yaml")[0] == 0
    config = project / "run" / "config.yaml"
    text = config.read_text().replace(f"api_key: '{secrets.MASK}'", "api_key: key-xqthreeqx")
    assert "key-xqthreeqx" in text
    config.write_text(text)
    assert call("report", "run")[0] == 0
    assert files_with_secrets(project / "run").keys() == {str(config)}
    overrides = [f"{key}={value}" for key, value in OVERRIDES.items() if "api_key" not in key]
    code, output = call("resume", "run", "train.steps=2", *overrides)
    assert code == 0, output
    assert not leaked_secrets(output)
    assert files_with_secrets(project / "run").keys() == {
        str(project / "run" / "config.until_step_1.yaml")  # the file of the earlier version
    }


@pytest.mark.attack(PROMISE, "references to environment variables in the files of a run")
def test_references_to_environment_variables_are_saved_as_references(project, monkeypatch, tries):
    text = (project / "run.yaml").read_text()
    for number, value in enumerate(map(str, OVERRIDES.values())):
        monkeypatch.setenv(f"SECRET_{number}", value)
        text = text.replace(value, f"${{SECRET_{number}}}")
        tries(1)
    (project / "run.yaml").write_text(text)
    code, output = call("train", "run.yaml", "rewards.1.size=${SIZE}")
    assert code == 2
    assert output == (
        "error: override 'rewards.1.size=${SIZE}': rewards.1.size: there is no environment "
        "variable SIZE, which ${SIZE} refers to\n"
    )
    assert call("check", "run.yaml", "rewards.1.size=${SIZE}") == (code, output)
    monkeypatch.setenv("SIZE", "2")
    code, output = call("train", "run.yaml", "rewards.1.size=${SIZE}")
    assert code == 0, output
    expected = {**EXPECTED, "model": [*EXPECTED["model"]]}
    expected["model"][2] = {"a": {"password": "91827364", "port": 8000}}  # a variable is text
    assert received_by_plugins(project) == expected
    assert files_with_secrets(project / "run") == {}
    saved = yaml.safe_load((project / "run" / "config.yaml").read_text())
    assert saved["rewards"][1]["api_key"] == "${SECRET_3}"
    assert saved["rewards"][1]["size"] == "${SIZE}"
    assert call("resume", "run", "train.steps=2")[0] == 0
    for number in range(3, 5):
        monkeypatch.delenv(f"SECRET_{number}")
    code, output = call("eval", "run")
    assert code == 2
    assert "rewards.1.api_key: there is no environment variable SECRET_3" in output
    assert "rewards.1.phrase: there is no environment variable SECRET_4" in output


def test_a_doubled_dollar_sign_is_not_a_reference(monkeypatch):
    monkeypatch.setenv("HOME_OF", "x")
    options = {
        "a": "$${HOME_OF}",
        "b": "${HOME_OF}",
        "c": "in ${HOME_OF}",
        "d": "${x}$",
        "e": "${}",
    }
    assert secrets.revealed(options) == {**options, "a": "${HOME_OF}", "b": "x"}


@pytest.mark.attack(PROMISE, "the error messages of mistakes of every kind beside a secret")
@pytest.mark.parametrize(
    "override",
    [
        "rewards.1.api_key=[key-xqthreeqx, 1]",
        "rewards.1.api_key={key-xqthreeqx: 1}",
        "rewards.1.api_key=[key-xqthreeqx",
        "rewards.1.api_key='key-xqthreeqx",
        "rewards.1.api_key.more=key-xqthreeqx",
        "rewards.9.api_key=key-xqthreeqx",
        "rewards..api_key=key-xqthreeqx",
        "rewards.1={name: nowhere:Model, api_key: key-xqthreeqx}",
        "rewards.1.phrase=81726354",
        "rewards.1.phrase=[phr-xqfourqx]",
        "rewards.1.clients.0.pin=71625344",
        "rewards.1.apikey=key-xqthreeqx",
        "rewards.0.token_of={token: tok-xqoneqx}",
        "rewards.1.size=thirteen",
        "rewards.1.size=13",
        "rewards.1.size=14",
        "rewards.1.size=15",
        "rewards.1.size=16",
        "rewards.1.weight=much",
        "train.api_key=key-xqthreeqx",
        "api_key=key-xqthreeqx",
        "callbacks.0.password=tra-xqsevenqx",
        "policy.api_key=key-xqthreeqx",
        "policy.model=nowhere/at-all",
    ],
)
def test_no_error_message_shows_a_secret(project, override, tries):
    code, output = call("train", "run.yaml", override)
    assert code == 2, output
    notes = "note: there is no accuracy"  # may come first
    assert output.startswith(("error: ", notes))
    assert "error: " in output
    assert not leaked_secrets(output.replace("apikey=key-xqthreeqx", ""))
    tries(1)


@pytest.mark.attack(PROMISE, "a callback that fails with a secret in its message")
def test_no_traceback_on_the_terminal_shows_a_secret(project, tries):
    (source,) = project.glob("keyed_*.py")
    raises = "    def on_start(self, policy):\n        raise KeyError(self.access_token)\n\n"
    source.write_text(source.read_text().replace("    def on_end", f"{raises}    def on_end"))
    code, output = call("train", "run.yaml")
    assert code == 1
    assert "Traceback" in output
    assert "KeyError" in output
    assert not leaked_secrets(output)
    tries(1)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("https://user:key-xqthreeqx@host/path", True),
        ("postgresql+psycopg://user:key-xqthreeqx@host", True),
        ("https://host/path?size=3&api_key=key-xqthreeqx", True),
        ("https://host/path?page=2#top", False),
        ("http://localhost:8000/v1", False),
        ("http://host/a:b@c", False),
        ("See https://user:word@host for more", False),
        ("user:word@host", False),
        (partial(print, api_key="key-xqthreeqx"), True),
        (partial(print, end=""), False),
    ],
)
def test_secrets_within_values_are_masked(value, expected):
    hidden = secrets.concealed({"option": value})
    assert (secrets.masked(hidden)["option"] == secrets.MASK) is expected
    assert secrets.revealed(hidden) == {"option": value}


def test_values_of_any_python_type_are_written_as_readable_yaml():
    data = {"policy": "p", "prompts": "q", "rewards": [{"name": "r", "a": b"x", "b": {2, 1}}]}
    config = load_config(data).config
    options = yaml.safe_load(dump(config))["rewards"][0]
    assert (options["a"], options["b"]) == ("b'x'", [1, 2])


def test_no_traceback_in_python_shows_a_secret(project, monkeypatch):
    for overrides in ({"rewards.1.size": "many"}, {"rewards.1.weight": "much"}):
        with pytest.raises(UserError) as caught:
            groupwise.train("run.yaml", **overrides)
        assert not leaked_secrets("".join(traceback.format_exception(caught.value)))


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (
            "api_key apikey apiKey APIKey OPENAI_API_KEY api-key api_keys private_key access_key",
            True,
        ),
        ("token hf_token HF_TOKEN accessToken auth_token wandb_token password db.password", True),
        ("secret client_secret clientSecret secrets passwd passphrase credentials", True),
        ("authorization Authorization secret_key aws_secret_access_key", True),
        ("auth proxy_auth Cookie cookies bearer", True),
        ("max_tokens tokens prompt_tokens max_new_tokens cache_tokens token_ids tokenizer", False),
        ("eos_token pad_token stop_token image_token per_token think_token special_tokens", False),
        ("key keys keyword monkey label secret_word passes password_length name 1", False),
    ],
)
def test_names_of_options_that_are_secret(keys, expected):
    assert {key: secrets.is_secret(key) for key in keys.split()} == dict.fromkeys(
        keys.split(), expected
    )


class Client:
    def __init__(self, api_key):
        self.api_key = api_key

    def __repr__(self):
        return f"Client({self.api_key})"


def test_python_objects_are_passed_on_unchanged():
    client, shared = Client("key-xqthreeqx"), []
    data = {
        "policy": "p",
        "prompts": "q",
        "rewards": [{"name": "r", "client": client, "s": shared}],
    }
    loaded = load_config(data)
    assert not leaked_secrets(dump(loaded.config))
    options = secrets.revealed(loaded.config.rewards[0].options)
    assert options["client"] is client
    assert options["s"] is shared


KEYS = st.sampled_from(["api_key", "password", "name", "rows", "tokens", "headers"])
LEAVES = st.one_of(st.text(max_size=8), st.integers(), st.booleans(), st.none(), st.floats())
OPTIONS = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)


@pytest.mark.attack(PROMISE, "hypothesis: options of any shape, masked, written and passed on")
def test_secrets_are_masked_in_options_of_any_shape(tries):
    @given(st.dictionaries(KEYS, OPTIONS))
    def attack(options):
        tries(1)
        hidden = secrets.concealed(options)
        assert repr(secrets.concealed(hidden)) == repr(hidden)
        unescaped = repr(options)
        if secrets.MASK not in unescaped and "$" not in unescaped:
            assert repr(secrets.revealed(hidden)) == unescaped
        check(secrets.masked(options), secret=False)

    def check(value, *, secret):
        if isinstance(value, dict):
            for key, inner in value.items():
                check(inner, secret=secret or secrets.is_secret(key))
        elif isinstance(value, list):
            for inner in value:
                check(inner, secret=secret)
        elif secret:
            assert value in (None, True, False, "", secrets.MASK) or secrets.REFERENCE.fullmatch(
                value
            )

    attack()


def test_secret_types_of_pydantic_may_be_passed_from_python():
    section = {
        "name": "r",
        "phrase": SecretStr("phr-xqfourqx"),
        "more": [SecretBytes(b"key-xqthreeqx")],
    }
    loaded = load_config({"policy": "p", "prompts": "q", "rewards": [section]})
    assert not leaked_secrets(repr(loaded) + dump(loaded.config))
    options = secrets.revealed(loaded.config.rewards[0].options)
    assert options == {key: section[key] for key in ("phrase", "more")}
    assert not leaked_secrets(str(UserError("refused by phr-xqfourqx and key-xqthreeqx")))


def test_an_override_below_a_secret_does_not_show_it():
    data = {"policy": "p", "prompts": "q", "rewards": [{"name": "r", "api_key": "key-xqthreeqx"}]}
    with pytest.raises(
        UserError, match=r"rewards\.0\.api_key is a secret, which has no keys"
    ) as info:
        load_config(data, {"rewards.0.api_key.part": 1})
    assert not leaked_secrets(str(info.value))


def test_secrets_in_a_file_and_on_the_command_line_are_masked(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("policy: p\nprompts: q\nrewards: [{name: r, api_key: key-xqthreeqx}]\n")
    loaded = load_config(path, ["rewards.0.db_password=key-xqnineqx", "policy.api_key=${KEY}"])
    assert not leaked_secrets(repr(loaded) + dump(loaded.config))
    assert loaded.config.policy.options == {"api_key": "${KEY}"}
