"""What each operator type is, as data: which of its dimensions may be split, and what a split means."""
