"""A module for each kind of uncertainty; their base classes and the grammar are in `bayes`."""
