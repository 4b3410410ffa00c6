"""Numbers in, pictures out: picture (PNG) and page (HTML) of attention."""
