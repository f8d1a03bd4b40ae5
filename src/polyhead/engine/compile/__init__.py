"""Graphs built from a plan and a bundle's arrays, for any runtime that has the operators of `ops`."""
