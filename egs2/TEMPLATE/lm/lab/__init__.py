"""Experiments of recipes, from a plan in yaml to tables; tools of the package do the work."""
