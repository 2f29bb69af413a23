"""Parts of a problem solved by themselves, put together again, and a master problem over what they share."""
