"""Results of tools, written, read, shown: error rates, tables, figures, HTML; none is counted."""
