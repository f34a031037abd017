"""All that is known of one stream: where it comes from, what it holds, how it is judged and reported."""
