"""Options that open-r1's configurations have beside TRL's."""

from groupwise_commands.porting.port import Port


def write_column(port: Port) -> None:
    port.write("prompts.prompt", port.get("dataset_prompt_column"))
    port.write("prompts.chat", value=True)


def write_system(port: Port) -> None:
    if port.get("system_prompt"):
        port.write("prompts.system", port.get("system_prompt"))
        port.write("prompts.chat", value=True)


def write_template(port: Port) -> None:
    if port.get("chat_template"):
        known = port.get("chat_template_kwargs") or {}
        port.write("policy.chat_template", {**known, "chat_template": port.get("chat_template")})
