"""Poolers and heads of many tasks as few products, for serving; nothing here has a gradient."""
