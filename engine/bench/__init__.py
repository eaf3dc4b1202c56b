"""What `hamdam bench` measures in this process, and what it makes of timings. Not how it is shown: the server does."""
