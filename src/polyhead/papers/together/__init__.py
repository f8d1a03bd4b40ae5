"""Studies of joint training at our scale: what a trunk that learned from many tasks gives to tasks it never saw."""
