"""What a kind is told about an input: the text that words are of, the words, and the options."""

import numpy as np
import pytest

from polyhead.tasks.task import Example
from polyhead.text.question import Question
from polyhead.text.words import NOWHERE, join_tokens, words_of

QUESTION = Question(text="which\ud800?", options=("r\udc00d", "blue"), context="a red one")


@pytest.mark.parametrize("text", ["", "São Paulo!", "a \ud800 b"])
def test_words_are_of_the_only_text_or_after_the_place_of_no_answer_of_the_second(text):
    alone, second = Example(input=(text,)), Example(input=("not this?", text))
    assert alone.text == second.text == text.replace("\ud800", "\ufffd")
    np.testing.assert_array_equal(alone.places, words_of(text))
    np.testing.assert_array_equal(second.places, [NOWHERE, *words_of(text)])
    assert alone.options == second.options == ()


def test_words_that_were_given_stand_for_those_that_would_be_found():
    text, words = join_tokens(["New York", "", "now"])
    assert (text, [text[start:end] for start, end in words]) == ("New York  now", ["New York", "", "now"])
    assert words.dtype == np.int32 and join_tokens([])[1].shape == (0, 2)
    np.testing.assert_array_equal(Example(input=(text,), words=words).places, words)


def test_options_are_a_questions_as_they_are_read():
    assert Example(input=QUESTION).options == ("r\ufffdd", "blue")
