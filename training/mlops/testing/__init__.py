"""What third parties test their extensions by: the conformance suites that ours go through, too."""
