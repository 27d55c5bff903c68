"""`adapt`, `compare`, `quickstart`: several tools as steps, and tables of what they compare."""
