"""Read files, folders, archives, tables and built-in texts as UTF-8, in any encoding."""
