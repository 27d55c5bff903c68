"""Trained LMs and components from their files, and exports; how they score is in `scoring`."""
