"""Configuration: strict, frozen, and every error says where and what would be right."""

import math
from decimal import Context, Decimal
from typing import Literal

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyhead.errors import BadName, ConfigError
from polyhead.values import MANY, Value, digested, few_digits, from_json, read_toml, to_json, to_value
from support.cases import cases
from support.tiny_project import to_toml


class Frozen(Value, tag="frozen", tag_field="kind"):
    epochs: int = 10
    layers: Literal["last", "mean"] = "mean"


class Joint(Value, tag="joint", tag_field="kind"):
    sampling: float = 0.5


class Entry(Value):
    name: str
    labels: tuple[str, ...] = ()
    recipe: Frozen | Joint | None = None


class Project(Value):
    seed: int = 1
    share: float = 0.1
    tasks: tuple[Entry, ...] = ()
    files: dict[str, Entry] = {}
    only: Frozen | None = None


def write(folder, text):
    path = folder / "polyhead.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_values_are_frozen_keyword_only_and_strict():
    entry = Entry(name="a")
    with pytest.raises(AttributeError):
        entry.name = "b"
    with pytest.raises(TypeError):
        Entry("a")
    with pytest.raises(TypeError):
        Entry(name="a", colour="red")


def test_a_file_is_read_as_declared(tmp_path):
    text = """
    seed = 3
    [[tasks]]
    name = "a"
    labels = ["no", "yes"]
    recipe = { kind = "joint", sampling = 1.0 }
    """
    assert read_toml(write(tmp_path, text), Project) == Project(
        seed=3, tasks=(Entry(name="a", labels=("no", "yes"), recipe=Joint(sampling=1.0)),)
    )


WRONG_KEYS = {
    "top": ("sed = 3", "the top level", "seed", "$"),
    "nested": ('[[tasks]]\nname = "a"\nlabls = []', "tasks[0]", "labels", "$.tasks[0]"),
    "second": ('[[tasks]]\nname = "a"\n[[tasks]]\nnam = "b"\nname = "b"', "tasks[1]", "name", "$.tasks[1]"),
    "tagged": (
        '[[tasks]]\nname = "a"\nrecipe = { kind = "joint", samplng = 1.0 }',
        "tasks[0].recipe",
        "sampling",
        "$.tasks[0].recipe",
    ),
    "one-of-a-kind": ('only = { kind = "frozen", epoch = 2 }', "only", "epochs", "$.only"),
    "kind-itself": ('only = { knd = "frozen" }', "only", "kind", "$.only"),
    "in-a-table": ('[files.x]\nname = "a"\nlabel = []', "files.x", "labels", "$.files.x"),
}


@pytest.mark.parametrize("case", WRONG_KEYS)
def test_a_wrong_key_names_its_path_and_the_nearest_right_one(tmp_path, case):
    text, where, nearest, path = WRONG_KEYS[case]
    with pytest.raises(ConfigError) as caught:
        read_toml(write(tmp_path, text), Project)
    message = str(caught.value)
    assert "polyhead.toml: unknown key" in message
    assert f"in {where}." in message
    assert f"did you mean '{nearest}'?" in message
    assert caught.value.path == path
    assert nearest in caught.value.allowed


def test_the_allowed_keys_of_a_tagged_value_are_those_of_its_own_kind(tmp_path):
    text = '[[tasks]]\nname = "a"\nrecipe = { kind = "joint", epochs = 2 }'
    with pytest.raises(ConfigError) as caught:
        read_toml(write(tmp_path, text), Project)
    assert "sampling" in caught.value.allowed
    assert "epochs" not in caught.value.allowed


def test_a_file_that_begins_with_a_byte_order_mark_is_read(tmp_path):
    """As some editors write it."""
    path = tmp_path / "polyhead.toml"
    path.write_bytes(b"\xef\xbb\xbfseed = 4")
    assert read_toml(path, Project).seed == 4


@pytest.mark.parametrize(("key", "said"), [("name", r"\[\[tasks\]\] or \[\[?files"), ("labels", r"\[\[tasks\]\]")])
def test_a_key_of_several_tables_is_told_all_of_them(tmp_path, key, said):
    with pytest.raises(ConfigError, match=f"unknown key '{key}'.*put it into the table {said}"):
        read_toml(write(tmp_path, f'{key} = "x"'), Project)


