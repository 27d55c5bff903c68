"""Errors, files and command lines: what every other part may use."""
