"""What is known of a kind of object, and of the Go types behind the built-in ones."""
