"""stepnet: write one recurrent step in plain PyTorch and run it over ragged sequences."""
