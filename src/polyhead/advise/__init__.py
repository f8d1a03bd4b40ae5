"""Which way of sharing the trunk suits one's own data: every way side by side, and advice within a budget."""
