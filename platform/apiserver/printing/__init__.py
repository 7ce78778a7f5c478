"""Objects as the rows of tables, as kubectl shows them."""
