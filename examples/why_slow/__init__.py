"""A slow program and its repairs, as the chapter "Why is it slow?" of the book makes them."""
