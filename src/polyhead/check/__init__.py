"""Checks of labelled data, before and after training: faults found in rows, each with its place."""
