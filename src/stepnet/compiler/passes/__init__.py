"""From one graph of the closed list to another, and to what runs once and what step after step."""
