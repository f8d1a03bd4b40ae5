"""Recipes: defaults are the papers', wrong values are refused with their name, and files give them back."""

import math

import msgspec
import pytest

from polyhead.errors import ConfigError
from polyhead.project.recipes import Frozen, Joint, Recipe, Sampling, Smoothing, Weighting
from polyhead.values import Value, read_toml, to_value
from support.cases import cases
from support.tiny_project import to_toml


class Holder(Value):
    """A file with a recipe in it."""

    recipe: Recipe = Frozen()


REFUSED = {
    "exponent below 0": (Sampling, {"exponent": -0.1}),
    "exponent is no number": (Sampling, {"exponent": math.nan}),
    "end below 0": (Sampling, {"kind": "annealed", "end": -1.0}),
    "cap below 1": (Sampling, {"cap": 0}),
    "schedule is missing": (Sampling, {"kind": "schedule"}),
    "schedule of another kind": (Sampling, {"schedule": ({"a": 1.0},)}),
    "schedule of nothing": (Sampling, {"kind": "schedule", "schedule": ({"a": 0.0},)}),
    "schedule without shares": (Sampling, {"kind": "schedule", "schedule": ({},)}),
    "schedule with a share below 0": (Sampling, {"kind": "schedule", "schedule": ({"a": 2.0, "b": -1.0},)}),
    "exponent without use": (Sampling, {"kind": "round_robin", "exponent": 0.5}),
    "end without use": (Sampling, {"end": 0.5}),
    "weight exponent below 0": (Weighting, {"kind": "size", "exponent": -1.0}),
    "literal exponent 0": (Weighting, {"kind": "size", "exponent": 0.0, "literal": True}),
    "weight exponent without use": (Weighting, {"kind": "uncertainty", "exponent": 0.5}),
    "literal without use": (Weighting, {"literal": True}),
    "fixed weights are missing": (Weighting, {"kind": "fixed"}),
    "fixed weights of another kind": (Weighting, {"fixed": {"a": 2.0}}),
    "fixed weight below 0": (Weighting, {"kind": "fixed", "fixed": {"a": -2.0}}),
    "fixed weight is infinite": (Weighting, {"kind": "fixed", "fixed": {"a": math.inf}}),
    "smoothing weight below 0": (Smoothing, {"weight": -1.0}),
    "noise below 0": (Smoothing, {"size": -1e-5}),
    "noise is infinite": (Smoothing, {"size": math.inf}),
    "no micro-batches": (Joint, {"micro_batches": 0}),
    "no steps": (Joint, {"steps": 0}),
    "no validation rows": (Joint, {"validation_rows": 0}),
    "dropout of everything": (Joint, {"layer_dropout": 1.0}),
    "heads that do not learn": (Joint, {"head_rate": 0.0}),
    "nothing of what was learned": (Joint, {"blend": 0.0, "heads": "strip"}),
    "more than was learned": (Joint, {"blend": 1.1, "heads": "strip"}),
    "heads over another trunk": (Joint, {"blend": 0.5}),
    "all tasks in one batch": (Joint, {"sampling": Sampling(kind="all"), "scheme": "batch"}),
    "all tasks one after the other": (Joint, {"sampling": Sampling(kind="all"), "scheme": "dataset"}),
}


@cases("name", REFUSED)
def test_wrong_values_are_refused(name):
    kind, given = REFUSED[name]
    with pytest.raises(ConfigError) as found:
        kind(**given)
    assert found.value.what


def test_defaults_are_those_of_the_papers():
    assert Joint().sampling == Sampling(kind="size", exponent=1.0)  # Aghajanyan et al. 2021: natural sizes
    assert (Joint().scheme, Joint().weighting.scaled) == ("heterogeneous", True)
    assert Sampling(kind="annealed").end == 0.2  # Stickland and Murray 2019
    assert Weighting(kind="size").exponent == 0.1  # Du et al. 2020
    smoothing = Smoothing()  # the released code of Aghajanyan et al. 2020
    assert (smoothing.weight, smoothing.size, smoothing.noise) == (1.0, 1e-5, "uniform")
    assert smoothing.detached
    assert smoothing.dropout
    assert smoothing.both


@pytest.mark.parametrize(
    "recipe",
    [
        Frozen(),
        Joint(),
        Joint(
            sampling=Sampling(kind="schedule", schedule=({"a": 1.0}, {"a": 1.0, "b": 2.0})),
            weighting=Weighting(kind="fixed", fixed={"a": 0.5}, scaled=False),
            smoothing=Smoothing(spectral=True, noise="normal"),
            scheme="batch",
            steps=100,
        ),
    ],
    ids=["frozen", "joint", "joint, all set"],
)
def test_files_give_recipes_back(recipe, tmp_path):
    (tmp_path / "recipe.toml").write_text(to_toml(Holder(recipe=recipe)))
    assert read_toml(tmp_path / "recipe.toml", Holder).recipe == recipe


def test_checks_run_on_files_too():
    with pytest.raises(ConfigError, match=r"recipe\.micro_batches|micro_batches"):
        to_value({"recipe": {"kind": "joint", "micro_batches": 0}}, Holder, source="file")


def test_kinds_that_share_one_head_are_those_whose_heads_are_alike():
    assert Joint().families == ("multiple_choice", "span")
    with pytest.raises(ConfigError, match="families: tasks of kind 'tagging' have heads of different widths"):
        Joint(families=("tagging",))
    with pytest.raises(ConfigError, match="did you mean 'span'"):
        to_value({"recipe": {"kind": "joint", "families": ["spam"]}}, Holder, source="file")


def test_an_unknown_key_is_named_with_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'micro_batches'"):
        to_value({"recipe": {"kind": "joint", "micro_batch": 4}}, Holder, source="file")


def test_recipes_cannot_be_changed():
    with pytest.raises(AttributeError):
        Joint().steps = 3
    assert msgspec.structs.replace(Joint(), steps=3).steps == 3
