"""Jobs that share a cluster round by round, as Gavel and Shockwave schedule them."""
