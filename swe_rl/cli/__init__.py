"""From words on the command line to a composed, checked configuration and its job."""
