"""Read files in any encoding, folders, archives, tables and built-in texts; yield UTF-8."""
