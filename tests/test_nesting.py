"""Levels of TOML are counted before it is read: hostile files are refused at once, and others are read as before."""

import tomllib

import pytest

from polyhead.errors import ConfigError
from polyhead.nesting import DEEPEST, toml_of
from support.cases import cases

MANY = 100_000


def written(folder, text):
    (folder / "t.toml").write_text(text, encoding="utf-8")
    return folder / "t.toml"


@cases(
    "text",
    [
        "a" + ".a" * MANY + " = 1",
        "a" + " . \t a" * MANY + " = 1",
        "[a" + '."a"' * MANY + "]",
        "[[a" + ".'a'" * MANY + "]]",
        "x = { a" + ".a" * MANY + " = 1 }",
        "x = " + "[" * MANY + "]" * MANY,
        "x = " + "{a = " * MANY + "1" + "}" * MANY,
        "x = [\n" * MANY,
        "a" + ".a" * DEEPEST + ".a = 1",
    ],
    ids=lambda text: text[:20],
)
def test_what_is_nested_too_deeply_is_refused(tmp_path, text):
    with pytest.raises(ConfigError, match="is nested too deeply"):
        toml_of(written(tmp_path, text))


@cases(
    "text",
    [
        "a" + ".a" * (DEEPEST - 1) + " = 1",
        f'x = "{"." * 1000}"  # {"[" * 1000}',
        f"x = '{'[' * 1000}'",
        f'x = """\n{"a." * 1000}\n{"{" * 1000}"""\ny = 1',
        f"x = '''\n{'a.' * 1000}\n\"\n{'[' * 1000}'''",
        r'x = "\"[[[[' + "[" * 1000 + r'\\"' + "\ny = [[1.5, 2.5], [3.5]]",
        "x = [\n" + "1.5, 2.5,\n" * 200 + "]",
        "".join(f"[[tasks]]\nname = 't{n}'\n[tasks.more]\n" for n in range(200)),
    ],
    ids=lambda text: text[:20],
)
def test_any_other_file_is_read_as_python_reads_it(tmp_path, text):
    assert toml_of(written(tmp_path, text)) == tomllib.loads(text)


@cases(
    "text", ['x = "' + r"\"" * MANY, 'x = """' + '"" ' * MANY, "x = '''" + "'' " * MANY, "x = " + "'" * MANY + "\n'"]
)
def test_a_string_that_never_ends_is_no_toml_and_takes_no_time(tmp_path, text):
    with pytest.raises(ConfigError, match="is not TOML"):
        toml_of(written(tmp_path, text))
