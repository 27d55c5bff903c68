"""Errors, files and command lines: tools that every other part may use."""
