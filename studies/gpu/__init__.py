"""The studies with whole training sets, on one graphics card: many runs of one shape at once, as one stack of models.

What runs there imports torch and numpy alone; the pack that travels is made beside the data (`python -m studies gpu
pack`), and the rows that come back are judged here like all others.
"""
