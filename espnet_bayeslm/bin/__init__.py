"""Thin command lines: get_parser() and main(cmd=None) each; `bayeslm TOOL` calls them."""
