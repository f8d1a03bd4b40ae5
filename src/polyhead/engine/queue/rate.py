"""How many tokens texts have and how long reading takes, learned from the batches before."""

from __future__ import annotations

SMOOTHING = 0.1  # weight of the newest batch in running means
SLOWER = 0.5  # its weight in the mean of seconds where it was slower: what is promised too early is late
TOKENS_A_CHARACTER, TOKENS_AN_INPUT, SECONDS_A_TOKEN = 0.3, 4.0, 3e-5  # before any text was read


class Rate:
    """Running means."""

    def __init__(self) -> None:
        self._a_character, self._seconds = TOKENS_A_CHARACTER, SECONDS_A_TOKEN

    def tokens(self, characters: float, inputs: int) -> float:
        """Tokens that so many inputs of so many characters probably have."""
        return TOKENS_AN_INPUT * inputs + self._a_character * characters

    def seconds(self, characters: float, inputs: int) -> float:
        """How long reading these probably takes."""
        return self.seconds_of(self.tokens(characters, inputs))

    def seconds_of(self, tokens: float) -> float:
        """How long reading so many tokens probably takes."""
        return self._seconds * tokens

    def learn(self, characters: int, inputs: int, tokens: int, seconds: float) -> None:
        """Takes a batch into the means."""
        if not tokens:
            return
        gain = seconds / tokens - self._seconds
        self._seconds += (SLOWER if gain > 0 else SMOOTHING) * gain
        if characters:
            own = max(0.01, (tokens - TOKENS_AN_INPUT * inputs) / characters)
            self._a_character += SMOOTHING * (own - self._a_character)
