"""How long reading takes, learned from the batches before."""

from __future__ import annotations

SMOOTHING = 0.1  # weight of the newest batch in running means
TOKENS_A_CHARACTER, TOKENS_AN_INPUT = 0.3, 4.0  # before any text was read
SECONDS_A_TOKEN = 2e-5


class Rate:
    """Running means of batches: how many tokens characters are, and how long tokens take."""

    def __init__(self) -> None:
        self.seconds_a_token, self._a_character = SECONDS_A_TOKEN, TOKENS_A_CHARACTER

    def tokens(self, characters: float, inputs: int) -> float:
        """Tokens that so many inputs of so many characters probably have."""
        return TOKENS_AN_INPUT * inputs + self._a_character * characters

    def learn(self, characters: int, inputs: int, tokens: int, seconds: float) -> None:
        """Takes a batch into the means."""
        if not tokens:
            return
        self.seconds_a_token += SMOOTHING * (seconds / tokens - self.seconds_a_token)
        if characters:
            own = max(0.01, (tokens - TOKENS_AN_INPUT * inputs) / characters)
            self._a_character += SMOOTHING * (own - self._a_character)
