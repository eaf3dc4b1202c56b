"""What `hamdam bench` measures in this process. Not how it is printed: that is the server's."""
