"""Results of tools: tables, figures and the HTML report."""
