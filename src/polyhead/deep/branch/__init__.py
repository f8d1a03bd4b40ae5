"""Branches: depths, students and searches."""
