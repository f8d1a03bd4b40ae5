"""Options of `polyhead serve`: each sets what it says, and nothing else."""

import click
import msgspec
import pytest

from polyhead.cli.command import filled
from polyhead.cli.serve import command
from polyhead.cli.serve_options import keys_of
from polyhead.errors import ConfigError
from polyhead.serve.settings import MIB, ServeSettings
from support.cases import cases


def given(*words):
    """The settings of this command line."""
    values = command.make_context("serve", ["bundle", *words]).params
    return filled(ServeSettings, values)


def numbers(value, path=""):
    """Every number of the settings, by the path to it."""
    if isinstance(value, msgspec.Struct):
        return {
            inner: number
            for name in value.__struct_fields__
            for inner, number in numbers(getattr(value, name), f"{path}.{name}".strip(".")).items()
        }
    return {path: value}


OPTIONS = {
    option.opts[0]: option.name
    for option in command.params
    if isinstance(option.type, click.types.FloatRange | click.types.IntRange) and option.name != "ports"
}


def test_defaults_are_those_of_the_settings():
    assert given() == ServeSettings()
    assert len(OPTIONS) == 20


@cases("option", OPTIONS)
def test_an_option_sets_its_number_alone(option):
    before, after = numbers(ServeSettings()), numbers(given(option, "7"))
    (changed,) = [path for path in before if before[path] != after[path]]
    assert changed.rpartition(".")[2] == OPTIONS[option]
    assert after[changed] == (7 * MIB if option.endswith("-mb") else 7)


@cases("option", OPTIONS)
def test_a_number_that_is_too_small_is_refused(option):
    with pytest.raises(click.BadParameter):
        given(option, "-1")


def test_keys_come_from_the_file_and_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("POLYHEAD_KEYS", "b, c")
    monkeypatch.setenv("POLYHEAD_ADMIN_KEYS", "d")
    file = tmp_path / "keys"
    file.write_text("a # shop\n")
    keys = keys_of(str(file))
    headers = [[(b"x-api-key", key)] for key in (b"a", b"b", b"c", b"d")]
    opened = [keys.opened(own, "predict") for own in headers]
    assert [(key.name, key.purpose) for key in opened] == [
        ("shop", "predict"),
        ("predict-2", "predict"),
        ("predict-3", "predict"),
        ("admin-4", "admin"),
    ]
    assert keys.has("admin")


@pytest.mark.parametrize("content", [None, "# none\n"], ids=["no file", "no key"])
def test_a_file_without_keys_is_refused(tmp_path, content):
    file = tmp_path / "keys"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match="file of keys"):
        keys_of(str(file))
