"""Kinds of uncertainty that need more than one module: one folder each."""
