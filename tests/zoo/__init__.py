"""Recurrent cells of the last decades, written as their authors write them."""
