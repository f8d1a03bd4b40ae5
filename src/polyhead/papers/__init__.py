"""One module a paper: the functions that reproduce its tables and figures, as rows."""
