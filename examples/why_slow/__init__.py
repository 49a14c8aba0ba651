"""A slow program and its faster versions, the steps of the book's chapter "Why is it slow?"."""
