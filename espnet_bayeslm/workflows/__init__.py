"""Several tools in one command: steps, `adapt`, `compare`, `quickstart`; not what a tool does."""
