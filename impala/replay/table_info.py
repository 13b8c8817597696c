"""What Reverb says of a table while it is in use."""

import logging


def info_of(client, table: str):
    """Returns Reverb's information on a table, None if it does not answer."""
    try:
        return client.server_info(timeout=2)[table]
    except Exception as error:  # the dashboard shows a gap; the training thread does not depend on it
        logging.warning("the table did not answer: %s", error)
        return None


def holds_up_writers(info, before: tuple[int, int] = (0, 0)) -> bool:
    """Returns whether a table's rate limiter lets nobody write now; False if its information is None.

    Args:
      before: insertions and draws before the table was emptied, which its limiter no longer counts.
    """
    if info is None:
        return False
    limiter = info.rate_limiter_info
    inserted, drawn = limiter.insert_stats.completed - before[0], limiter.sample_stats.completed - before[1]
    ahead = limiter.samples_per_insert * (inserted + 1) - drawn
    return info.current_size >= limiter.min_size_to_sample and ahead > limiter.max_diff
