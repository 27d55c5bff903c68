"""Results of tools, written, read and shown: tables, figures, HTML; nothing is scored here."""
