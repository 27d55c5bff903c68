"""Kinds of uncertainty that need more than one module: the architecture search."""
