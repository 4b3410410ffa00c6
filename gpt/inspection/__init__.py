"""Show numbers as tables, heat maps and HTML pages."""
