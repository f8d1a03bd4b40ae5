"""Regular expressions without backtracking: what they match is what `re` matches, in a time that is bounded."""

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyhead.convert.patterns import Matcher
from polyhead.convert.peft import _layer_number, _patterned
from polyhead.errors import TrunkError
from support.cases import cases

ATOMS = st.sampled_from([*"ab.1", r"\.", r"\d", "[ab]", "[^a]", r"\w"])


def _more(inner):
    times = st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}", "*?", "+?", "??"])
    return st.one_of(
        st.builds("{}{}".format, inner, inner),
        st.builds("({}|{})".format, inner, inner),
        st.builds("(?:{}){}".format, inner, times),
        st.builds("^{}".format, inner),
        st.builds("{}$".format, inner),
    )


@settings(max_examples=500, deadline=None)
@given(st.recursive(ATOMS, _more, max_leaves=6), st.text("ab.1", max_size=8))
def test_what_fits_is_what_re_matches(expression, text):
    assert Matcher("f").fits(expression, text) == (re.fullmatch(expression, text) is not None)


NAMES = st.lists(st.sampled_from(["layer", "encoder", "0", "1", "12", "query", "value"]), min_size=1, max_size=6).map(
    ".".join
)
PATTERNS = ["query", "layer.1", r"layer\.0\..*", "^encoder.layer", ".*", "[^.]*", "layer", "encoder.*", "query$"]


@settings(max_examples=300, deadline=None)
@given(NAMES, st.sampled_from([*PATTERNS, "(query|value)", "encoder.layer.1.(query|value)"]))
def test_patterns_are_looked_up_as_peft_does(module, pattern):
    wanted = re.match(rf"(.*\.)?({pattern})$", module) is not None
    assert _patterned({pattern: 1}, module, 0, Matcher("f")) == wanted


@settings(max_examples=300, deadline=None)
@given(NAMES, st.sampled_from(PATTERNS))
def test_numbers_of_layers_are_looked_up_as_peft_does(module, pattern):
    found = re.match(rf"(?:^|.*?\.){pattern}\.(\d+)\.", module)
    assert _layer_number(pattern, module, Matcher("f")) == (found[1] if found else None)


HOSTILE = [
    *("(a+)+b", "(a|a)*b", "(a|aa)+b", "(a*)*b", "(.*)*x", ".*.*.*.*.*.*.*x", "((a+)+)+b", "(a?){30}a{30}b"),
    *("(a|a?)+b", "(?:a|a|a)+b", "([a-z]+)*1", "(a+){10}b", "(.+)+\\.b", "(?:.*a){12}b", "(a*a*)*b", "^(a+)+$b"),
]


@cases("expression", HOSTILE)
def test_expressions_that_take_exponential_time_are_matched_at_once(expression):
    begun = time.process_time()
    assert not Matcher("f").fits(expression, "a" * 1000)
    assert time.process_time() - begun < 5


REFUSED = {
    "(?=a)": "not read",
    "(?!a)b": "not read",
    "(?<=a)b": "not read",
    "(?<!a)b": "not read",
    r"(a)\1": "not read",
    "(?P<n>a)(?P=n)": "not read",
    "(?i)a": "not read",
    "(?i:a)": "not read",
    r"\bа": "not read",
    r"\Aa": "not read",
    "a*+": "not read",
    "((a{1,30}){1,30}){1,30}": "places",
    "a{5000}": "places",
    "(" * 60 + "a|b" + ")" * 60: "groups",
    "a" * 1001: "characters",
    "(": "regular expression",
    "a**": "regular expression",
    "[": "regular expression",
    "a{2,1}": "regular expression",
    "(?P<1>a)": "regular expression",
}


@cases("expression", REFUSED)
def test_what_is_not_read_is_refused_by_its_name(expression):
    with pytest.raises(TrunkError, match=REFUSED[expression]):
        Matcher("adapter_config.json").fits(expression, "a")


def test_the_steps_of_all_matches_are_counted(monkeypatch):
    monkeypatch.setattr("polyhead.convert.patterns.STEPS", 1000)
    matcher = Matcher("f")
    with pytest.raises(TrunkError, match="too long"):
        for number in range(1000):
            matcher.fits("(a|b)*c", f"abab{number}")
