"""The commands, one file a verb: the only place that reads argv and environment, or prints."""
