"""Numbers in, pictures out: tables, heat maps and pages."""
