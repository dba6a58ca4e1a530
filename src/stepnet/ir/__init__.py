"""The intermediate representation: a loop, its body graph, and the closed list of ops. No torch here."""
