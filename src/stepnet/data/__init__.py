"""What flows: ragged tables of rows and arrays of steps."""
