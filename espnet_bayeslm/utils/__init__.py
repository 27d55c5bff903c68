"""Errors, files, folders, options and command lines for all folders; nothing about LMs."""
