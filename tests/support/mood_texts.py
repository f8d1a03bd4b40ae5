"""Texts about things whose mood a word says, and models that learn such tasks in a few epochs."""

import random

from polyhead import Model as Whole
from polyhead.project.recipes import Training

WORDS = {"good": ("good", "happy"), "bad": ("bad", "sad", "broken", "late")}
THINGS = ("lamp", "kettle", "phone", "box")


class Quick(Whole):
    """A model whose tasks are trained for two epochs: enough for linear heads on words that say it."""

    def fit(self, task, *rows, **options):
        return super().fit(task, *rows, **{"training": Training(epochs=2), **options})


def texts_of(moods, seed=1):
    """A text of each mood."""
    drawn = random.Random(seed)
    return [f"the {drawn.choice(THINGS)} is {drawn.choice(WORDS.get(mood, (mood,)))}" for mood in moods]
