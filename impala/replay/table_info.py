"""What Reverb says of a table while it is in use."""

import logging


def info_of(client, table: str):
    """Returns Reverb's information on a table, None if it does not answer."""
    try:
        return client.server_info(timeout=2)[table]
    except Exception as error:  # the dashboard shows a gap; the training thread does not depend on it
        logging.warning("the table did not answer: %s", error)
        return None


def holds_up_writers(info) -> bool:
    """Returns whether a table's rate limiter lets nobody write now; False if its information is None."""
    if info is None:
        return False
    limiter = info.rate_limiter_info
    ahead = limiter.samples_per_insert * (limiter.insert_stats.completed + 1) - limiter.sample_stats.completed
    return info.current_size >= limiter.min_size_to_sample and ahead > limiter.max_diff