def test_a_key_of_a_table_that_stands_at_the_top_is_told_its_table(tmp_path):
    with pytest.raises(ConfigError, match=r"unknown key 'epochs'.*put it into the table \[only\]"):
        read_toml(write(tmp_path, "epochs = 2"), Project)


def test_a_key_like_no_other_is_to_be_removed(tmp_path):
    with pytest.raises(ConfigError, match="Do: remove the key"):
        read_toml(write(tmp_path, "zzzzzz = 1"), Project)


class Rate(Value):
    value: float = 1.0

    def __post_init__(self):
        if self.value < 0:
            raise ConfigError("a rate is below zero", got=self.value, allowed="0 or more", do="raise it", least=0)


class Named(Value, tag="named", tag_field="kind"):
    name: str = "a"

    def __post_init__(self):
        if not self.name:
            raise BadName("a name is empty")


class Plain(Value, tag="plain", tag_field="kind"):
    rate: Rate = Rate()


class Whole(Value):
    rate: Rate | None = None
    rates: tuple[Rate, ...] = ()
    several: list[Named | Plain] | None = None
    by_name: dict[str, Plain | None] = {}
    least: int = 0

    def __post_init__(self):
        if len(self.rates) < self.least:
            raise ConfigError("too few rates")


REFUSED = {
    "whole": ("least = 1", "", ConfigError),
    "field": ("least = 0\n[rate]\nvalue = -1.0", "rate", ConfigError),
    "list": ("[[rates]]\n[[rates]]\nvalue = -1.0", "rates[1]", ConfigError),
    "one-of-a-kind": ("[[several]]\nkind = 'plain'\n[[several]]\nkind = 'named'\nname = ''", "several[1]", BadName),
    "below-it": ("[[several]]\nkind = 'plain'\nrate = { value = -1.0 }", "several[0].rate", ConfigError),
    "in-a-table": ("[by_name.x]\nkind = 'plain'\nrate = { value = -1.0 }", "by_name.x.rate", ConfigError),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_value_that_refuses_itself_is_named_with_its_file_and_its_path(tmp_path, case):
    """Checks of a value's own said neither."""
    text, where, kind = REFUSED[case]
    with pytest.raises(kind) as caught:
        read_toml(write(tmp_path, text), Whole)
    assert type(caught.value) is kind
    said = f"polyhead.toml, {where}: " if where else "polyhead.toml: too few rates"
    assert said in str(caught.value)
    assert caught.value.path == (f"$.{where}" if where else "$")


def test_what_a_refusal_says_is_kept():
    with pytest.raises(ConfigError) as caught:
        to_value({"rate": {"value": -1.0}}, Whole, source="here")
    said = "here, rate: a rate is below zero. Got: -1.0. Allowed: 0 or more. Do: raise it."
    assert str(caught.value) == said and caught.value.least == 0


WRONG_VALUES = {
    "text-for-number": ('seed = "three"', "at seed.", 'Got: "three". Allowed: a whole number.'),
    "float-for-int": ("seed = 3.5", "at seed.", "Got: 3.5. Allowed: a whole number."),
    "boolean-for-int": ("seed = true", "at seed.", "Got: true. Allowed: a whole number."),
    "number-for-text": ("[[tasks]]\nname = 3", "at tasks[0].name.", "Got: 3. Allowed: a string."),
    "text-for-list": (
        '[[tasks]]\nname = "a"\nlabels = "no"',
        "at tasks[0] ('a').labels.",
        'Got: "no". Allowed: a list.',
    ),
    "not-in-the-list": ('only = { kind = "frozen", layers = "some" }', "at only.layers.", "'some'"),
    "unknown-kind": ('[[tasks]]\nname = "a"\nrecipe = { kind = "free" }', "at tasks[0] ('a').recipe.kind.", "'free'"),
    "missing": ("[[tasks]]\nlabels = []", "key 'name' is missing in tasks[0]", "Do: add the key 'name'."),
    "list-for-table": ("only = []", "at only.", "Allowed: a table."),
}


@pytest.mark.parametrize("case", WRONG_VALUES)
def test_a_wrong_value_names_its_path_and_what_is_expected(tmp_path, case):
    text, path, expected = WRONG_VALUES[case]
    with pytest.raises(ConfigError) as caught:
        read_toml(write(tmp_path, text), Project)
    message = str(caught.value)
    assert "polyhead.toml" in message
    assert path in message
    assert expected in message


class Waves(Value, tag="waves", tag_field="kind"):
    how: Literal["annealed", "even"] = "even"
    mode: Literal["a", "b"] | None = None


class Steps(Value, tag="steps", tag_field="kind"):
    how: Literal["all", "none"] = "all"
    count: Literal[1, 2] = 1


class Choices(Value):
    one: Waves | None = None
    several: tuple[Waves | Steps, ...] | None = None
    by_name: dict[str, Waves | Steps] = {}
    both: tuple[Literal["left"], Literal["right"]] = ("left", "right")
    within: tuple[tuple[Literal["in", "out"], ...], ...] = ()
    keyed: dict[Literal["first", "last"], int] = {}
    auto: int | Literal["auto"] | None = None


WRONG_CHOICES = {
    "field": ({"one": {"kind": "waves", "how": "anneal"}}, "$.one.how", ["annealed", "even"], "annealed"),
    "optional": ({"one": {"kind": "waves", "mode": "c"}}, "$.one.mode", ["a", "b"], None),
    "tag": ({"several": [{"kind": "wave"}]}, "$.several[0].kind", ["waves", "steps"], "waves"),
    "only-tag": ({"one": {"kind": "steps"}}, "$.one.kind", ["waves"], None),
    "union": (
        {"several": [{"kind": "waves"}, {"kind": "steps", "how": "al"}]},
        "$.several[1].how",
        ["all", "none"],
        "all",
    ),
    "number": ({"several": [{"kind": "steps", "count": 3}]}, "$.several[0].count", [1, 2], None),
    "in-a-table": (
        {"by_name": {"x": {"kind": "steps", "how": "all"}, "y": {"kind": "waves", "how": "all"}}},
        "$.by_name.y.how",
        ["annealed", "even"],
        None,
    ),
    "place": ({"both": ["left", "rigt"]}, "$.both[1]", ["right"], "right"),
    "nested": ({"within": [["in"], ["in", "ou"]]}, "$.within[1][1]", ["in", "out"], "out"),
    "key": ({"keyed": {"frist": 1}}, "$.keyed", ["first", "last"], "first"),
    "or-a-number": ({"auto": "aut"}, "$.auto", ["auto", "a value of type int"], "auto"),
    "quotes": ({"one": {"kind": "waves", "how": "it's\n`x` - at `$.y`"}}, "$.one.how", ["annealed", "even"], None),
}


@cases("case", WRONG_CHOICES)
def test_a_wrong_choice_names_those_that_are_allowed_and_the_nearest(case):
    """It said 'Invalid enum value', and no more."""
    data, path, allowed, nearest = WRONG_CHOICES[case]
    with pytest.raises(ConfigError) as caught:
        to_value(data, Choices, source="here")
    assert (caught.value.path, caught.value.allowed) == (path, allowed)
    assert f" at {path.removeprefix('$.')}." in str(caught.value) and str(caught.value).startswith("here: wrong ")
    assert caught.value.do == (f"did you mean '{nearest}'?" if nearest else "give one of these")


class Mixed(Value):
    pair: tuple[int, Rate] | None = None


def test_a_refusal_in_the_second_place_of_a_pair_has_its_path():
    """Its kind was taken for that of the first place."""
    with pytest.raises(ConfigError, match="here, pair\\[1\\]: a rate is below zero"):
        to_value({"pair": [1, {"value": -1.0}]}, Mixed, source="here")


def test_a_wrong_key_in_an_optional_list_names_the_nearest():
    with pytest.raises(ConfigError, match="unknown key 'modes' in several\\[0\\].*did you mean 'mode'"):
        to_value({"several": [{"kind": "waves", "modes": "a"}]}, Choices, source="here")


def test_a_wrong_choice_in_a_project_file_says_what_is_allowed():
    """Four structs deep, one of them of a tagged union."""
    from polyhead.project.tables import Project as Real

    data = {"recipe": {"kind": "joint", "sampling": {"kind": "anneal"}}}
    with pytest.raises(ConfigError, match=r"wrong value 'anneal' at recipe.sampling.kind. Allowed: .*annealed"):
        to_value(data, Real, source="here")


def test_a_word_that_only_shares_letters_with_an_allowed_one_is_not_taken_for_it():
    """For effort 'fast' it said: did you mean 'default'? The place began with `$.` for choices alone."""
    from polyhead.project.tables import Project as Real

    with pytest.raises(ConfigError, match=r"wrong value 'fast' at training.effort. Allowed: .*give one of these"):
        to_value({"training": {"effort": "fast"}}, Real, source="here")


@pytest.mark.parametrize(
    "text",
    [b"seed = ", b"seed = 1\nseed = 2", b"\xff\xfe", b"[[tasks]", b"seed = 1\0"],
    ids=["cut", "twice", "not-utf-8", "open", "null"],
)
def test_a_file_that_is_not_toml_is_said_to_be_so(tmp_path, text):
    with pytest.raises(ConfigError, match=r"polyhead\.toml is not TOML"):
        read_toml(write(tmp_path, text), Project)


def test_a_missing_file_names_itself_and_the_command_that_writes_one(tmp_path):
    with pytest.raises(ConfigError, match=r"no project file at .*none\.toml.*polyhead init"):
        read_toml(tmp_path / "none.toml", Project)


def test_a_folder_is_not_a_file(tmp_path):
    with pytest.raises(ConfigError, match="is no plain file"):
        read_toml(tmp_path, Project)


def test_an_empty_file_is_all_defaults(tmp_path):
    assert read_toml(write(tmp_path, ""), Project) == Project()


def test_line_ends_of_other_systems_are_read(tmp_path):
    assert read_toml(write(tmp_path, 'seed = 4\r\n[[tasks]]\r\nname = "a"\r\n'), Project).seed == 4


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
recipes = st.one_of(
    st.none(),
    st.builds(Frozen, epochs=st.integers(-(2**63), 2**63 - 1)),
    st.builds(Joint, sampling=st.floats(allow_nan=False, allow_infinity=False)),
)
entries = st.builds(Entry, name=names, labels=st.lists(names, max_size=3).map(tuple), recipe=recipes)
projects = st.builds(
    Project,
    seed=st.integers(-(2**63), 2**63 - 1),
    share=st.floats(allow_nan=False, allow_infinity=False),
    tasks=st.lists(entries, max_size=3).map(tuple),
    files=st.dictionaries(names, entries, max_size=2),
    only=st.none() | st.builds(Frozen),
)


@given(projects)
def test_values_survive_toml(tmp_path_factory, project):
    pytest.importorskip("tomli_w", reason="tomli_w is not installed")
    path = tmp_path_factory.mktemp("toml") / "polyhead.toml"
    path.write_text(to_toml(project), encoding="utf-8", newline="")
    assert read_toml(path, Project) == project


@given(projects)
def test_values_survive_json(project):
    raw = to_json(project)
    assert raw.endswith(b"}\n")
    assert from_json(raw, Project, source="a test") == project
    assert to_json(from_json(raw, Project, source="a test")) == raw


@pytest.mark.parametrize("raw", [b"", b"{", b"[1,]", b"\xff", b"nul", b"{} {}"])
def test_bytes_that_are_not_json_are_said_to_be_so(raw):
    with pytest.raises(ConfigError, match="task.json is not JSON"):
        from_json(raw, Project, source="task.json")


def test_json_of_another_shape_names_path_and_source():
    with pytest.raises(ConfigError, match=r"task\.json: unknown key 'sed' in the top level.*'seed'"):
        from_json(b'{"sed": 1}', Project, source="task.json")
    with pytest.raises(ConfigError, match=r"task\.json: wrong type at seed\. Got: .x."):
        from_json(b'{"seed": "x"}', Project, source="task.json")


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
def test_numbers_that_are_not_finite_are_named_as_they_are(tmp_path, number):
    path = tmp_path / "p.toml"
    path.write_text(f"seed = {number}\n")
    with pytest.raises(ConfigError, match=f"wrong type at seed. Got: {number}. Allowed: a whole number"):
        read_toml(path, Project)


@cases("key", ["a`b", "a.b", "a b", "", "$", "[0]", "x" * 1000, "\u202e"])
def test_hostile_keys_are_an_error_like_any_other(key):
    with pytest.raises(ConfigError):
        to_value({key: 1}, Project, source="a test")
    with pytest.raises(ConfigError):
        to_value({"files": {key: {"name": "a", "labls": []}}}, Project, source="a test")


def test_deeply_nested_json_is_an_error_and_not_a_crash():
    with pytest.raises(ConfigError):
        from_json(b'{"tasks":' + b"[" * 100_000, Project, source="a test")


def test_deeply_nested_toml_is_an_error_and_not_a_crash(tmp_path):
    with pytest.raises(ConfigError):
        read_toml(write(tmp_path, "seed = " + "[" * 100_000), Project)


def test_msgspec_errors_never_leave_the_module():
    for data in (None, 3, [], "x", {"tasks": {}}, {"only": {"kind": 3}}, {1: 2}):
        with pytest.raises(ConfigError):
            to_value(data, Project, source="a test")
    assert not issubclass(ConfigError, msgspec.MsgspecError)


def test_a_field_with_a_new_name_keeps_its_old_one_in_digests():
    class Before(Value):
        told: str
        size: int = 3

    class After(Value):
        title: str = msgspec.field(name="told")
        size: int = 3

    assert digested(After(title="a")) == digested(Before(told="a")) == {"told": "a"}


def test_a_key_that_belongs_one_table_deeper_is_shown_its_table():
    """`micro_batches` beside [recipe.learn] was only refused."""

    class Inner(Value):
        rounds: int = 1

    class Outer(Value):
        inner: Inner = Inner()

    class Whole(Value):
        outer: Outer = Outer()

    with pytest.raises(ConfigError, match=r"unknown key 'rounds' in outer.*put it into the table \[outer\.inner\]"):
        to_value({"outer": {"rounds": 2}}, Whole, source="x.toml")


@given(st.floats())
def test_few_digits_are_those_of_the_nearest_decimal(number):
    rounded = few_digits({"a": [number]})["a"][0]
    if not math.isfinite(number):
        assert rounded == number or math.isnan(rounded) and math.isnan(number)
    elif abs(number) < 1e5:
        assert rounded == float(Decimal(number).normalize(Context(prec=6)))
    else:
        assert rounded == round(Decimal(number))


NUMBERS = st.floats() | st.floats(-1, 1) | st.floats(-1, 1, width=32) | st.floats(-1e-14, 1e-14)


@given(st.lists(NUMBERS, min_size=MANY, max_size=40))
def test_many_numbers_have_the_digits_of_each(numbers):
    """But for one that lies in the middle of two decimals, nearer than floats can say."""
    alone = [few_digits(number) for number in numbers]
    together = few_digits(numbers)
    for rounded, wanted, number in zip(together, alone, numbers, strict=True):
        if rounded != wanted and not math.isnan(wanted):
            middle = (Decimal(rounded) + Decimal(wanted)) / 2
            assert abs(Decimal(number) - middle) <= abs(Decimal(number)) * Decimal(2**-51)
    of_keys = few_digits({str(place): number for place, number in enumerate(numbers)})
    assert repr([*of_keys.values()]) == repr(together) and [*of_keys] == [str(place) for place in range(len(numbers))]
    assert repr(few_digits([*numbers, 1])) == repr([*alone, 1])  # not floats alone: one by one


def _one_by_one(value):
    if isinstance(value, dict):
        return {key: _one_by_one(item) for key, item in value.items()}
    return [_one_by_one(item) for item in value] if isinstance(value, (list, tuple)) else few_digits(value)


NESTED = st.recursive(
    st.floats() | st.integers() | st.text(max_size=3) | st.none() | st.booleans() | st.floats().map(np.float64),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3), inner) | st.lists(inner).map(tuple),
)


@given(NESTED)
def test_numbers_at_any_depth_are_rounded_as_one_by_one_and_what_was_given_stays(value):
    before = repr(value)
    rounded = few_digits(value)
    assert repr(value) == before
    assert repr(_plain(rounded)) == repr(_plain(_one_by_one(value)))


def _plain(value):
    """With Python's floats in place of NumPy's, which are shown otherwise."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return float(value) if isinstance(value, float) else value
