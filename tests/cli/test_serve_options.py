"""Options of `polyhead serve`: each sets what it says, and nothing else."""

import click
import msgspec
import pytest

from polyhead.cli.serve import command
from polyhead.cli.serve_options import IN_MIB, MIB, NUMBERS, keys_of, serve_settings
from polyhead.errors import ConfigError
from polyhead.serve.settings import ServeSettings


def given(*words):
    """The values of all options of this command line."""
    return command.make_context("serve", ["bundle", *words]).params


def flat(value, path=""):
    """Every number of the settings, by the path to it."""
    if isinstance(value, msgspec.Struct):
        return {
            inner: number
            for name in value.__struct_fields__
            for inner, number in flat(getattr(value, name), f"{path}.{name}".strip(".")).items()
        }
    return {path: value}


def test_defaults_are_those_of_the_settings():
    assert serve_settings(given()) == ServeSettings()


@pytest.mark.parametrize("option", NUMBERS)
def test_an_option_sets_its_number_alone(option):
    path, _, _ = NUMBERS[option]
    changed = flat(serve_settings(given(option, "7")))
    expected = 7 * MIB if path in IN_MIB else 7
    assert changed[path] == expected
    assert changed | {path: None} == flat(ServeSettings()) | {path: None}


@pytest.mark.parametrize("option", NUMBERS)
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
