"""Trained LMs and components, with their options, from files; exports. `scoring` has scores."""
