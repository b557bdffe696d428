"""Reads TRL's settings: a YAML or JSON file, or the calls in a Python script, by their source."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from groupwise.config.yaml_lines import read
from groupwise.kit import foreign_json
from groupwise.kit.errors import UserError
from groupwise_commands.porting.constants import NotConstantError, constant, dotted
from groupwise_commands.porting.settings import Settings, Unread, text_of
from groupwise_commands.porting.trl import unsloth
from groupwise_commands.porting.trl.names import assigned, constants, imports

EXPECTED = "a GRPOConfig as YAML or JSON, or a Python script that calls GRPOConfig"
LORA = {
    "r": "lora_r",
    "lora_alpha": "lora_alpha",
    "lora_dropout": "lora_dropout",
    "target_modules": "lora_target_modules",
    "target_parameters": "lora_target_parameters",
    "modules_to_save": "lora_modules_to_save",
    "task_type": "lora_task_type",
    "use_rslora": "use_rslora",
    "use_dora": "use_dora",
}
"""Names of `trl grpo` for those of peft's `LoraConfig`."""
OF_PEFT = {"use_peft": True, "lora_r": 8, "lora_alpha": 8, "lora_dropout": 0.0}
"""What a `LoraConfig` is unless set; the defaults of `trl grpo` are others."""
QUANTIZATION = {
    "load_in_4bit": "load_in_4bit",
    "load_in_8bit": "load_in_8bit",
    "bnb_4bit_quant_type": "bnb_4bit_quant_type",
    "bnb_4bit_use_double_quant": "use_bnb_nested_quant",
    "bnb_4bit_compute_dtype": "bnb_4bit_quant_storage",
}


def settings(config: str) -> Settings:
    """Raises UserError if the file is not TRL's."""
    path = Path(config)
    text = text_of(path, EXPECTED)
    if path.suffix == ".py":
        return _Script(path, text).settings()
    if path.suffix == ".json":
        return Settings(source=config, stated=_mapping(_json(path, text), config))
    return Settings(source=config, stated=_mapping(read(text, config)[0], config))


def _json(path: Path, text: str) -> Any:
    try:
        return foreign_json.read(text)
    except ValueError as error:
        raise UserError(f"{path}: not valid JSON ({error}); expected {EXPECTED}") from None


def _mapping(data: Any, source: str) -> Mapping[str, Any]:
    if not isinstance(data, Mapping) or not data:
        kind = "nothing" if not data else f"a {type(data).__name__}"
        raise UserError(f"{source}: expected {EXPECTED}, found {kind}")
    if "policy" in data or "actor_rollout_ref" in data or "bundle" in data:
        raise UserError(f"{source}: not TRL's; expected {EXPECTED}, found the keys {_keys(data)}")
    return data


def _keys(data: Mapping[str, Any]) -> str:
    return ", ".join(list(map(str, data))[:5])


_DEFERRED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.If)
"""Statements whose bodies do not, or may not, run when a file is imported."""


