"""How results are shown: tables, figures, verdicts and the report."""
