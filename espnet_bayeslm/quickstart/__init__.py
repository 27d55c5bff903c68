"""Several tools in one command: `quickstart`, `compare`, how steps run; not what a tool does."""
