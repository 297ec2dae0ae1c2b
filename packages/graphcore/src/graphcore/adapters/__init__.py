"""Other people's libraries: what makes their objects nodes and variables here."""