class _Script:
    """The calls of a script, and the constants that it assigns once."""

    def __init__(self, path: Path, text: str) -> None:
        self.path, self.stated, self.unread = path, dict[str, Any](), dict[str, Unread]()
        try:
            self.tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError) as error:
            line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
            raise UserError(f"{path}{line}: not valid Python; expected {EXPECTED}") from None
        self.assigned = assigned(self.tree)
        self.names = constants(self.assigned)
        self.imports = imports(self.tree)

    def settings(self) -> Settings:
        config, trainer = self._call("GRPOConfig"), self._call("GRPOTrainer")
        if config is None and trainer is None:
            raise UserError(
                f"{self.path}: no call of GRPOConfig; expected {EXPECTED}. A script that parses "
                f"its settings from the command line has them in a YAML file: port that"
            )
        if config is not None:
            if config.args:
                self._read("output_dir", config.args[0])
            self._keywords(config, {})
            self._attributes(config)
        if trainer is not None:
            self._trainer(trainer)
            self._model()
        remarks = (self._remark(),) if self._runs_when_imported() else ()
        return Settings(
            source=str(self.path), stated=self.stated, unread=self.unread, remarks=remarks
        )

    def _runs_when_imported(self) -> bool:
        """Whether functions are named that cannot be imported without training."""
        functions = [
            each
            for name in ("reward_funcs", "tools", "environment_factory")
            for each in self.stated.get(name, ())
            if str(each).startswith(f"{self.path.stem}:")
        ]
        top = (node for node in self.tree.body if not isinstance(node, _DEFERRED))
        return bool(functions) and any(
            dotted(call.func).endswith("GRPOTrainer") for node in top for call in _calls(node)
        )

    def _remark(self) -> str:
        return (
            f"{self.path.name} trains when it is imported: move its functions to a file without "
            f"the trainer, and name that in place of {self.path.stem}"
        )

    def _call(self, name: str) -> ast.Call | None:
        calls = [each for each in _calls(self.tree) if dotted(each.func).split(".")[-1] == name]
        if len(calls) > 1:
            lines = ", ".join(str(each.lineno) for each in calls)
            raise UserError(
                f"{self.path}: {len(calls)} calls of {name}, in lines {lines}; port a copy of the "
                f"script that has one"
            )
        return calls[0] if calls else None

    def _keywords(self, call: ast.Call, names: Mapping[str, str], *, only: bool = False) -> None:
        """names: other names of arguments; only: leave out those that it does not have."""
        for keyword in call.keywords:
            if keyword.arg is None:
                source = f"**{ast.unparse(keyword.value)}"
                self.unread[f"arguments of {dotted(call.func)}"] = Unread(
                    source=source, line=call.lineno
                )
            elif not only or keyword.arg in names:
                self._read(names.get(keyword.arg, keyword.arg), keyword.value)

    def _attributes(self, config: ast.Call) -> None:
        """Those that are set on the configuration afterwards, as by `args.beta = 0.04`."""
        names = {name for name, value in self.assigned.items() if value is config}
        changes = [
            (target, node.value)
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Attribute) and dotted(target.value) in names
        ]
        for target, value in sorted(changes, key=lambda change: change[0].lineno):
            self.stated.pop(target.attr, None)
            self._read(target.attr, value)

    def _read(self, name: str, node: ast.expr) -> None:
        try:
            self.stated[name] = constant(node, self.names)
        except NotConstantError:
            self.unread[name] = Unread(source=ast.unparse(node), line=node.lineno)

    def _trainer(self, call: ast.Call) -> None:
        arguments = {each.arg: each.value for each in call.keywords if each.arg}
        arguments |= dict(zip(("model", "reward_funcs"), call.args, strict=False))
        plain = {"model": "model_name_or_path"}
        for name, node in arguments.items():
            value = self._behind(node)
            if name in ("reward_funcs", "tools", "environment_factory"):
                self._functions(name, value)
            elif name in ("train_dataset", "eval_dataset"):
                self._dataset(name, value)
            elif name == "peft_config" and isinstance(value, ast.Call):
                self.stated |= OF_PEFT
                self._keywords(value, LORA, only=True)
            elif name == "quantization_config" and isinstance(value, ast.Call):
                self._keywords(value, QUANTIZATION, only=True)
            elif name != "args" and not _is_none(value):
                self._read(plain.get(name, name), node)

    def _model(self) -> None:
        """The model and its adapters, where other calls than the trainer's make them."""
        calls = [*_calls(self.tree)]
        if (loading := unsloth.loading(calls)) is not None:
            self.stated |= unsloth.UNLESS_SET
            self.unread.pop("model_name_or_path", None)  # of a name that is bound twice
            arguments = {each.arg: each.value for each in loading.keywords if each.arg}
            arguments |= dict(zip(("model_name",), loading.args, strict=False))
            for theirs, name in unsloth.MODEL.items():
                if theirs in arguments:
                    self._read(name, arguments[theirs])
        if (wrapping := unsloth.wrapping(calls)) is not None:
            config = wrapping
            if unsloth.is_of_unsloth(wrapping):
                self.stated |= unsloth.LORA_UNLESS_SET
            else:
                self.stated |= OF_PEFT
                behind = map(self._behind, wrapping.args[1:])
                config = next((each for each in behind if isinstance(each, ast.Call)), wrapping)
            self._keywords(config, LORA, only=True)

    def _behind(self, node: ast.expr) -> ast.expr:
        """What a name stands for, if it is assigned once."""
        name = dotted(node)
        return self.assigned.get(name, node) if name else node

    def _functions(self, name: str, node: ast.expr) -> None:
        """The names of functions, as module:function; a string is the name of a model."""
        items = node.elts if isinstance(node, ast.List | ast.Tuple) else [node]
        names = [self._function(item) for item in items]
        if None in names:
            self.unread[name] = Unread(source=ast.unparse(node), line=node.lineno)
        known = [each for each in names if each is not None]
        if name == "environment_factory" and known:
            self.stated[name] = known[0]
        elif known:
            self.stated[name] = known

    def _function(self, node: ast.expr) -> str | None:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return node.value
        node = node.func if isinstance(node, ast.Call) else self._behind(node)
        node = node.func if isinstance(node, ast.Call) else node
        name = dotted(node)
        if not name:
            return None
        head, _, rest = name.partition(".")
        module, function = self.imports.get(head, (self.path.stem, head))
        if rest:
            *middle, function = rest.split(".")
            module = ".".join([module, *middle] if head in self.imports else [head, *middle])
        return f"{module}:{function}"

    def _dataset(self, name: str, node: ast.expr) -> None:
        """`load_dataset(path, subset, split=...)`, also with an index or a method behind it."""
        split, changes = None, list[tuple[str, int]]()
        while not (isinstance(node, ast.Call) and dotted(node.func).endswith("load_dataset")):
            inner = _inner(node)
            if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
                split = node.slice.value
            if inner is None:
                self.unread[name] = Unread(source=ast.unparse(node), line=node.lineno)
                return
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                changes.insert(0, (_without(node, inner), node.lineno))
            node = self._behind(inner)
        if changes:
            calls = "".join(call for call, _ in changes)
            self.unread[f"changes of {name}"] = Unread(source=calls, line=changes[0][1])
        if name == "eval_dataset":
            self.unread[name] = Unread(source=ast.unparse(node), line=node.lineno)
            return
        for key, value in zip(("dataset_name", "dataset_config"), node.args, strict=False):
            self._read(key, value)
        files = {each.arg: each.value for each in node.keywords}.get("data_files")
        if files is not None:  # the first argument is then the kind of these files
            self.stated.pop("dataset_name", None)
            self._read("dataset_name", files)
        self._keywords(
            node,
            {"path": "dataset_name", "name": "dataset_config", "split": "dataset_train_split"},
            only=True,
        )
        if split is not None:
            self.stated["dataset_train_split"] = split


def _inner(node: ast.expr) -> ast.expr | None:
    """What a subscript or the call of a method is of."""
    if isinstance(node, ast.Subscript):
        return node.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.value
    return None


def _without(call: ast.expr, inner: ast.expr) -> str:
    """`.method(...)` of `inner.method(...)`."""
    return ast.unparse(call).removeprefix(ast.unparse(inner))


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
