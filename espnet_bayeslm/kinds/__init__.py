"""A module for each kind of uncertainty; `uncertainty:` as it is searched; bases are in `bayes`."""
