"""`python -m polyhead` is the `polyhead` command."""

from polyhead.cli.main import main

main()
