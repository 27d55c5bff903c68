"""Command lines, a module for each tool: its options and steps; the folders below do the work."""
