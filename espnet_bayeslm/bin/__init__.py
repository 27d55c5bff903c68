"""Command lines, a module for each tool: options and one call; the folders below do the work."""
