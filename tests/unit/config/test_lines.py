"""The line of every key, whatever way TOML lets it be written."""

from __future__ import annotations

import tomllib

import pytest

from tunix_core.config.lines import Path, key_lines

TEXT = '''\
# a comment = 1
title = "not # a comment"
a.b . "c d" = 1
multi = """
x = 1
[[not.a.header]]
\\""" still inside
"""
literal = \'\'\'
y = 2\'\'\'
list = [
  1, # one ]
  "two, ]",
  [3,
   4],
]
inline = { k = 1, n = { deep = [ { e = 1 } ] } }
when = 1979-05-27 07:32:00
[table.'quoted key'] # why
key = true
[[array]]
x = 1
[array.sub]
y = 1
[[array]]
x = 2
[[array.inner]]
z = 1
[[array.inner]]
z = 2
[array.inner.sub]
w = 3
'''


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("title",), 2),
        (("a",), 3),
        (("a", "b", "c d"), 3),
        (("multi",), 4),
        (("literal",), 9),
        (("list",), 11),
        (("list", 0), 12),
        (("list", 1), 13),
        (("list", 2), 14),
        (("list", 2, 1), 15),
        (("inline", "n", "deep", 0, "e"), 17),
        (("when",), 18),
        (("table", "quoted key"), 19),
        (("table", "quoted key", "key"), 20),
        (("array", 0, "x"), 22),
        (("array", 0, "sub", "y"), 24),
        (("array", 1), 25),
        (("array", 1, "x"), 26),
        (("array", 1, "inner", 0, "z"), 28),
        (("array", 1, "inner", 1, "z"), 30),
        (("array", 1, "inner", 1, "sub", "w"), 32),
    ],
)
def test_the_line_of(path: Path, line: int) -> None:
    assert key_lines(TEXT)[path] == line


def test_every_key_of_the_text_is_found_and_nothing_else() -> None:
    assert set(key_lines(TEXT)) == set(_paths(tomllib.loads(TEXT), ()))


def _paths(value: object, path: Path) -> list[Path]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, item in items for found in [(*path, key), *_paths(item, (*path, key))]]
