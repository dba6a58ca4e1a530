"""Recurrent cells of the last decades, written as their authors write them; tests hold each against the loop."""
