"""Keep the user's variables and the shards on the ranks one."""
