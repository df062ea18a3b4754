"""`Tool`: a function with a name, a description and a schema, made from its signature."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from tunix_core.contracts import Sandbox
from tunix_core.errors import ToolError, UsageError


@dataclass(frozen=True, slots=True)
class Tool:
    """A function the policy may call.

    Attributes:
        name: what the policy calls it.
        description: what the policy reads about it.
        parameters: the JSON schema of its arguments, an object.
        fn: the function, called with keywords; `def` or `async def`.
        check: arguments as the policy gave them -> keywords for `fn`; raises ToolError.
        final: a call that succeeds ends the episode, and its result is the answer.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    fn: Callable[..., Any]
    check: Callable[[Mapping[str, Any]], dict[str, Any]] = dict
    final: bool = False

    @property
    def schema(self) -> dict[str, Any]:
        """`{"name", "description", "parameters"}`, the function-calling form."""
        return {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function itself, unchecked."""
        return self.fn(*args, **kwargs)


@dataclass(frozen=True, slots=True)
class SandboxTool:
    """A tool that works in a sandbox. `as_tool(it, sandbox=…)` makes it a Tool.

    Attributes:
        bind: (sandbox, **options) -> the Tool of that sandbox; it may keep state of it (a shell, an undo list).
    """

    bind: Callable[..., Tool]


def tool(fn: Callable[..., Any] | None = None, *, name: str | None = None, description: str | None = None) -> Any:
    """Makes a typed function a Tool: `@tool`, or `@tool(name="add")`.

    Args:
        fn: its parameters' annotations become the schema, through pydantic (`Annotated[int,
            Field(description="…")]` included); a parameter without annotation takes anything.
        name: default: the function's.
        description: default: the first paragraph of its docstring.

    Raises:
        UsageError: the signature cannot be a schema.
    """
    if fn is None:
        return lambda given: tool(given, name=name, description=description)
    called = name or getattr(fn, "__name__", type(fn).__name__)
    model, fields = _arguments_model(fn, called)
    doc = inspect.getdoc(fn) or ""
    return Tool(
        name=called,
        description=description if description is not None else " ".join(doc.split("\n\n")[0].split()),
        parameters=_without_titles(model.model_json_schema()),
        fn=fn,
        check=lambda given: _checked(model, fields, given),
    )


def _arguments_model(fn: Callable[..., Any], name: str) -> tuple[type[BaseModel], dict[str, str]]:
    """A model of the arguments, and its field names by argument name (an argument may be called "copy")."""
    try:
        hints = typing.get_type_hints(fn if inspect.isroutine(fn) else type(fn).__call__, include_extras=True)
        parameters = inspect.signature(fn).parameters.values()
    except (NameError, TypeError, ValueError) as error:
        raise UsageError(f"tool {name!r}: its signature cannot be read: {error}") from error
    fields: dict[str, Any] = {}
    for index, parameter in enumerate(parameters):
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise UsageError(f"tool {name!r}: parameter {str(parameter)!r} must be one that can be given by name")
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[f"p{index}"] = (hints.get(parameter.name, Any), Field(default, alias=parameter.name))
    try:
        model = create_model("Arguments", __config__=ConfigDict(extra="forbid"), **fields)
        model.model_json_schema()
    except Exception as error:  # pydantic raises many types for annotations it has no schema for
        raise UsageError(f"tool {name!r}: its parameters have no JSON schema: {error}") from error
    return model, {field[1].alias: key for key, field in fields.items()}


def _checked(model: type[BaseModel], fields: Mapping[str, str], given: Mapping[str, Any]) -> dict[str, Any]:
    try:
        values = model.model_validate(dict(given))
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors(include_url=False)[:5])
        raise ToolError(f"invalid arguments: {wrong}. Expected: {', '.join(fields) or 'none'}.") from error
    return {name: getattr(values, key) for name, key in fields.items() if key in values.model_fields_set}


def _without_titles(schema: Any) -> Any:
    """The schema without pydantic's titles, which only cost the policy tokens."""
    if isinstance(schema, list):
        return [_without_titles(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {k: _without_titles(v) for k, v in schema.items() if not (k == "title" and isinstance(v, str))}


class ToolOutput:
    """What a class-based tool gives: an output or an error.

    Args:
        name: the tool's.
        output: text, or anything with a JSON form.
        error: what went wrong; shown instead of the output.
        metadata: anything; not shown.
    """

    def __init__(self, name: str = "", output: Any = None, error: str | None = None, metadata: Any = None) -> None:
        self.name, self.output, self.error, self.metadata = name, output, error, metadata


class BaseTool:
    """A tool written as a class: subclasses define `json` and `apply(**kwargs)` or `apply_async(**kwargs)`.

    `json` is `{"type": "function", "function": {"name", "description", "parameters"}}`. New tools are
    simpler as functions; see `tool`.
    """

    json: ClassVar[Any]

    def __init__(self, name: str, description: str) -> None:
        self.name, self.description = name, description

    def apply(self, **kwargs: Any) -> Any:
        """The call's ToolOutput."""
        raise NotImplementedError(f"{type(self).__name__} must define apply or apply_async")


def as_tool(given: Any, *, name: str | None = None, sandbox: Sandbox | None = None) -> Tool:
    """A Tool from a Tool, a typed function, a tool class, an instance of one, or a SandboxTool.

    Args:
        given: a class is built as `given(name=…, description=its docstring)`.
        name: the name to call it by, where `given` leaves that open.

    Raises:
        UsageError: it is none of these.
    """
    if isinstance(given, SandboxTool):
        if sandbox is None:
            raise UsageError("this tool works in a sandbox; give one: as_tool(…, sandbox=sandbox)")
        return given.bind(sandbox)
    if isinstance(given, Tool):
        return given
    if isinstance(given, type):
        given = given(name=name or given.__name__, description=inspect.getdoc(given) or "")
    if getattr(given, "apply", None) is not None:
        return _from_object(given)
    if callable(given):
        return tool(given, name=name)
    raise UsageError(f"a tool must be a function, a Tool or a tool class, not {type(given).__name__}: {given!r:.100}")


def _from_object(given: Any) -> Tool:
    described: Any = getattr(given, "get_json_schema", None)
    schema: Mapping[str, Any] = described() if described else given.json
    function = schema.get("function", schema)
    return Tool(
        name=given.name,
        description=function.get("description") or given.description,
        parameters=function.get("parameters") or {"type": "object", "properties": {}},
        fn=_applied(given),
    )


def _applied(given: Any) -> Callable[..., Any]:
    """How to call a tool object: its own `apply` if it has one, else its `apply_async`."""
    own = {name for cls in type(given).__mro__ if cls.__name__ not in ("BaseTool", "object") for name in vars(cls)}
    if "apply" in own or "apply_async" not in own:
        return lambda **arguments: _output(given.apply(**arguments))

    async def apply_async(**arguments: Any) -> Any:
        return _output(await given.apply_async(**arguments))

    return apply_async


def _output(result: Any) -> Any:
    if error := getattr(result, "error", None):
        raise ToolError(str(error))
    return getattr(result, "output", result)
