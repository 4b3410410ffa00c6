"""Which parts of a text to take, evenly spread, where all of it would take too long."""

PART_IDS = 2**20


def spread_slices(length: int, most: int, part: int = PART_IDS) -> list[slice]:
    """Slices of at most `part` that cover 0 to length, or, evenly spread, at most `most` of it."""
    if length <= most:
        return [slice(start, min(start + part, length)) for start in range(0, length, part)]
    part = min(part, most)
    n = most // part
    starts = [i * (length - part) // max(n - 1, 1) for i in range(n)]
    return [slice(start, start + part) for start in starts]
