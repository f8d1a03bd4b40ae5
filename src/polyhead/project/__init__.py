"""polyhead.toml: its tables, and the settings of strategies and recipes."""
