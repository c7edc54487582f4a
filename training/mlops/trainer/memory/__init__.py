"""The state of the last step in memory that outlives a rank's process, so that a lost rank costs no step."""
