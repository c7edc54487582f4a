"""Which of a route's flights of a day are punctual? A nightly ranking pipeline."""
