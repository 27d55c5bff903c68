"""Experiments by command lines of `bayeslm`: the quick start on shipped data, and `compare`."""
