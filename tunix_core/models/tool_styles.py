"""How families of models write tool calls. Whatever they write is read; nothing here raises.

- `hermes` (Qwen, SmolLM): `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, any number of them.
- `llama3`: `{"name": …, "parameters": {…}}`, perhaps after `<|python_tag|>`.
- `gemma`: Python calls in a fence marked `tool_code`, or the JSON of llama3.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tunix_core.models.python_calls import read_python_calls, write_python_call
from tunix_core.models.tool_calls import CLOSE, OPEN, loose_calls, read_calls, split_calls, write_call
from tunix_core.types import ToolCall

PYTHON_TAG = "<|python_tag|>"
_TOOL_CODE = re.compile(r"```tool_code\s(.*?)(?:\n[ \t]*```|```|\Z)", re.DOTALL)
_STRICT_TOOL_CODE = re.compile(r"```tool_code\s(.*?)(?:\n[ \t]*```|\Z)", re.DOTALL)
_PYTHON_LIST = re.compile(r"\[\s*[A-Za-z_][\w.]*\(")

Split = Callable[[str], tuple[str, tuple[ToolCall, ...]]]


@dataclass(frozen=True, slots=True)
class ToolStyle:
    """One way to write tool calls.

    Attributes:
        name: "hermes", "llama3" or "gemma".
        split: what a policy said -> the text around the calls, and the calls, without ids.
        write: calls -> as a policy of this style writes them; those that could not be read, as they were.
        marks: special tokens that are part of a call.
        told: how to call, for a template that doesn't say it.
    """

    name: str
    split: Split
    write: Callable[[Sequence[ToolCall]], str]
    marks: tuple[str, ...]
    told: str

    def read(self, text: str) -> tuple[str, tuple[ToolCall, ...]]:
        """What `text` says and calls. Calls are named call_0, call_1, …; reasoning holds none."""
        thought, said = _after_reasoning(text)
        around, calls = self.split(said)
        named = tuple(replace(call, id=f"call_{i}") for i, call in enumerate(calls))
        space = said[: len(said) - len(said.lstrip())] if thought and around else ""
        return thought + (space + around.lstrip() if space else around), named


def _after_reasoning(text: str) -> tuple[str, str]:
    """Reasoning up to its end, and what is said after it. What was never ended is all reasoning."""
    end = text.rfind("</think>")
    if end < 0:
        return (text, "") if text.lstrip().startswith("<think>") else ("", text)
    end += len("</think>")
    return text[:end], text[end:]


def _split_hermes(text: str) -> tuple[str, tuple[ToolCall, ...]]:
    around, bodies = split_calls(text)
    if bodies:
        return around, tuple(call for body in bodies for call in read_calls(body))
    return loose_calls(text) if _is_bare(text) else (text, ())


def _is_bare(text: str) -> bool:
    """Whether a JSON object, perhaps in a fence or a list, is all that is said."""
    bare = text.strip().removeprefix("```json").strip("`[] \n\t")
    return bare.startswith("{") and bare.endswith("}")


def _write_hermes(calls: Sequence[ToolCall]) -> str:
    return "\n".join(f"{OPEN}\n{write_call(call)}\n{CLOSE}" for call in calls)


def _split_llama3(text: str) -> tuple[str, tuple[ToolCall, ...]]:
    before, *bodies = text.split(PYTHON_TAG)
    if not bodies:
        return loose_calls(text)
    return before.strip(), tuple(call for body in bodies for call in _read_either(body))


def _read_either(body: str) -> tuple[ToolCall, ...]:
    return read_calls(body) if body.lstrip().startswith(("{", "[{")) else read_python_calls(body)


def _write_llama3(calls: Sequence[ToolCall]) -> str:
    return "; ".join(write_call(call, "parameters") for call in calls)


def _split_gemma(text: str) -> tuple[str, tuple[ToolCall, ...]]:
    fence = _STRICT_TOOL_CODE if "\n```" in text else _TOOL_CODE
    bodies = [match[1] for match in fence.finditer(text)]
    if bodies:
        return fence.sub("", text).strip(), tuple(call for body in bodies for call in _read_either(body))
    if _PYTHON_LIST.match(text.strip()):
        return "", read_python_calls(text)
    return loose_calls(text)


def _write_gemma(calls: Sequence[ToolCall]) -> str:
    lines = [write_python_call(call) for call in calls]
    if None in lines:  # the two forms don't mix
        lines = [write_call(call, "parameters") for call in calls]
    return "\n".join(("```tool_code", *(line or "" for line in lines), "```"))


STYLES = {
    style.name: style
    for style in (
        ToolStyle(
            "hermes", _split_hermes, _write_hermes, (OPEN, CLOSE, "<think>", "</think>"),
            f'To call a tool, write {OPEN}{{"name": its name, "arguments": {{…}}}}{CLOSE}.',
        ),
        ToolStyle(
            "llama3", _split_llama3, _write_llama3, (PYTHON_TAG, "<think>", "</think>"),
            'To call a tool, write nothing but {"name": its name, "parameters": {…}}.',
        ),
        ToolStyle(
            "gemma", _split_gemma, _write_gemma, (),
            "To call a tool, write it in Python with named arguments: ```tool_code\nname(argument=value)\n```",
        ),
    )
}  # fmt: skip


def style_of(template: str) -> ToolStyle:
    """The style of the family that a chat template belongs to; hermes when it is none that is known."""
    if PYTHON_TAG in template or "<|start_header_id|>" in template:
        return STYLES["llama3"]
    return STYLES["gemma" if "<start_of_turn>" in template else "hermes"]
