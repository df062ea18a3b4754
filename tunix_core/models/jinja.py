"""Chat templates as checkpoints have them: Jinja, in a sandbox, with the names that templates count on."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date, datetime, time
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tunix_core.errors import CheckpointError, ModelError


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks what a policy says; it renders as what it holds."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A chat template, ready to render.

    Args:
        source: Jinja.
        today: what `strftime_now` tells.

    Attributes:
        names: the variables it reads.

    Raises:
        CheckpointError: it isn't Jinja.
    """

    def __init__(self, source: str, today: date) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = _clock(today)
        try:
            self.names = meta.find_undeclared_variables(environment.parse(source))
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise CheckpointError(f"line {error.lineno} of the chat template is not Jinja: {error.message}") from error

    def render(self, **variables: Any) -> str:
        """The text. Raises ModelError when the template refuses the messages or fails on them."""
        try:
            return self._template.render(**variables)
        except Exception as error:  # a checkpoint's template may fail in any way
            raise ModelError(f"the chat template can't render these messages: {error}", retry=False) from error


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """Jinja's own filter writes for HTML; templates expect plain JSON."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


def _clock(today: date) -> Callable[[str], str]:
    return datetime.combine(today, time()).strftime
