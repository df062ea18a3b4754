"""One problem of the data set, in either of its published forms, checked field by field.

Up to 4.x of the harness a row names its tests and its `version`, and the harness knows the rest; from
5.x on it brings `image`, `eval_script`, `log_parser` and `eval_type` itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

START = ">>>>> Start Test Output"
END = ">>>>> End Test Output"
# Whose parsers record failures only, in the harness up to 4.x; a later row says it itself.
_FAIL_ONLY = {"chartjs/Chart.js", "processing/p5.js", "markedjs/marked"}
_Text = Field(min_length=1)


class Row(BaseModel):
    """A problem. `eval_script` and `log_parser` are empty only in a row of the older form.

    Attributes:
        instance_id: names it; `repo__name-number` in the published sets.
        patch: the reference solution.
        test_patch: brings the hidden tests.
        fail_to_pass, pass_to_pass: ids of tests that must pass afterwards: those the bug breaks, and the others.
        image: what its container starts from; "" is the published name.
        eval_script: a bash script that applies the test patch and runs the tests between two markers.
        log_parser: the parser's name in the harness, or "tunix/pytest".
        eval_type: "fail_only" where the parser only sees failures.
        source: where a build takes the repository from; see `building`.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)

    instance_id: str = Field(pattern=r"^[A-Za-z0-9][\w.-]*$")
    repo: str = Field(pattern=r"^[\w.-]+/[\w.-]+$")
    base_commit: str = _Text
    problem_statement: str = _Text
    patch: str = _Text
    test_patch: str = _Text
    fail_to_pass: tuple[str, ...] = Field(alias="FAIL_TO_PASS", min_length=1)
    pass_to_pass: tuple[str, ...] = Field((), alias="PASS_TO_PASS")
    version: str = ""
    image: str = ""
    eval_script: str = ""
    log_parser: str = ""
    eval_type: Literal["", "pass_and_fail", "fail_only"] = ""
    source: Mapping[str, Any] = Field(default_factory=dict)

    @field_validator("fail_to_pass", "pass_to_pass", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        """A list, or its JSON text, as the published files have it."""
        if not isinstance(value, str):
            return value if value is None else list(value)
        try:
            return json.loads(value)
        except ValueError as error:
            raise ValueError(f"expected a list of test ids or its JSON text: {error}") from error

    @field_validator("version", "image", "eval_script", "log_parser", "eval_type", "source", mode="before")
    @classmethod
    def _present(cls, value: Any, info: Any) -> Any:
        """A column that other rows fill is null here."""
        return ({} if info.field_name == "source" else "") if value is None else value

    @field_validator("problem_statement", "patch", "test_patch")
    @classmethod
    def _said(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("it is blank")
        return value

    @field_validator("eval_script")
    @classmethod
    def _marked(cls, value: str) -> str:
        missing = [marker for marker in (START, END) if value and marker not in value]
        if missing:
            raise ValueError(f"it has no line with {missing[0]!r}, so its test output can't be found")
        return value

    @model_validator(mode="before")
    @classmethod
    def _without_pictures(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and _has_assets(values.get("image_assets")):
            raise ValueError("image_assets: its tests need pictures that a patch can't carry; this is not supported")
        return values

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if bool(self.eval_script) != bool(self.log_parser):
            there, missing = ("eval_script", "log_parser") if self.eval_script else ("log_parser", "eval_script")
            raise ValueError(f"{missing}: a row with {there} needs it as well")
        if not self.eval_script and not self.version:
            raise ValueError("version: a row without eval_script needs it, to find its test command")
        return self

    @property
    def fail_only(self) -> bool:
        """Whether a test that isn't in the log passed."""
        return self.eval_type == "fail_only" or (not self.eval_type and self.repo in _FAIL_ONLY)

    @property
    def image_name(self) -> str:
        """`image`, or the name under which the project publishes it."""
        return self.image or published_image(self.instance_id)

    def to_dict(self) -> dict[str, Any]:
        """The row under its published names; `Row.model_validate` takes it back."""
        return self.model_dump(by_alias=True, mode="json")


def published_image(instance_id: str) -> str:
    """The official image of an instance; "__" isn't allowed in such names and is written "_1776_"."""
    return f"swebench/sweb.eval.x86_64.{instance_id.lower()}:latest".replace("__", "_1776_")


def _has_assets(value: Any) -> bool:
    value = json.loads(value) if isinstance(value, str) and value.strip() else value
    return any(value.values()) if isinstance(value, Mapping) else bool(value)


@dataclass(frozen=True, slots=True)
class Refused:
    """A row that can't be used: its id (or its place), the field, and what is wrong with it."""

    instance_id: str
    field: str
    problem: str

    def __str__(self) -> str:
        return f"{self.instance_id}: {self.field}: {self.problem}"


def check_rows(raw: Iterable[Any]) -> tuple[list[Row], list[Refused]]:
    """Those rows that can be used, and why the others can't. An id that came before is refused."""
    rows: dict[str, Row] = {}
    refused: list[Refused] = []
    for number, values in enumerate(raw, 1):
        identity = str(values.get("instance_id") or "") if isinstance(values, Mapping) else ""
        name = identity or f"row {number}"
        try:
            row = Row.model_validate(values)
        except ValidationError as error:
            refused += _reasons(name, error)
        else:
            if row.instance_id in rows:
                refused.append(Refused(name, "instance_id", f"row {number} has the id of an earlier row"))
            rows.setdefault(row.instance_id, row)
    return list(rows.values()), refused


def _reasons(name: str, error: ValidationError) -> Sequence[Refused]:
    found = []
    for each in error.errors(include_url=False, include_context=False):
        problem = each["msg"].removeprefix("Value error, ")
        field = str(each["loc"][0]) if each["loc"] else ""
        if not field and (match := re.match(r"(\w+): ", problem)):  # a check of the whole row names its field
            field, problem = match[1], problem[match.end() :]
        found.append(Refused(name, field or "row", problem))
    return found
