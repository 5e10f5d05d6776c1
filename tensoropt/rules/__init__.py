"""The sharding rule of each operator type, as data."""
