"""From the sources to the features, each measured beside a plain baseline."""
