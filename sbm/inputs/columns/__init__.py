"""The column model of tables: what each column is, and how its cells become features."""
